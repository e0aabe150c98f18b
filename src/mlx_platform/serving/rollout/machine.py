"""What a rollout does next: a pure function of its state, the latest verdict, a request, time and alias.

Whoever calls it writes the transition by compare-and-set and carries out its effects; what happened between
the two when a process died is found here again from the state and the alias.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

from mlx_platform.core.clock import span_text
from mlx_platform.core.errors import ConflictError
from mlx_platform.core.values import frozen
from mlx_platform.serving.rollout.counts import ArmCounts
from mlx_platform.serving.rollout.judge import BASELINE_UNHEALTHY, TAIL_REQUESTS
from mlx_platform.serving.rollout.plan import Plan
from mlx_platform.serving.rollout.state import Rollout, State
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict

Command = Literal["pause", "resume", "advance", "abort"]
Effect = Literal["promote", "roll_back", "quarantine"]
CONTROLLER = "controller"


@frozen
class Production:
    """Who holds the channel, and the id of the rollout that moved it there; empty for anybody else.

    `cause`, `reason` and `actor` are what that move says of itself.
    """

    holder: int | None
    moved_by: str = ""
    cause: str = ""
    reason: str = ""
    actor: str = ""


@frozen
class Request:
    """What somebody asked for: a command, who it was, and why."""

    command: Command
    actor: str
    reason: str = ""


@frozen
class Transition:
    """The next state, to be written after event `rollout.event`, and what belongs to it.

    `promote` is the channel's move to the candidate, made once the transition is written, and only if that is
    still the last event. `roll_back` is the move back to the stable version, made before it is written.
    `quarantine` marks the candidate with the reason, after it is written.
    """

    rollout: Rollout
    effects: tuple[Effect, ...] = ()


@frozen
class Why:
    """What a transition says about itself: a word, a sentence, who decided, and the look that led to it."""

    cause: str
    reason: str = ""
    actor: str = CONTROLLER
    verdict: StepVerdict | None = None


def begin(
    plan: Plan,
    *,
    id: str,  # noqa: A002 - the name that it has everywhere
    model: str,
    stable: int,
    candidate: int,
    stable_digest: str,
    candidate_digest: str,
    now: datetime,
    actor: str,
    reason: str = "",
    channel: str = "production",
) -> Rollout:
    """The rollout in its first step, before its first event is written."""
    empty = Rollout(
        id, model, channel, stable, candidate, stable_digest, candidate_digest, plan,
        "STEP", 0, -1, 0.0, 0.0, now, now, now, actor=actor,
    )  # fmt: skip
    return _enter(empty, 0, now, Why("started", reason, actor)).rollout


def next_state(
    rollout: Rollout,
    *,
    now: datetime,
    production: Production,
    verdict: StepVerdict | None = None,
    request: Request | None = None,
    baseline: Mapping[str, Any] | None = None,
) -> Transition | None:
    """What happens now; None when nothing does.

    Args:
        rollout: as its last event says.
        now: the time, which a process takes once from the wall and then moves on with a clock that never
            jumps.
        production: the alias that the candidate is meant for.
        verdict: of the latest look; one of another window is ignored.
        request: what somebody asks for instead; then no verdict decides.
        baseline: what was counted of the stable arm in the present window.

    Raises:
        ConflictError: the request is not possible in this state.
    """
    if not rollout.active:
        if request:
            raise ConflictError(
                f"The rollout {rollout.id} has ended: {rollout.state}.", hint="Start another one."
            )
        return None
    if moved := _alias_moved(rollout, now, production, baseline):
        if not request or not moved.rollout.active:
            return moved
        rollout = moved.rollout  # it was promoted, and nobody had written that yet
    if request:
        why = Why("manual", request.reason, request.actor)
        return _ASKED[request.command](rollout, now, why, baseline)
    latest = verdict if verdict and verdict.window == rollout.window else None
    return _goes_on(rollout, now, latest, baseline)


def _goes_on(
    rollout: Rollout, now: datetime, verdict: StepVerdict | None, baseline: Mapping[str, Any] | None
) -> Transition | None:
    """What an active rollout does by itself."""
    if rollout.state == "PROMOTING":
        return None
    if verdict and verdict.outcome is Outcome.FAIL:
        return _failed(rollout, now, verdict)
    if rollout.state == "BAKING":
        return _baked(rollout, now)
    if rollout.state == "PAUSED":
        return _pause_over(rollout, now, verdict, baseline)
    return _held(rollout, now, verdict, baseline)


def _to(rollout: Rollout, state: State, now: datetime, why: Why, **changes: Any) -> Rollout:
    """The rollout in another state; time that it was paused is added up."""
    held = rollout.held_s
    if rollout.state == "PAUSED":
        held += max(0.0, (now - rollout.state_since).total_seconds())
    return replace(
        rollout,
        state=state,
        state_since=now,
        held_s=held,
        cause=why.cause,
        reason=why.reason,
        actor=why.actor,
        verdicts=tuple(found.document() for found in why.verdict.metrics) if why.verdict else (),
        **changes,
    )


def _end(rollout: Rollout, state: State, now: datetime, why: Why) -> Rollout:
    """An end: nothing is routed to the candidate any more, in the same event that says so."""
    return _to(rollout, state, now, why, weight=0.0, shadow=0.0)


def _alias_moved(
    rollout: Rollout, now: datetime, production: Production, baseline: Mapping[str, Any] | None
) -> Transition | None:
    """What follows from where the alias is: our own move is gone on with, and anybody else's ends this."""
    ours = production.moved_by == rollout.id
    if rollout.state == "PROMOTING":
        if production.holder == rollout.candidate and ours:
            return _promoted(rollout, now, baseline)
        expected = production.holder == rollout.stable
    elif rollout.state == "BAKING":
        if production.holder == rollout.stable and ours:  # by a process that then died, or is about to say so
            said = f"{rollout.channel} was given back to {rollout.model}/{rollout.stable}."
            why = Why(
                production.cause or "rolled_back", production.reason or said, production.actor or CONTROLLER
            )
            effects: tuple[Effect, ...] = () if why.cause == "manual" else ("quarantine",)
            return Transition(_end(rollout, "ROLLED_BACK", now, why), effects)
        expected = production.holder == rollout.candidate
    else:
        expected = production.holder == rollout.stable
    if expected:
        return None
    holder = f"{rollout.model}/{production.holder}" if production.holder else "nobody"
    why = Why("moved", f"{rollout.channel} moved to {holder} meanwhile.")
    return Transition(_end(rollout, "SUPERSEDED", now, why))


def _kept(rollout: Rollout, counted: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What is known of the stable version when a window is left, for the time when it answers nobody.

    The newest window counts, and with it the pauses behind it. One with few requests, or in which the stable
    version failed itself, counts only where there is no other.
    """
    before = rollout.baseline
    if not before or not counted:
        return counted or before or None
    if rollout.cause == BASELINE_UNHEALTHY:
        return before
    known, new = ArmCounts.from_document(before), ArmCounts.from_document(counted)
    if rollout.at.kind == "pause":
        known.add(new)
        return known.document()
    return counted if new.requests >= min(known.requests, TAIL_REQUESTS) else before


def _enter(
    rollout: Rollout, index: int, now: datetime, why: Why, baseline: Mapping[str, Any] | None = None
) -> Transition:
    """The rollout at another step of its plan, or at the end of it. Each step has a window of its own."""
    plan, kept = rollout.plan, _kept(rollout, baseline)
    if index >= len(plan.steps) and not plan.promotes:
        return Transition(_end(rollout, "COMPLETED", now, why))
    if index >= len(plan.steps) or plan.steps[index].promotes:
        step = min(index, len(plan.steps) - 1)
        return Transition(_to(rollout, "PROMOTING", now, why, step=step, baseline=kept), ("promote",))
    step_of = plan.steps[index]
    changes: dict[str, Any] = {"step": index, "window": rollout.window + 1, "step_since": now}
    changes["baseline"] = kept
    if step_of.kind == "pause":
        return Transition(_to(rollout, "PAUSED", now, replace(why, cause="step"), **changes))
    if step_of.kind == "shadow":
        changes |= {"weight": 0.0, "shadow": step_of.percent}
        return Transition(_to(rollout, "SHADOW", now, why, **changes))
    changes |= {"weight": step_of.percent, "shadow": plan.mirror}
    return Transition(_to(rollout, "STEP", now, why, **changes))


def _promoted(rollout: Rollout, now: datetime, baseline: Mapping[str, Any] | None) -> Transition:
    """The alias has moved to the candidate: watch it, or be done."""
    why = Why("promoted", rollout.reason, rollout.actor)
    if not rollout.plan.bake_s:
        return Transition(_end(rollout, "PROMOTED", now, why))
    changes: dict[str, Any] = {"window": rollout.window + 1, "step_since": now}
    changes |= {"weight": 100.0, "shadow": 0.0, "baseline": rollout.baseline or baseline or None}
    return Transition(_to(rollout, "BAKING", now, why, **changes))


def _baked(rollout: Rollout, now: datetime) -> Transition | None:
    if rollout.elapsed_s(now) < rollout.plan.bake_s:
        return None
    why = Why("baked", f"Nothing went wrong for {span_text(now - rollout.step_since)}.")
    return Transition(_end(rollout, "PROMOTED", now, why))


def _failed(rollout: Rollout, now: datetime, verdict: StepVerdict) -> Transition | None:
    why = _because(verdict.deciding, verdict)
    if rollout.state == "BAKING":
        return Transition(_end(rollout, "ROLLED_BACK", now, why), ("roll_back", "quarantine"))
    if rollout.plan.on_fail == "abort":
        return Transition(_end(rollout, "ABORTED", now, why), ("quarantine",))
    if rollout.state == "PAUSED" and rollout.cause == "fail":
        return None
    return Transition(_to(rollout, "PAUSED", now, replace(why, cause="fail")))


def _because(found: MetricVerdict | None, verdict: StepVerdict | None, cause: str = "") -> Why:
    """What a metric gives as the reason; its name is the cause where there is no other word for it."""
    if found is None:
        return Why(cause, "Nothing was measured.", verdict=verdict)
    return Why(cause or found.name, f"{found.name}: {found.message}", verdict=verdict)


def _pause_over(
    rollout: Rollout, now: datetime, verdict: StepVerdict | None, baseline: Mapping[str, Any] | None
) -> Transition | None:
    """The end of a pause that the plan has given one; every other waits for somebody."""
    lasts = rollout.at.max_duration_s
    if rollout.cause != "step" or lasts is None:
        return None
    if found := _trouble_at_once(verdict, rollout.plan.error_limit):
        return _answer(rollout, now, found[0], found[1], verdict)
    if rollout.elapsed_s(now) < lasts:
        return None
    return _enter(rollout, rollout.step + 1, now, Why("pause_over", "The pause is over."), baseline)


def _held(
    rollout: Rollout, now: datetime, verdict: StepVerdict | None, baseline: Mapping[str, Any] | None
) -> Transition | None:
    """A step that is held, in shadow or at a weight, and has not failed."""
    plan, elapsed = rollout.plan, rollout.elapsed_s(now)
    outcome = verdict.outcome if verdict else Outcome.NO_DATA
    if verdict and outcome is Outcome.PASS:
        if elapsed >= rollout.at.min_duration_s:
            passed = f"Step {rollout.step + 1} ({rollout.at.title}) has passed."
            why = Why("passed", verdict.metrics[-1].message if plan.ab else passed, verdict=verdict)
            return _enter(rollout, rollout.step + 1, now, why, baseline)
    elif found := _trouble_at_once(verdict, plan.error_limit):
        return _answer(rollout, now, found[0], found[1], verdict)
    late = rollout.progress_s(now) >= plan.deadline_s
    if late and outcome is not Outcome.NO_DATA:
        told = f"It was not through after {span_text(timedelta(seconds=rollout.progress_s(now)))}."
        return Transition(_end(rollout, "ABORTED", now, Why("deadline", told, verdict=verdict)))
    longest = rollout.at.max_duration_s
    if outcome is Outcome.PASS or not (late or (longest is not None and elapsed >= longest)):
        return None
    return _answer(rollout, now, _CAUSES[outcome], verdict.deciding if verdict else None, verdict)


_CAUSES: Mapping[Outcome, str] = {
    Outcome.INCONCLUSIVE: "inconclusive",
    Outcome.NO_DATA: "no_data",
    Outcome.ERROR: "metric_error",
}


def _trouble_at_once(verdict: StepVerdict | None, limit: int) -> tuple[str, MetricVerdict] | None:
    """What does not wait for the end of a step: a baseline that fails, or a source that is away too long."""
    for found in verdict.metrics if verdict else ():
        if found.reason == BASELINE_UNHEALTHY and not found.dry_run:
            return BASELINE_UNHEALTHY, found
        if found.outcome is Outcome.ERROR and found.streak > limit and not found.dry_run:
            return "metric_error", found
    return None


def _answer(
    rollout: Rollout, now: datetime, cause: str, found: MetricVerdict | None, verdict: StepVerdict | None
) -> Transition:
    """A pause that somebody must end, or an abort where the plan says so.

    In a pause weight and window stay as they are: it goes on being looked at, and may fail.
    """
    plan, why = rollout.plan, _because(found, verdict, cause)
    answers = {
        "no_data": plan.on_no_data,
        "metric_error": plan.on_metric_error,
        "inconclusive": plan.on_inconclusive,
    }
    if answers.get(cause) == "abort":
        return Transition(_end(rollout, "ABORTED", now, why))
    return Transition(_to(rollout, "PAUSED", now, why))


def _ask_pause(rollout: Rollout, now: datetime, why: Why, _: Mapping[str, Any] | None) -> Transition | None:
    if rollout.state in {"PROMOTING", "BAKING"}:
        raise ConflictError(
            f"{rollout.ref} is promoted already, and only watched.",
            hint=f"Take it back with: mlx rollout abort {rollout.model}",
        )
    if rollout.state == "PAUSED" and rollout.cause != "step":
        return None
    return Transition(_to(rollout, "PAUSED", now, why))


def _ask_resume(
    rollout: Rollout, now: datetime, why: Why, baseline: Mapping[str, Any] | None
) -> Transition | None:
    """Begin the step anew. A pause of the plan's is over, unless something went wrong in it."""
    if rollout.state != "PAUSED":
        return None
    over = rollout.at.kind == "pause" and rollout.cause in {"step", "manual"}
    return _let_go_on(rollout, rollout.step + over, now, replace(why, cause="resumed"), baseline)


def _ask_advance(
    rollout: Rollout, now: datetime, why: Why, baseline: Mapping[str, Any] | None
) -> Transition | None:
    why = replace(why, cause="advanced")
    if rollout.state == "PROMOTING":
        return None
    if rollout.state == "BAKING":
        return Transition(_end(rollout, "PROMOTED", now, why))
    return _let_go_on(rollout, rollout.step + 1, now, why, baseline)


def _let_go_on(
    rollout: Rollout, index: int, now: datetime, why: Why, baseline: Mapping[str, Any] | None
) -> Transition:
    """Somebody decides that it goes on, so its deadline begins anew."""
    entered = _enter(rollout, index, now, why, baseline)
    spent = max(0.0, (now - rollout.started_at).total_seconds())
    return replace(entered, rollout=replace(entered.rollout, held_s=spent))


def _ask_abort(rollout: Rollout, now: datetime, why: Why, _: Mapping[str, Any] | None) -> Transition | None:
    why = replace(why, reason=why.reason or f"{why.actor} ended it.")
    if rollout.state == "BAKING":
        return Transition(_end(rollout, "ROLLED_BACK", now, why), ("roll_back",))
    return Transition(_end(rollout, "ABORTED", now, why))


_ASKED = {"pause": _ask_pause, "resume": _ask_resume, "advance": _ask_advance, "abort": _ask_abort}
