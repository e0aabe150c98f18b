import pytest

from mlx_platform.core.verdict import Check, Verdict, verdict_of, worst, worst_first


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.PASS, Verdict.PASS], Verdict.PASS),
        ([Verdict.PASS, Verdict.UNDECIDED], Verdict.UNDECIDED),
        ([Verdict.UNDECIDED, Verdict.ERROR], Verdict.ERROR),
        ([Verdict.ERROR, Verdict.FAIL, Verdict.PASS], Verdict.FAIL),
        ([], Verdict.UNDECIDED),
    ],
)
def test_the_worst_verdict_wins_and_none_is_undecided(verdicts: list[Verdict], expected: Verdict) -> None:
    assert worst(verdicts) is expected


def test_only_a_pass_exits_with_zero() -> None:
    assert [verdict.value for verdict in Verdict if verdict.exit_code == 0] == ["pass"]


def test_checks_that_were_all_skipped_decide_nothing() -> None:
    check = Check("accuracy", Verdict.PASS, "0.9", ">= 0.8", skipped="no baseline yet")

    assert verdict_of([check]) is Verdict.UNDECIDED


def test_the_worst_check_comes_first_and_what_decides_nothing_last() -> None:
    checks = [
        Check("left out", Verdict.FAIL, "", "", skipped="warn only"),
        Check("fine", Verdict.PASS, "", ""),
        *(
            Check(str(verdict), verdict, "", "")
            for verdict in (Verdict.UNDECIDED, Verdict.FAIL, Verdict.ERROR)
        ),
    ]

    assert [check.name for check in worst_first(checks)] == ["fail", "error", "undecided", "fine", "left out"]


def test_the_title_of_a_check_names_the_limit_and_the_slice() -> None:
    assert Check("accuracy", Verdict.PASS, "0.9", ">= 0.8").title == "accuracy >= 0.8"
    assert (
        Check("accuracy", Verdict.PASS, "0.9", "max_drop 1pp", part="lang=de").title
        == "accuracy max_drop 1pp [slice lang=de]"
    )
    assert Check("rows", Verdict.PASS, "9", "").title == "rows"
