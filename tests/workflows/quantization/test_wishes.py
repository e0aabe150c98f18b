import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.verdict import Verdict, worst
from mlx_platform.quantize.latency import Race
from mlx_platform.workflows.quantization.wishes import Wishes

RACE = Race(3.0, 2.0, 1.5, 1.2, 1.8, 50)
SLOWER = Race(2.0, 2.5, 0.8, 0.75, 0.85, 50)
PERHAPS_SLOWER = Race(2.0, 2.1, 0.95, 0.89, 1.01, 50)
SLOWER_AND_QUICK = Race(0.02, 0.05, 0.4, 0.38, 0.42, 50)


@pytest.mark.parametrize(
    ("wishes", "verdict"),
    [
        (Wishes(min_speedup=1.5), Verdict.PASS),
        (Wishes(min_speedup=1.51), Verdict.FAIL),
        (Wishes(max_size_ratio=0.25), Verdict.PASS),
        (Wishes(max_size_ratio=0.24), Verdict.FAIL),
    ],
)
def test_what_was_measured_itself_is_compared_with_its_limit(wishes: Wishes, verdict: Verdict) -> None:
    answers = wishes.answers(RACE, 0.25)

    assert worst(answer.check.verdict for answer in answers) is verdict
    assert wishes.met(RACE, 0.25) is (verdict is Verdict.PASS)
    assert all(answer.document()["verdict"] == str(answer.check.verdict) for answer in answers)


def test_a_speed_up_shows_its_interval_and_whether_that_reaches_below_the_limit() -> None:
    answer, _size = Wishes(min_speedup=1.4).answers(RACE, 1.0)

    assert answer.check.measured == "1.50 [1.20, 1.80]"
    assert "reaches below" in answer.check.message


def test_without_a_wish_it_must_not_be_larger() -> None:
    assert Wishes().met(RACE, 1.0)
    assert not Wishes().met(RACE, 1.001)


@pytest.mark.parametrize(
    ("wishes", "race", "met"),
    [
        (Wishes(), SLOWER, False),
        (Wishes(), PERHAPS_SLOWER, True),
        (Wishes(), SLOWER_AND_QUICK, True),
        (Wishes(min_speedup=0.0), SLOWER, True),
        (Wishes(for_size=True), SLOWER, True),
        (Wishes(min_speedup=1.0, for_size=True), SLOWER, False),
        (Wishes(min_speedup=1.0), SLOWER_AND_QUICK, False),
    ],
)
def test_without_a_wish_it_must_not_be_shown_to_be_noticeably_slower(
    wishes: Wishes, race: Race, *, met: bool
) -> None:
    assert wishes.met(race, 0.3) is met


def test_what_is_slower_is_told_with_both_times() -> None:
    speed, _size = Wishes().answers(SLOWER, 0.3)

    assert speed.check.measured == "0.80 [0.75, 0.85]"
    assert "2.5 ms a row instead of 2 ms" in speed.check.message
    assert speed.document()["threshold"] == 1


@pytest.mark.parametrize("asked", [-1.0, float("nan"), 1e6])
def test_wishes_without_a_meaning_are_refused(asked: float) -> None:
    with pytest.raises(UsageError, match="cannot be asked for"):
        Wishes(min_speedup=asked)
    with pytest.raises(UsageError, match="cannot be asked for"):
        Wishes(max_size_ratio=asked)


def test_no_size_is_no_wish() -> None:
    with pytest.raises(UsageError, match="cannot be asked for"):
        Wishes(max_size_ratio=0.0)
