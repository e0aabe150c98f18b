import pytest

from mlx_platform.core.verdict import Check, Verdict, verdict_of, worst


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
