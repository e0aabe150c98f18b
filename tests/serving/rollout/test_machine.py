from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mlx_platform.core.errors import ConflictError
from mlx_platform.serving.rollout.judge import BASELINE_UNHEALTHY
from mlx_platform.serving.rollout.machine import (
    Command,
    Production,
    Request,
    Transition,
    begin,
    next_state,
)
from mlx_platform.serving.rollout.plan import AbRule, MetricRule, Plan, Step
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict, failure

START = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
STABLE, CANDIDATE = Production(1), Production(2, "r1")
SHADOW, FIVE, MANUAL, SPAN, HALF, ALL = range(6)
PLAN = Plan(
    steps=(
        Step("shadow", 100.0, 300, 60.0, 600.0),
        Step("weight", 5.0, 300, 60.0, 600.0),
        Step("pause"),
        Step("pause", max_duration_s=300.0),
        Step("weight", 50.0, 300, 60.0, 600.0),
        Step("weight", 100.0, bake_s=900.0),
    ),
    metrics=(MetricRule("errors", of="errors", max=0.01),),
    deadline_s=7200.0,
)


def started(plan: Plan = PLAN) -> Rollout:
    first = begin(
        plan, id="r1", model="m", stable=1, candidate=2, stable_digest="s", candidate_digest="c",
        now=START, actor="ann",
    )  # fmt: skip
    return replace(first, event=1)


def at(step: int, plan: Plan = PLAN) -> Rollout:
    """The rollout at one of its steps, in which it has just arrived."""
    rollout = started(plan)
    for _ in range(step):
        rollout = ask(rollout, "advance").rollout
    return rollout


def baking(plan: Plan = PLAN) -> Rollout:
    moved = next_state(at(ALL, plan), now=START, production=CANDIDATE)
    assert moved
    return moved.rollout


def found(rollout: Rollout, outcome: Outcome, **changes: Any) -> StepVerdict:
    metric = MetricVerdict("errors", outcome, "9 of 100; at most 1 %", **changes)
    return StepVerdict(outcome, (metric,), rollout.window, 1)


def after(
    rollout: Rollout,
    seconds: float,
    outcome: Outcome | None = None,
    production: Production | None = None,
    **changes: Any,
) -> Transition | None:
    if production is None:
        production = CANDIDATE if rollout.state == "BAKING" else STABLE
    verdict = found(rollout, outcome, **changes) if outcome else None
    now = rollout.step_since + timedelta(seconds=seconds)
    return next_state(rollout, now=now, production=production, verdict=verdict)


def ask(
    rollout: Rollout, command: Command, *, production: Production | None = None, seconds: float = 0.0
) -> Transition:
    moved = may_ask(rollout, command, production=production, seconds=seconds)
    assert moved
    return moved


def may_ask(
    rollout: Rollout, command: Command, *, production: Production | None = None, seconds: float = 0.0
) -> Transition | None:
    if production is None:
        production = CANDIDATE if rollout.state == "BAKING" else STABLE
    request = Request(command, "bob", "because")
    now = rollout.state_since + timedelta(seconds=seconds)
    return next_state(rollout, now=now, production=production, request=request)


def moved(transition: Transition | None) -> Rollout:
    assert transition
    return transition.rollout


# Starting


def test_a_rollout_begins_with_its_first_step() -> None:
    shadow = begin(
        PLAN, id="r1", model="m", stable=1, candidate=2, stable_digest="s", candidate_digest="c",
        now=START, actor="ann",
    )  # fmt: skip
    assert (shadow.state, shadow.step, shadow.window, shadow.event) == ("SHADOW", 0, 0, 0)
    assert shadow.split == (0.0, 100.0)

    weight = started(replace(PLAN, steps=PLAN.steps[FIVE:], mirror=10.0))
    assert (weight.state, weight.split) == ("STEP", (5.0, 10.0))


# A step that is held


def test_a_step_that_passes_goes_on_once_it_has_lasted() -> None:
    shadow = started()

    assert after(shadow, 59, Outcome.PASS) is None
    step = moved(after(shadow, 60, Outcome.PASS))
    assert (step.state, step.step, step.split, step.cause) == ("STEP", FIVE, (5.0, 0.0), "passed")
    assert step.step_since == START + timedelta(seconds=60)
    assert step.verdicts == (found(shadow, Outcome.PASS).metrics[0].document(),)


def test_each_step_has_a_window_of_its_own_and_old_verdicts_say_nothing_about_it() -> None:
    shadow = started()
    step = moved(after(shadow, 60, Outcome.PASS))

    assert step.window == shadow.window + 1
    old = found(shadow, Outcome.PASS)
    assert (
        next_state(step, now=step.step_since + timedelta(seconds=100), production=STABLE, verdict=old) is None
    )
    failed = replace(old, outcome=Outcome.FAIL)
    assert next_state(step, now=START, production=STABLE, verdict=failed) is None


@pytest.mark.parametrize("step", [SHADOW, FIVE, HALF])
@pytest.mark.parametrize("outcome", [None, Outcome.INCONCLUSIVE, Outcome.NO_DATA, Outcome.ERROR])
def test_nothing_but_a_pass_advances_a_step(step: int, outcome: Outcome | None) -> None:
    rollout = at(step)

    assert after(rollout, 599, outcome) is None
    late = moved(after(rollout, 600, outcome))
    assert (late.state, late.step) == ("PAUSED", step)


@pytest.mark.parametrize(
    ("outcome", "cause", "option"),
    [
        (Outcome.INCONCLUSIVE, "inconclusive", "on_inconclusive"),
        (Outcome.NO_DATA, "no_data", "on_no_data"),
        (None, "no_data", "on_no_data"),
        (Outcome.ERROR, "metric_error", "on_metric_error"),
    ],
)
def test_what_was_not_shown_in_time_pauses_with_the_weight_as_it_is_or_aborts(
    outcome: Outcome | None, cause: str, option: str
) -> None:
    paused = moved(after(at(FIVE), 600, outcome))
    assert (paused.state, paused.cause, paused.split) == ("PAUSED", cause, (5.0, 0.0))
    assert paused.window == at(FIVE).window  # it goes on being looked at

    strict = replace(PLAN, **{option: "abort"})
    aborted = after(at(FIVE, strict), 600, outcome)
    assert (moved(aborted).state, moved(aborted).cause) == ("ABORTED", cause)
    assert aborted
    assert aborted.effects == ()  # nothing is known against the version


def test_a_pass_that_comes_late_still_counts() -> None:
    assert moved(after(at(FIVE), 700, Outcome.PASS)).state == "PAUSED"  # the plan's own pause, step 3
    assert moved(after(at(FIVE), 700, Outcome.PASS)).cause == "step"


@pytest.mark.parametrize("step", [SHADOW, FIVE, HALF])
def test_a_failure_aborts_at_once_in_one_write_and_quarantines(step: int) -> None:
    transition = after(at(step), 1, Outcome.FAIL)

    aborted = moved(transition)
    assert (aborted.state, aborted.weight, aborted.shadow) == ("ABORTED", 0.0, 0.0)
    assert (aborted.cause, aborted.reason) == ("errors", "errors: 9 of 100; at most 1 %")
    assert transition
    assert transition.effects == ("quarantine",)
    assert not aborted.active


def test_a_failure_pauses_where_the_plan_says_so_and_only_once() -> None:
    trusting = replace(PLAN, on_fail="pause")
    paused = moved(after(at(FIVE, trusting), 1, Outcome.FAIL))

    assert (paused.state, paused.cause, paused.split) == ("PAUSED", "fail", (5.0, 0.0))
    assert after(paused, 2, Outcome.FAIL) is None
    assert moved(ask(paused, "resume")).state == "STEP"


def test_a_server_that_the_candidate_kills_is_a_failure() -> None:
    verdict = failure("server_died", "It ended twice.", window=at(FIVE).window)
    transition = next_state(at(FIVE), now=START, production=STABLE, verdict=verdict)

    assert (moved(transition).state, moved(transition).cause) == ("ABORTED", "server_died")


def test_a_source_that_is_away_more_often_in_a_row_than_it_may_pauses_before_the_time_is_over() -> None:
    assert after(at(FIVE), 1, Outcome.ERROR, streak=4) is None
    assert moved(after(at(FIVE), 1, Outcome.ERROR, streak=5)).cause == "metric_error"

    strict = at(FIVE, replace(PLAN, on_metric_error="abort", error_limit=0))
    assert moved(after(strict, 1, Outcome.ERROR, streak=1)).state == "ABORTED"
    dry = found(at(FIVE), Outcome.ERROR, streak=9, dry_run=True)
    assert next_state(at(FIVE), now=START, production=STABLE, verdict=dry) is None


def test_a_baseline_that_fails_itself_pauses_at_once_and_aborts_nothing() -> None:
    strict = replace(PLAN, on_inconclusive="abort")
    paused = moved(after(at(FIVE, strict), 1, Outcome.INCONCLUSIVE, reason=BASELINE_UNHEALTHY))

    assert (paused.state, paused.cause, paused.split) == ("PAUSED", BASELINE_UNHEALTHY, (5.0, 0.0))


# Deadline


def test_a_rollout_that_is_not_through_by_its_deadline_aborts() -> None:
    short = at(FIVE, replace(PLAN, deadline_s=300.0))

    assert after(short, 299, Outcome.INCONCLUSIVE) is None
    ended = after(short, 300, Outcome.INCONCLUSIVE)
    assert (moved(ended).state, moved(ended).cause) == ("ABORTED", "deadline")
    assert ended
    assert ended.effects == ()


def test_without_traffic_a_deadline_pauses_and_aborts_nothing() -> None:
    assert moved(after(at(FIVE, replace(PLAN, deadline_s=300.0)), 300, Outcome.NO_DATA)).cause == "no_data"


def test_pauses_do_not_count_towards_the_deadline() -> None:
    short = replace(PLAN, deadline_s=1000.0, steps=(*PLAN.steps[:2], *PLAN.steps[SPAN:]))
    paused = moved(after(at(FIVE, short), 100, Outcome.PASS))
    half = moved(after(paused, 50_000))

    assert after(ask(at(FIVE, short), "pause").rollout, 50_000, Outcome.INCONCLUSIVE) is None
    assert (half.state, half.held_s, half.progress_s(half.state_since)) == ("STEP", 50_000, 100)
    assert after(half, 500, Outcome.INCONCLUSIVE) is None


@pytest.mark.parametrize("command", ["resume", "advance"])
def test_somebody_who_lets_it_go_on_gives_it_the_whole_deadline_again(command: Command) -> None:
    plan = replace(PLAN, deadline_s=300.0, steps=(*PLAN.steps[:2], *PLAN.steps[HALF:]))
    paused = moved(after(at(FIVE, plan), 300, Outcome.NO_DATA))
    assert (paused.state, paused.cause) == ("PAUSED", "no_data")

    step = ask(paused, command, seconds=1000).rollout
    assert step.state == "STEP"
    assert after(step, 299, Outcome.NO_DATA) is None
    assert moved(after(step, 300, Outcome.INCONCLUSIVE)).reason == "It was not through after 5m."


# Pauses


def test_a_pause_of_the_plan_keeps_the_weight_and_ends_by_itself_where_it_says_when() -> None:
    passed = moved(after(at(FIVE), 60, Outcome.PASS))
    assert (passed.state, passed.step, passed.split) == ("PAUSED", MANUAL, (5.0, 0.0))
    assert after(passed, 10**6, Outcome.PASS) is None

    span = ask(passed, "resume").rollout
    assert (span.state, span.step) == ("PAUSED", SPAN)
    assert after(span, 299, Outcome.PASS) is None
    half = moved(after(span, 300, None))
    assert (half.state, half.step, half.split) == ("STEP", HALF, (50.0, 0.0))


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.NO_DATA, Outcome.ERROR])
def test_nothing_that_is_seen_ends_a_pause_that_somebody_must_end(outcome: Outcome) -> None:
    for rollout in (
        ask(at(FIVE), "pause").rollout,
        moved(after(at(FIVE), 600, Outcome.INCONCLUSIVE)),
        at(MANUAL),
    ):
        assert after(rollout, 10**6, outcome, streak=99) is None


@pytest.mark.parametrize(
    ("outcome", "changes", "cause"),
    [
        (Outcome.INCONCLUSIVE, {"reason": BASELINE_UNHEALTHY}, BASELINE_UNHEALTHY),
        (Outcome.ERROR, {"streak": 5}, "metric_error"),
    ],
)
def test_a_pause_in_which_something_goes_wrong_waits_for_somebody(
    outcome: Outcome, changes: dict[str, Any], cause: str
) -> None:
    paused = moved(after(at(SPAN), 1, outcome, **changes))

    assert (paused.state, paused.step, paused.cause, paused.split) == ("PAUSED", SPAN, cause, (5.0, 0.0))
    assert after(paused, 10**6, Outcome.PASS) is None
    strict = after(at(SPAN, replace(PLAN, on_metric_error="abort")), 1, Outcome.ERROR, streak=5)
    assert moved(strict).state == "ABORTED"


def test_resuming_a_pause_in_which_something_went_wrong_begins_that_pause_anew() -> None:
    trusting = at(SPAN, replace(PLAN, on_fail="pause"))
    for paused in (
        moved(after(trusting, 100, Outcome.FAIL)),
        moved(after(trusting, 100, Outcome.INCONCLUSIVE, reason=BASELINE_UNHEALTHY)),
    ):
        resumed = ask(paused, "resume", seconds=5).rollout
        assert (resumed.state, resumed.step, resumed.cause) == ("PAUSED", SPAN, "step")
        assert resumed.window == paused.window + 1
        assert after(resumed, 299) is None
        assert moved(after(resumed, 300)).step == HALF
        assert ask(paused, "advance").rollout.step == HALF


def test_a_failure_while_paused_aborts() -> None:
    for rollout in (
        ask(at(FIVE), "pause").rollout,
        moved(after(at(FIVE), 600, Outcome.NO_DATA)),
        at(MANUAL),
        at(SPAN),
    ):
        assert moved(after(rollout, 1, Outcome.FAIL)).state == "ABORTED"


def test_a_pause_that_somebody_asked_for_in_a_pause_of_the_plan_does_not_end_with_it() -> None:
    paused = ask(at(SPAN), "pause").rollout

    assert (paused.cause, after(paused, 10**6, None)) == ("manual", None)
    assert ask(paused, "resume").rollout.step == HALF


def test_a_resumed_step_begins_anew_with_fresh_counts_and_says_who() -> None:
    paused = ask(at(FIVE), "pause", seconds=30).rollout
    resumed = ask(paused, "resume", seconds=10).rollout

    assert paused.window == at(FIVE).window
    assert resumed.window == paused.window + 1
    assert (resumed.state, resumed.step, resumed.cause) == ("STEP", FIVE, "resumed")
    assert (resumed.actor, resumed.reason) == ("bob", "because")
    assert resumed.elapsed_s(resumed.state_since) == 0
    shadow = ask(ask(started(), "pause").rollout, "resume").rollout
    assert (shadow.state, shadow.split) == ("SHADOW", (0.0, 100.0))


# Commands


def test_what_is_so_already_is_no_transition() -> None:
    assert may_ask(at(FIVE), "resume") is None
    assert may_ask(ask(at(FIVE), "pause").rollout, "pause") is None
    assert may_ask(at(ALL), "advance") is None


def test_somebody_may_advance_any_step_without_evidence_and_is_named() -> None:
    rollout = ask(at(FIVE), "advance").rollout
    assert (rollout.step, rollout.cause, rollout.actor) == (MANUAL, "step", "bob")
    paused = moved(after(at(FIVE), 600, Outcome.NO_DATA))
    assert ask(paused, "advance").rollout.step == MANUAL
    promoted = ask(baking(), "advance")
    assert (promoted.rollout.state, promoted.rollout.cause, promoted.effects) == ("PROMOTED", "advanced", ())


@pytest.mark.parametrize("state", ["PROMOTING", "BAKING"])
def test_a_version_that_is_promoted_cannot_be_paused(state: str) -> None:
    rollout = at(ALL) if state == "PROMOTING" else baking()

    assert rollout.state == state
    with pytest.raises(ConflictError, match="promoted already"):
        may_ask(rollout, "pause")


@pytest.mark.parametrize("step", [SHADOW, FIVE, MANUAL, SPAN, HALF, ALL])
def test_an_abort_ends_every_step_without_a_quarantine(step: int) -> None:
    transition = ask(at(step), "abort")

    assert (transition.rollout.state, transition.rollout.weight) == ("ABORTED", 0.0)
    assert (transition.rollout.cause, transition.rollout.reason) == ("manual", "because")
    assert transition.effects == ()


def test_an_end_is_an_end() -> None:
    ended = ask(at(FIVE), "abort").rollout

    assert after(ended, 10**6, Outcome.PASS) is None
    assert after(ended, 10**6, Outcome.FAIL) is None
    assert after(ended, 1, Outcome.PASS, production=Production(9)) is None
    for command in ("pause", "resume", "advance", "abort"):
        with pytest.raises(ConflictError, match="has ended: ABORTED"):
            may_ask(ended, command)


# Promotion


def test_the_last_step_that_passes_promotes_and_keeps_what_the_stable_version_was_like() -> None:
    last = at(HALF)
    transition = next_state(
        last,
        now=START + timedelta(seconds=60),
        production=STABLE,
        verdict=found(last, Outcome.PASS),
        baseline={"n": 500},
    )

    promoting = moved(transition)
    assert transition
    assert (promoting.state, promoting.step, transition.effects) == ("PROMOTING", ALL, ("promote",))
    assert promoting.split == (50.0, 0.0)  # until the alias has moved
    assert after(promoting, 10**6, Outcome.FAIL) is None
    watched = moved(next_state(promoting, now=START, production=CANDIDATE))
    assert (watched.state, watched.split, watched.baseline) == ("BAKING", (0.0, 0.0), {"n": 500})
    assert watched.window == promoting.window + 1


def leaves(rollout: Rollout, counted: int, command: Command = "advance") -> Rollout:
    """What follows when somebody goes on from a window in which the stable version had so many requests."""
    request, baseline = Request(command, "bob"), {"n": counted} if counted else {}
    return moved(next_state(rollout, now=START, production=STABLE, request=request, baseline=baseline))


def test_a_pause_behind_the_last_weight_keeps_what_the_stable_version_was_like() -> None:
    plan = replace(PLAN, steps=(PLAN.steps[FIVE], Step("pause"), PLAN.steps[ALL]))
    first = at(0, plan)
    paused = moved(
        next_state(
            first,
            now=START + timedelta(seconds=60),
            production=STABLE,
            verdict=found(first, Outcome.PASS),
            baseline={"n": 400},
        )
    )
    assert paused.baseline == {"n": 400}
    assert leaves(paused, 0, "resume").baseline == {"n": 400}
    promoting = leaves(paused, 5000, "resume")
    assert (promoting.state, promoting.baseline) == ("PROMOTING", {"n": 5400})
    watched = moved(next_state(promoting, now=START, production=CANDIDATE, baseline={"n": 7}))
    assert watched.baseline == {"n": 5400}

    timed = replace(paused, plan=replace(plan, steps=(plan.steps[0], PLAN.steps[SPAN], plan.steps[-1])))
    now = paused.state_since + timedelta(seconds=300)
    over = next_state(timed, now=now, production=STABLE, baseline={"n": 1})
    assert moved(over).baseline == {"n": 401}


def test_steps_that_somebody_hurries_through_keep_what_was_measured_before_them() -> None:
    five = leaves(started(), 1000)
    assert five.baseline == {"n": 1000}
    assert leaves(five, 0).baseline == {"n": 1000}
    assert leaves(five, 299).baseline == {"n": 1000}  # too few to compare a tail with
    assert leaves(five, 300).baseline == {"n": 300}  # enough, and newer
    assert leaves(leaves(started(), 10), 20).baseline == {"n": 20}
    assert leaves(leaves(at(SPAN), 0), 0).baseline is None


def test_a_stable_version_that_failed_itself_is_compared_with_only_where_there_is_no_other() -> None:
    sick = moved(after(leaves(started(), 400), 1, Outcome.INCONCLUSIVE, reason=BASELINE_UNHEALTHY))

    assert leaves(sick, 5000).baseline == {"n": 400}
    assert leaves(replace(sick, baseline=None), 5000).baseline == {"n": 5000}


def test_a_promotion_of_which_nothing_is_known_takes_what_was_counted_until_it() -> None:
    watched = next_state(at(ALL), now=START, production=CANDIDATE, baseline={"n": 7})

    assert moved(watched).baseline == {"n": 7}


def test_a_plan_that_ends_without_a_bake_promotes_as_well() -> None:
    for steps in (PLAN.steps[:2], (*PLAN.steps[:2], Step("weight", 100.0))):
        promoting = moved(after(at(FIVE, replace(PLAN, steps=steps)), 60, Outcome.PASS))
        assert promoting.state == "PROMOTING"
        assert moved(next_state(promoting, now=START, production=CANDIDATE)).state == "PROMOTED"


def test_a_promotion_that_somebody_prevented_ends_the_rollout() -> None:
    assert moved(after(at(ALL), 1, production=Production(3))).state == "SUPERSEDED"
    # Somebody else moved the alias to the candidate: then that is what counts, not this rollout.
    assert moved(after(at(ALL), 1, production=Production(2))).state == "SUPERSEDED"
    assert after(at(ALL), 1, production=STABLE) is None  # still to be done


def test_baking_ends_with_its_time_and_not_before() -> None:
    assert after(baking(), 899, Outcome.PASS) is None
    assert after(baking(), 899, Outcome.NO_DATA) is None
    promoted = moved(after(baking(), 900, None))
    assert (promoted.state, promoted.cause, promoted.active) == ("PROMOTED", "baked", False)


@pytest.mark.parametrize("on_fail", ["abort", "pause"])
def test_a_failure_while_baking_rolls_back_and_quarantines(on_fail: str) -> None:
    transition = after(baking(replace(PLAN, on_fail=on_fail)), 899, Outcome.FAIL)

    assert (moved(transition).state, moved(transition).cause) == ("ROLLED_BACK", "errors")
    assert transition
    assert transition.effects == ("roll_back", "quarantine")


def test_an_abort_while_baking_rolls_back() -> None:
    transition = ask(baking(), "abort")

    assert (transition.rollout.state, transition.effects) == ("ROLLED_BACK", ("roll_back",))


def test_an_abort_between_the_promotion_and_its_event_rolls_back() -> None:
    transition = ask(at(ALL), "abort", production=CANDIDATE)

    assert (transition.rollout.state, transition.effects) == ("ROLLED_BACK", ("roll_back",))
    assert transition.rollout.event == at(ALL).event  # one write


# Processes that died, and others who move the alias


@pytest.mark.parametrize("holder", [None, 2, 3])
@pytest.mark.parametrize("step", [SHADOW, FIVE, MANUAL, HALF])
def test_whoever_moves_the_alias_ends_the_rollout(step: int, holder: int | None) -> None:
    transition = after(at(step), 60, Outcome.PASS, production=Production(holder))

    assert (moved(transition).state, moved(transition).weight) == ("SUPERSEDED", 0.0)
    assert transition
    assert transition.effects == ()
    assert may_ask(at(step), "advance", production=Production(holder)) == replace(
        transition, rollout=replace(transition.rollout, state_since=START, held_s=0.0)
    )


@pytest.mark.parametrize("production", [Production(1), Production(3), Production(None)])
def test_whoever_moves_the_alias_while_baking_ends_it_too(production: Production) -> None:
    assert moved(after(baking(), 900, Outcome.PASS, production=production)).state == "SUPERSEDED"


def test_a_roll_back_whose_writer_died_is_finished_by_the_next() -> None:
    transition = after(baking(), 10, None, production=Production(1, "r1"))

    assert moved(transition).state == "ROLLED_BACK"
    assert transition
    assert transition.effects == ("quarantine",)


# Plans that promote nothing


def test_a_plan_of_shadow_alone_is_completed() -> None:
    done = after(started(replace(PLAN, steps=PLAN.steps[:1])), 60, Outcome.PASS)

    assert (moved(done).state, moved(done).split) == ("COMPLETED", (0.0, 0.0))
    assert done
    assert done.effects == ()


def test_an_ab_test_ends_with_its_answer_and_promotes_nothing() -> None:
    rule = AbRule("clicked", base=0.1, min_effect=0.01, required=(100, 100))
    test = started(replace(PLAN, steps=(Step("weight", 50.0, 1, 0.0, 3600.0),), ab=rule))

    assert after(test, 10, Outcome.INCONCLUSIVE) is None
    done = moved(after(test, 10, Outcome.PASS))
    assert (done.state, done.split, done.reason) == ("COMPLETED", (0.0, 0.0), "9 of 100; at most 1 %")
    assert moved(after(test, 10, Outcome.FAIL)).state == "ABORTED"
    assert moved(after(test, 3600, Outcome.INCONCLUSIVE)).cause == "inconclusive"


# Time


def test_a_clock_that_goes_back_skips_no_hold() -> None:
    rollout = at(FIVE)

    assert after(rollout, -3600, Outcome.PASS) is None
    assert rollout.elapsed_s(START - timedelta(hours=1)) == 0
