import math
import random
from dataclasses import replace

import pytest

from mlx_platform.serving.rollout.alarm import Alarm
from mlx_platform.serving.rollout.binomial import sequential_evidence
from mlx_platform.serving.rollout.counts import ArmCounts, Window
from mlx_platform.serving.rollout.judge import BASELINE_UNHEALTHY
from mlx_platform.serving.rollout.looks import Look
from mlx_platform.serving.rollout.plan import MetricRule, Plan, Step
from mlx_platform.serving.rollout.verdict import Outcome, StepVerdict

PLAN = Plan(
    steps=(Step("shadow", 100.0, 300, 0.0, 600.0), Step("weight", 5.0, 300, 0.0, 600.0), Step("pause")),
    metrics=(
        MetricRule("errors", of="errors", max=0.01),
        MetricRule("agreement", of="disagree", max=0.02, on="shadow"),
    ),
)


def hear(
    alarm: Alarm,
    canary: tuple[int, int],
    stable: tuple[int, int] = (10_000, 0),
    *,
    look: int = 2,
    plan: Plan = PLAN,
) -> StepVerdict | None:
    window = Window(3, {"canary": ArmCounts(*canary), "stable": ArmCounts(*stable)})
    return alarm.hear(plan, 1, window, Look(look, 100.0, 0.1))


def test_a_candidate_that_begins_to_fail_after_thousands_of_good_answers_is_found_after_a_few() -> None:
    alarm = Alarm()

    assert hear(alarm, (50_000, 100)) is None
    assert hear(alarm, (50_002, 102)) is None
    found = hear(alarm, (50_003, 103))
    assert found
    assert found.outcome is Outcome.FAIL
    assert found.metrics[0].failed
    assert "3 of 3 since the last look" in found.metrics[0].message
    assert found.window == 3


def test_what_a_look_has_seen_is_not_heard_again() -> None:
    alarm = Alarm()
    hear(alarm, (1000, 0))
    hear(alarm, (1010, 2))

    assert hear(alarm, (1010, 2), look=3) is None
    assert hear(alarm, (1012, 4), look=3) is None
    assert hear(alarm, (1013, 5), look=3) is not None


def test_a_new_window_is_heard_from_its_start_and_one_that_was_taken_over_from_then_on() -> None:
    assert hear(Alarm(), (5, 5), look=1) is not None
    assert hear(Alarm(), (5, 5), look=2) is None


def test_counts_that_went_away_with_a_server_alarm_nobody() -> None:
    alarm = Alarm()
    hear(alarm, (1000, 50))

    assert hear(alarm, (600, 40)) is None
    assert hear(alarm, (1001, 60)) is None  # of one request, one at most


def test_an_outage_of_both_versions_is_inconclusive_unless_the_baseline_is_left_out() -> None:
    outage = hear(Alarm(), (100, 60), (1900, 900), look=1)

    assert outage
    assert (outage.outcome, outage.metrics[0].reason) == (Outcome.INCONCLUSIVE, BASELINE_UNHEALTHY)
    assert hear(Alarm(), (100, 60), (60, 1), look=1) is None  # it may be the beginning of one
    assert hear(Alarm(), (100, 60), (100, 1), look=1) is not None
    without = hear(Alarm(), (100, 60), (1900, 900), look=1, plan=replace(PLAN, skip_baseline=True))
    assert without
    assert without.outcome is Outcome.FAIL
    window = Window(3, {"canary": ArmCounts(100, 60), "stable": ArmCounts(1900, 900)})
    baking = Alarm().hear(PLAN, 1, window, Look(1, 9.0, 0.1), baking=True)
    assert baking
    assert baking.outcome is Outcome.FAIL


@pytest.mark.parametrize("step", [0, 1, 2])
def test_copies_that_disagree_are_heard_in_shadow(step: int) -> None:
    window = Window(3, {"shadow": ArmCounts(100, compared=100, disagreed=60)})
    found = Alarm().hear(PLAN, step, window, Look(1, 9.0, 0.1))

    assert (found is not None) is (step == 0)


def test_a_dry_run_alarms_nobody() -> None:
    dry = replace(PLAN, metrics=(replace(PLAN.metrics[0], dry_run=True),))

    assert hear(Alarm(), (100, 100), look=1, plan=dry) is None


def test_luck_seldom_looks_like_evidence_however_often_one_looks() -> None:
    drawn = random.Random(8)  # noqa: S311 - a seed, not a secret
    alpha, share, alarms = 0.1, 0.05, 0
    for _ in range(400):
        errors = 0
        for requests in range(1, 800):
            failed = drawn.random() < share
            errors += failed
            if failed and sequential_evidence(errors, requests, share) > math.log(1 / alpha):
                alarms += 1
                break

    assert 0 < alarms / 400 < alpha
