import math
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from mlx_platform.serving.rollout.binomial import sequential_evidence
from mlx_platform.serving.rollout.counts import Arm, ArmCounts, LatencyHistogram, Moments, Window
from mlx_platform.serving.rollout.judge import BASELINE_UNHEALTHY, judge
from mlx_platform.serving.rollout.looks import Look, Reading, planned_looks
from mlx_platform.serving.rollout.plan import AbRule, MetricRule, Plan, Step
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict

ERRORS = MetricRule("errors", "proportion", "errors", max=0.01)
AGREEMENT = MetricRule("agreement", "proportion", "disagree", max=0.02, on="shadow")
P99 = MetricRule("p99", "latency_ratio", on="weight")
QUEUE = MetricRule("queue", "prometheus", query="q", address="http://h", max=10.0)
CLICKED = MetricRule("clicked", "business", "clicked", max_drop=0.05, on="weight")

TENTH = Look(1, 30.0, 0.1)
"""One of ten planned looks: a metric with alpha 1 % may spend 0.1 % at it."""

STEPS = (
    Step("shadow", 100.0, 300, 0.0, 600.0),
    Step("weight", 5.0, 300, 0.0, 600.0),
    Step("pause"),
    Step("weight", 100.0, bake_s=600.0),
)


def plan(*rules: MetricRule, **changes: Any) -> Plan:
    return replace(Plan(steps=STEPS, metrics=rules), **changes)


def counted(requests: int, errors: int = 0, *, times: LatencyHistogram | None = None) -> ArmCounts:
    return ArmCounts(requests, errors, times or LatencyHistogram())


def look_at(
    the_plan: Plan,
    *,
    step: int = 1,
    look: Look = TENTH,
    history: StepVerdict | None = None,
    baking: bool = False,
    **arms: ArmCounts,
) -> StepVerdict:
    known: dict[str, Arm] = {"canary": "canary", "stable": "stable", "shadow": "shadow"}
    window = Window(7, {known[name]: counts for name, counts in arms.items()})
    return judge(the_plan, step, window, look, history, baking=baking)


def metric(verdict: StepVerdict, index: int = 0) -> MetricVerdict:
    return verdict.metrics[index]


# Errors


@pytest.mark.parametrize(
    ("requests", "errors"),
    [(5, 2), (10, 3), (20, 4), (50, 5), (100, 6), (200, 9), (300, 11), (500, 14), (1000, 22)],
)
def test_errors_fail_from_the_count_on_that_is_no_luck(requests: int, errors: int) -> None:
    healthy = counted(10_000)

    assert look_at(plan(ERRORS), canary=counted(requests, errors), stable=healthy).outcome is Outcome.FAIL
    assert (
        look_at(plan(ERRORS), canary=counted(requests, errors - 1), stable=healthy).outcome
        is not Outcome.FAIL
    )


@pytest.mark.parametrize(
    ("errors", "requests"), [(0, 299), (1, 473), (2, 628), (3, 773), (4, 913), (5, 1049)]
)
def test_errors_pass_from_the_number_of_requests_on_that_shows_it(errors: int, requests: int) -> None:
    every = plan(ERRORS, steps=(replace(STEPS[1], min_requests=1),))

    assert look_at(every, step=0, canary=counted(requests, errors)).outcome is Outcome.PASS
    assert look_at(every, step=0, canary=counted(requests - 1, errors)).outcome is Outcome.INCONCLUSIVE


def test_nothing_passes_below_the_requests_that_the_step_needs() -> None:
    many = plan(ERRORS, steps=(replace(STEPS[1], min_requests=5000),))

    found = look_at(many, step=0, canary=counted(4999))
    assert (found.outcome, metric(found).reason) == (Outcome.INCONCLUSIVE, "too_few")
    assert look_at(many, step=0, canary=counted(5000)).outcome is Outcome.PASS


@pytest.mark.parametrize("stable", [0, 100_000])
def test_no_requests_are_no_data_and_never_a_pass(stable: int) -> None:
    assert look_at(plan(ERRORS), stable=counted(stable)).outcome is Outcome.NO_DATA
    assert look_at(plan(ERRORS), canary=counted(0), stable=counted(stable)).outcome is Outcome.NO_DATA


def test_one_error_among_few_requests_neither_fails_nor_passes() -> None:
    for requests in (1, 2, 20):
        assert look_at(plan(ERRORS), canary=counted(requests, 1)).outcome is Outcome.INCONCLUSIVE


def test_a_version_at_the_very_limit_neither_fails_nor_passes() -> None:
    assert look_at(plan(ERRORS), canary=counted(10_000, 100)).outcome is Outcome.INCONCLUSIVE


def test_the_measured_value_stands_beside_its_limit() -> None:
    found = metric(look_at(plan(ERRORS), canary=counted(200, 9), stable=counted(1000)))

    assert "4.50% errors, 9 of 200; at most 1.00%" in found.message
    assert (found.measured, found.limit) == (0.045, 0.01)
    assert found.numbers["level"] == pytest.approx(0.001)


def test_a_stable_version_that_fails_the_same_test_leaves_the_step_inconclusive() -> None:
    both = look_at(plan(ERRORS), canary=counted(500, 40), stable=counted(9500, 700))
    only_stable = look_at(plan(ERRORS), canary=counted(500, 0), stable=counted(9500, 700))

    for found in (both, only_stable):
        assert found.outcome is Outcome.INCONCLUSIVE
        assert metric(found).reason == BASELINE_UNHEALTHY
    without = look_at(plan(ERRORS, skip_baseline=True), canary=counted(500, 40), stable=counted(9500, 700))
    assert without.outcome is Outcome.FAIL


def test_a_few_errors_of_the_stable_version_excuse_nothing() -> None:
    assert look_at(plan(ERRORS), canary=counted(500, 40), stable=counted(9500, 110)).outcome is Outcome.FAIL


def test_a_look_after_the_planned_ones_needs_more_to_fail() -> None:
    schedule = planned_looks(30, 600)
    planned, later = schedule.look(10, 600.0), schedule.look(16, 600.0 * 64)

    assert look_at(plan(ERRORS), look=planned, canary=counted(100, 6)).outcome is Outcome.FAIL
    assert look_at(plan(ERRORS), look=later, canary=counted(100, 6)).outcome is Outcome.INCONCLUSIVE
    assert look_at(plan(ERRORS), look=later, canary=counted(100, 8)).outcome is Outcome.FAIL


# Latches


def test_a_metric_that_failed_stays_failed_however_good_it_becomes() -> None:
    first = look_at(plan(ERRORS), canary=counted(100, 6))
    later = look_at(plan(ERRORS), history=first, canary=counted(100_000, 6))
    latest = look_at(plan(ERRORS), history=later, canary=counted(200_000, 6))

    assert later.outcome is latest.outcome is Outcome.FAIL
    assert metric(latest).message == metric(later).message == f"It failed before: {metric(first).message}"
    assert look_at(plan(ERRORS), history=later).outcome is Outcome.FAIL  # nor by silence


def test_another_window_knows_nothing_of_it() -> None:
    first = replace(look_at(plan(ERRORS), canary=counted(100, 6)), window=6)

    assert look_at(plan(ERRORS), history=first, canary=counted(100_000, 6)).outcome is Outcome.PASS


def test_a_dry_run_is_recorded_and_decides_nothing() -> None:
    dry = replace(ERRORS, name="dry", max=0.001, dry_run=True)
    found = look_at(plan(ERRORS, dry), canary=counted(10_000, 50))

    assert found.outcome is Outcome.PASS
    assert metric(found, 1).outcome is Outcome.FAIL
    assert metric(found, 1).dry_run
    later = look_at(plan(ERRORS, dry), history=found, canary=counted(10_000, 50))
    assert (later.outcome, metric(later, 1).dry_run) == (Outcome.PASS, True)
    assert look_at(plan(dry), canary=counted(10_000, 50)).outcome is Outcome.NO_DATA


# Agreement


def test_copies_that_disagree_fail_the_shadow_and_are_not_asked_for_later() -> None:
    copies = ArmCounts(requests=500, compared=500, disagreed=40)

    assert look_at(plan(ERRORS, AGREEMENT), step=0, shadow=copies).outcome is Outcome.FAIL
    assert len(look_at(plan(ERRORS, AGREEMENT), step=1, shadow=copies).metrics) == 1


def test_copies_pass_when_enough_of_them_were_compared() -> None:
    agree = plan(AGREEMENT)

    assert look_at(agree, step=0, shadow=ArmCounts(500, compared=500, disagreed=3)).outcome is Outcome.PASS
    assert look_at(agree, step=0, shadow=ArmCounts(500, compared=299)).outcome is Outcome.INCONCLUSIVE
    assert look_at(agree, step=0, shadow=ArmCounts(500)).outcome is Outcome.NO_DATA


def test_mirrored_copies_are_judged_beside_a_weight() -> None:
    mirrored = plan(ERRORS, replace(AGREEMENT, on="any"), mirror=10.0)
    found = look_at(mirrored, canary=counted(500), shadow=ArmCounts(500, compared=500, disagreed=40))

    assert [entry.outcome for entry in found.metrics] == [Outcome.PASS, Outcome.FAIL]


def test_errors_of_copies_count_in_shadow() -> None:
    assert look_at(plan(ERRORS), step=0, shadow=counted(100, 6)).outcome is Outcome.FAIL


# Latency


def drawn(requests: int, *, median_ms: float = 20.0, seed: int = 1, slow: float = 0.0) -> LatencyHistogram:
    generator, found = random.Random(seed), LatencyHistogram()  # noqa: S311 - a seed, not a secret
    for _ in range(requests):
        factor = 10.0 if generator.random() < slow else 1.0
        found.observe(factor * median_ms / 1000 * generator.lognormvariate(0.0, 0.5))
    return found


def times(requests: int, **how: Any) -> ArmCounts:
    return counted(requests, times=drawn(requests, **how))


def test_latency_without_requests_on_both_arms_is_no_data() -> None:
    assert look_at(plan(P99), canary=times(500)).outcome is Outcome.NO_DATA
    assert look_at(plan(P99), stable=times(500)).outcome is Outcome.NO_DATA


def test_a_version_as_fast_passes_once_it_has_its_requests() -> None:
    assert look_at(plan(P99), canary=times(400), stable=times(900, seed=2)).outcome is Outcome.PASS
    assert look_at(plan(P99), canary=times(250), stable=times(900, seed=2)).outcome is Outcome.INCONCLUSIVE
    assert look_at(plan(P99), canary=times(400), stable=times(20, seed=2)).outcome is Outcome.INCONCLUSIVE


def test_a_version_twice_as_slow_fails_by_its_ranks_from_fifty_requests_on() -> None:
    found = look_at(plan(P99), canary=times(80, median_ms=40.0), stable=times(900, seed=2))

    assert (found.outcome, metric(found).reason) == (Outcome.FAIL, "slower")
    few = look_at(plan(P99), canary=times(49, median_ms=400.0), stable=times(900, seed=2))
    assert few.outcome is Outcome.INCONCLUSIVE


def test_a_version_that_is_a_fifth_slower_does_not_fail_by_its_ranks() -> None:
    found = look_at(plan(P99), canary=times(900, median_ms=24.0), stable=times(900, seed=2))

    assert found.outcome is Outcome.PASS
    assert metric(found).numbers["p_slower"] > 0.001


def test_a_plan_that_allows_a_longer_tail_allows_the_rest_to_be_slower_too() -> None:
    arms = {"canary": times(900, median_ms=28.0), "stable": times(900, seed=2)}

    assert metric(look_at(plan(P99), **arms)).reason == "slower"
    assert look_at(plan(replace(P99, max_ratio=3.0)), **arms).outcome is Outcome.PASS
    slower = look_at(
        plan(replace(P99, max_ratio=3.0)), canary=times(900, median_ms=40.0), stable=arms["stable"]
    )
    assert metric(slower).message.endswith("most requests are more than 1.7 x as slow.")


def test_a_median_that_is_longer_by_nothing_that_matters_fails_nobody() -> None:
    arms = {"canary": times(900, median_ms=2.0), "stable": times(900, median_ms=0.5, seed=2)}

    assert look_at(plan(P99), **arms).outcome is not Outcome.FAIL
    assert metric(look_at(plan(replace(P99, min_delta_ms=1.0)), **arms)).reason == "slower"


def test_a_slow_tail_fails_at_the_second_look_that_sees_it() -> None:
    arms = {"canary": times(500, slow=0.05), "stable": times(900, seed=2)}
    first = look_at(plan(P99), **arms)
    second = look_at(plan(P99), history=first, **arms)

    assert (first.outcome, metric(first).streak) == (Outcome.INCONCLUSIVE, 1)
    assert (second.outcome, metric(second).reason) == (Outcome.FAIL, "tail")
    again = look_at(plan(P99), history=look_at(plan(P99), canary=times(400), stable=times(900)), **arms)
    assert again.outcome is Outcome.INCONCLUSIVE  # a good look between them starts over


def test_a_slow_tail_of_fewer_than_three_hundred_requests_is_not_believed() -> None:
    arms = {"canary": times(299, slow=0.2), "stable": times(900, seed=2)}

    assert metric(look_at(plan(P99), **arms)).streak == 0
    assert look_at(plan(P99), history=look_at(plan(P99), **arms), **arms).outcome is Outcome.INCONCLUSIVE


def test_twice_as_long_is_nothing_where_it_is_two_milliseconds() -> None:
    arms = {"canary": times(500, median_ms=0.4, slow=0.05), "stable": times(900, median_ms=0.4, seed=2)}
    found = look_at(plan(P99), **arms)

    assert metric(found).measured is not None
    assert metric(found).measured > 1.5
    assert found.outcome is Outcome.PASS
    assert "nothing that matters" in metric(found).message


def test_times_are_not_compared_where_the_baseline_is_left_out() -> None:
    found = look_at(
        plan(ERRORS, P99, skip_baseline=True), canary=times(500, median_ms=200.0), stable=times(900)
    )

    assert [entry.name for entry in found.metrics] == ["errors"]


# Prometheus


def reading(value: float | None = None, error: str = "") -> Look:
    return Look(1, 30.0, 0.1, readings={"queue": Reading(value, error)})


def test_a_number_from_outside_fails_when_two_looks_see_it_beyond_its_limit() -> None:
    canary = counted(500)
    first = look_at(plan(QUEUE), look=reading(11.0), canary=canary)
    second = look_at(plan(QUEUE), look=reading(11.0), history=first, canary=canary)

    assert (first.outcome, second.outcome) == (Outcome.INCONCLUSIVE, Outcome.FAIL)
    assert look_at(plan(QUEUE), look=reading(9.0), canary=canary).outcome is Outcome.PASS
    assert "It is 11; at most 10" in metric(first).message


@pytest.mark.parametrize(("value", "expected"), [(0.5, Outcome.FAIL), (1.0, Outcome.PASS)])
def test_a_number_from_outside_may_have_a_least(value: float, expected: Outcome) -> None:
    rule = replace(QUEUE, max=None, min=1.0, confirm_looks=1)

    assert look_at(plan(rule), look=reading(value), canary=counted(500)).outcome is expected


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_source_that_has_no_number_is_no_data(value: float | None) -> None:
    assert look_at(plan(QUEUE), look=reading(value), canary=counted(500)).outcome is Outcome.NO_DATA


def test_a_good_number_without_requests_is_no_data_and_with_too_few_no_pass() -> None:
    assert look_at(plan(QUEUE), look=reading(1.0)).outcome is Outcome.NO_DATA
    assert look_at(plan(QUEUE), look=reading(1.0), canary=counted(20)).outcome is Outcome.INCONCLUSIVE


def test_a_source_that_is_away_is_an_error_counted_in_a_row() -> None:
    history = None
    for number in range(1, 6):
        history = look_at(plan(QUEUE), look=reading(error="refused"), history=history, canary=counted(500))
        assert history.outcome is Outcome.ERROR
        assert metric(history).streak == number
    between = look_at(plan(QUEUE), look=reading(1.0), history=history, canary=counted(500))
    after = look_at(plan(QUEUE), look=reading(error="refused"), history=between, canary=counted(500))

    assert (between.outcome, metric(after).streak) == (Outcome.PASS, 1)
    assert look_at(plan(QUEUE), canary=counted(500)).outcome is Outcome.ERROR  # nobody asked it


# Outcomes


def told(count: int, share: float) -> ArmCounts:
    found = ArmCounts(requests=2 * count)
    successes = round(count * share)
    mean = successes / count
    found.outcomes["clicked"] = Moments(count, mean, successes * (1 - mean))
    return found


def test_a_business_metric_fails_passes_and_waits() -> None:
    stable = told(5000, 0.30)

    def outcome(count: int, share: float) -> Outcome:
        return look_at(plan(CLICKED), canary=told(count, share), stable=stable).outcome

    assert outcome(2000, 0.30) is Outcome.PASS
    assert outcome(2000, 0.15) is Outcome.FAIL
    assert outcome(2000, 0.25) is Outcome.INCONCLUSIVE
    assert outcome(40, 0.0) is Outcome.INCONCLUSIVE
    assert look_at(plan(CLICKED), canary=counted(5000), stable=stable).outcome is Outcome.NO_DATA


@pytest.mark.parametrize("limit", [1e-6, 0.99])
def test_a_look_after_a_hundred_years_is_a_look(limit: float) -> None:
    strict = replace(ERRORS, max=limit, alpha=1e-9)
    look = planned_looks(30, 600).look(10**6, 3e9)
    found = look_at(
        plan(strict, P99, replace(CLICKED, alpha=1e-9)),
        look=look,
        canary=told(500, 0.3),
        stable=told(500, 0.3),
    )

    assert found.metrics[0].outcome in {Outcome.INCONCLUSIVE, Outcome.PASS}
    assert found.metrics[2].outcome is Outcome.PASS
    assert sequential_evidence(5, 10**6, limit) < math.inf


def test_lower_may_be_better() -> None:
    lower = replace(CLICKED, direction="lower")

    assert look_at(plan(lower), canary=told(2000, 0.15), stable=told(5000, 0.3)).outcome is Outcome.PASS
    assert look_at(plan(lower), canary=told(2000, 0.45), stable=told(5000, 0.3)).outcome is Outcome.FAIL


# Steps


def test_the_worst_metric_decides() -> None:
    # p99 has no data, errors pass, the source is away.
    found = look_at(plan(ERRORS, P99, QUEUE), look=reading(error="away"), canary=counted(500))
    assert [entry.outcome for entry in found.metrics] == [Outcome.PASS, Outcome.NO_DATA, Outcome.ERROR]
    assert found.outcome is Outcome.ERROR
    assert found.deciding is metric(found, 2)

    failing = look_at(plan(ERRORS, QUEUE), look=reading(error="away"), canary=counted(500, 50))
    assert failing.outcome is Outcome.FAIL
    assert failing.deciding is metric(failing)


def test_a_pause_is_judged_like_the_step_before_it() -> None:
    assert look_at(plan(ERRORS, AGREEMENT), step=2, canary=counted(100, 6)).outcome is Outcome.FAIL


def test_while_baking_the_candidate_is_compared_with_what_was_before() -> None:
    baseline = times(900, seed=2)
    slow = look_at(plan(ERRORS, P99), step=3, baking=True, canary=times(500, median_ms=60.0), stable=baseline)

    assert slow.outcome is Outcome.FAIL
    assert look_at(plan(ERRORS), step=3, baking=True, canary=counted(100, 6), stable=baseline).outcome is (
        Outcome.FAIL
    )
    sick = counted(1000, 500)  # before the promotion, which excuses nothing after it
    failing = look_at(plan(ERRORS), step=3, baking=True, canary=counted(100, 6), stable=sick)
    assert failing.outcome is Outcome.FAIL
    fine = look_at(plan(ERRORS, P99, AGREEMENT), step=3, baking=True, canary=times(400), stable=baseline)
    assert (fine.outcome, len(fine.metrics)) == (Outcome.PASS, 2)


def test_in_an_ab_test_the_other_metrics_only_guard() -> None:
    test = plan(ERRORS, ab=AbRule("clicked", base=0.3, min_effect=0.1, required=(1000, 1000)))
    stable, candidate = told(1000, 0.3), told(1000, 0.4)

    candidate.errors = 20  # of 2,000: neither above 1 % nor below it
    decided = look_at(test, canary=candidate, stable=stable)
    assert [entry.outcome for entry in decided.metrics] == [Outcome.INCONCLUSIVE, Outcome.PASS]
    assert (decided.outcome, metric(decided, 1).reason) == (Outcome.PASS, "candidate")
    candidate.errors = 60
    assert look_at(test, canary=candidate, stable=stable).outcome is Outcome.FAIL
    candidate.errors = 0
    assert look_at(test, canary=candidate, stable=told(999, 0.3)).outcome is Outcome.INCONCLUSIVE


# Many rounds, from a seed


def failed(rate: float, requests: int, rounds: int) -> float:
    """The share of steps of ten looks that fail, for a candidate with a true share of errors."""
    generator = random.Random(20261201)  # noqa: S311 - a seed, not a secret
    schedule, count = planned_looks(60, 600), 0
    for _ in range(rounds):
        errors, verdict = 0, None
        for number in range(1, 11):
            errors += sum(generator.random() < rate for _ in range(requests))
            look = schedule.look(number, 60.0 * number)
            verdict = look_at(
                plan(ERRORS), look=look, history=verdict, canary=counted(requests * number, errors)
            )
            if verdict.outcome is Outcome.FAIL:
                count += 1
                break
    return count / rounds


@pytest.mark.parametrize(
    ("rate", "least", "most"), [(0.002, 0.0, 0.0), (0.005, 0.0, 0.01), (0.03, 0.6, 0.8), (0.05, 0.98, 1.0)]
)
def test_healthy_candidates_are_kept_and_failing_ones_found(rate: float, least: float, most: float) -> None:
    assert least <= failed(rate, 50, 100) <= most


def test_a_candidate_as_fast_as_the_stable_version_is_hardly_ever_taken_for_slow() -> None:
    schedule, count = planned_looks(60, 600), 0
    for seed in range(60):
        ours, theirs, verdict = LatencyHistogram(), LatencyHistogram(), None
        for number in range(1, 11):
            ours.add(drawn(50, seed=1000 * seed + 2 * number))
            theirs.add(drawn(50, seed=1000 * seed + 2 * number + 1))
            arms = {"canary": counted(50 * number, times=ours), "stable": counted(50 * number, times=theirs)}
            verdict = look_at(plan(P99), look=schedule.look(number, 0.0), history=verdict, **arms)
        assert verdict
        count += verdict.outcome is Outcome.FAIL

    assert count <= 1


def test_a_server_and_a_command_judge_without_scientific_libraries() -> None:
    code = (
        "import sys; import mlx_platform.serving.rollout.machine, mlx_platform.serving.rollout.alarm, "
        "mlx_platform.serving.rollout.business; "
        "print(sorted({'numpy', 'scipy', 'pandas', 'sklearn', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
