import numpy as np
import pytest

from mlx_platform.serving.rollout.business import compare_arms, not_worse
from mlx_platform.serving.rollout.counts import ArmCounts, Window
from mlx_platform.serving.rollout.plan import AbRule, MetricRule
from mlx_platform.serving.rollout.verdict import Outcome

RULE = AbRule("clicked", base=0.3, min_effect=0.1, required=(400, 400))


def arm(values: object, metric: str = "clicked") -> ArmCounts:
    found = ArmCounts(requests=len(np.asarray(values)))
    for value in np.asarray(values).tolist():
        found.outcome(metric, value)
    return found


def clicks(count: int, of: int) -> ArmCounts:
    return arm([1] * count + [0] * (of - count))


def test_an_ab_test_tells_no_difference_before_its_outcomes_are_there() -> None:
    early = compare_arms(RULE, Window(0, {"stable": clicks(10, 399), "canary": clicks(390, 400)}))

    assert early.outcome is Outcome.INCONCLUSIVE
    assert "399 of 400" in early.message
    assert "candidate" not in early.numbers
    assert early.measured is None


@pytest.mark.parametrize(
    ("stable", "candidate", "direction", "winner"),
    [
        (120, 160, "higher", "candidate"),
        (160, 120, "higher", "stable"),
        (120, 160, "lower", "stable"),
        (120, 125, "higher", "none"),
    ],
)
def test_an_ab_test_says_who_wins(stable: int, candidate: int, direction: str, winner: str) -> None:
    rule = AbRule("clicked", direction, 0.3, 0.0, 0.1, required=(400, 400))  # type: ignore[arg-type]
    found = compare_arms(rule, Window(0, {"stable": clicks(stable, 400), "canary": clicks(candidate, 400)}))

    assert (found.outcome, found.reason) == (Outcome.PASS, winner)
    assert found.numbers["lower"] < found.numbers["difference"] < found.numbers["upper"]


def test_an_ab_test_without_outcomes_is_no_data() -> None:
    assert compare_arms(RULE, Window(0)).outcome is Outcome.NO_DATA
    assert compare_arms(RULE, Window(0, {"stable": clicks(5, 500)})).outcome is Outcome.NO_DATA


def test_a_guard_on_a_number_holds_its_level_and_finds_a_loss() -> None:
    rule = MetricRule("minutes", "business", "minutes", max_drop=1.0, on="weight")
    generator = np.random.default_rng(5)

    def outcome(mean: float, count: int = 500) -> Outcome:
        ours = arm(generator.exponential(mean, count), "minutes")
        theirs = arm(generator.exponential(10.0, 5000), "minutes")
        return not_worse(rule, ours, theirs, level=0.001, needed=0).outcome

    assert outcome(7.0) is Outcome.FAIL
    assert outcome(11.0) is Outcome.PASS
    assert outcome(9.0) is Outcome.INCONCLUSIVE
    assert sum(outcome(9.0, 100) is Outcome.FAIL for _ in range(60)) == 0  # at the limit itself


def test_a_guard_says_what_it_measured_beside_what_it_allows() -> None:
    rule = MetricRule("clicked", "business", "clicked", max_drop=0.05, on="weight")
    found = not_worse(rule, clicks(120, 800), clicks(1500, 5000), level=0.001, needed=0)

    assert found.outcome is Outcome.FAIL
    assert found.measured == pytest.approx(0.15)
    assert "clicked is 0.15 of 800 outcomes, 0.3 of 5,000" in found.message
    assert "may be worse by 0.05" in found.message
