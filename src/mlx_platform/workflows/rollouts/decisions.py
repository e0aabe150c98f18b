"""`mlx rollout pause`, `resume`, `advance`, `abort`: what somebody decides about a rollout that goes on."""

from collections.abc import Mapping
from dataclasses import replace

from mlx_platform.core.errors import ConflictError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.registry.journal import check_reason
from mlx_platform.serving.rollout.carrying import carry_out, production_in
from mlx_platform.serving.rollout.machine import Command, Request, next_state
from mlx_platform.serving.rollout.state import Rollout, State
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.events import deliver_pending
from mlx_platform.workflows.rollouts import page
from mlx_platform.workflows.rollouts.seen import Seen, see

_ATTEMPTS = 5
_TAKEN_BACK: frozenset[State] = frozenset({"ABORTED", "ROLLED_BACK"})
_ON_ITS_WAY: frozenset[State] = frozenset({"SHADOW", "STEP", "PAUSED", "PROMOTING", "COMPLETED"})
_WANTED: Mapping[Command, frozenset[State]] = {  # where each of them leads
    "pause": frozenset({"PAUSED"}),
    "resume": _ON_ITS_WAY,
    "advance": _ON_ITS_WAY | {"PROMOTED"},
    "abort": _TAKEN_BACK,
}


def pause(context: Context, name: str, *, reason: str = "") -> Result:
    """Hold the rollout of a model where it is.

    The candidate keeps its share of the traffic, and is judged on: a metric that fails still takes it back.

    Args:
        context: the command's context.
        name: the model.
        reason: why; kept with the decision.

    Raises:
        ConflictError: no rollout goes on, or the candidate is promoted already.
        NotFoundError: no such model, or it never had a rollout.
    """
    return _decide(context, name, "pause", reason)


def resume(context: Context, name: str, *, reason: str = "") -> Result:
    """Let a rollout that is paused go on.

    The step begins anew with counts of its own, and so does the deadline. A pause of the plan's ends, and the
    next step begins; if something went wrong in it, the pause begins anew.

    Args:
        context: the command's context.
        name: the model.
        reason: why; kept with the decision.

    Raises:
        ConflictError: no rollout goes on.
        NotFoundError: no such model, or it never had a rollout.
    """
    return _decide(context, name, "resume", reason)


def advance(context: Context, name: str, *, reason: str = "") -> Result:
    """Begin the next step now, whatever the metrics of this one say; at the end of the plan promote.

    Args:
        context: the command's context.
        name: the model.
        reason: why; kept with the decision.

    Raises:
        ConflictError: no rollout goes on.
        NotFoundError: no such model, or it never had a rollout.
    """
    return _decide(context, name, "advance", reason)


def abort(context: Context, name: str, *, reason: str = "") -> Result:
    """End a rollout: nothing goes to the candidate any more.

    Production stays where it is. Where the candidate has been promoted and is only watched any more,
    production goes back to the version before.

    Args:
        context: the command's context.
        name: the model.
        reason: why; kept with the decision.

    Raises:
        ConflictError: no rollout goes on, or somebody moved production meanwhile.
        NotFoundError: no such model, or it never had a rollout.
    """
    return _decide(context, name, "abort", reason)


def _decide(context: Context, name: str, command: Command, reason: str) -> Result:
    """Write what was asked for after the last event; where a server was faster, look again."""
    check_reason(reason)
    request = Request(command, context.actor, reason)
    conflict: ConflictError | None = None
    for _ in range(_ATTEMPTS):
        seen = see(context, name)
        if conflict and not seen.rollout.active:
            break  # it has ended meanwhile, which is not what was asked for
        if command == "abort" and seen.rollout.state in _TAKEN_BACK:
            return _result(context, seen, None, command, ())
        transition = next_state(
            seen.rollout,
            now=seen.now,
            production=production_in(seen.sight, seen.rollout.channel),
            request=request,
            baseline=seen.window.arm("stable").document(),
        )
        if transition is None:
            return _result(context, seen, None, command, ())
        try:
            event = carry_out(context.catalog, transition, after=seen.sight.head)
        except ConflictError as error:
            conflict = error
            continue
        after = replace(transition.rollout, event=event.number)
        if after.state not in _WANTED[command]:  # what the alias had decided already came first
            conflict = _overtaken(after)
            continue
        return _result(context, seen, after, command, deliver_pending(context, name))
    raise conflict or ConflictError(f"The rollout of {name} changes too often right now.", hint="Try again.")


def _overtaken(rollout: Rollout) -> ConflictError:
    return ConflictError(
        f"The rollout of {rollout.ref} was {page.place_text(rollout)} meanwhile: {page.why_text(rollout)}",
        hint=f"See: mlx rollout status {rollout.model}",
    )


_DONE = {"pause": "paused", "resume": "goes on", "advance": "advanced", "abort": "ended"}


def _result(
    context: Context, before: Seen, after: Rollout | None, command: Command, warnings: tuple[str, ...]
) -> Result:
    rollout = after or before.rollout
    if after is None:
        summary = f"{rollout.ref}: {page.place_text(rollout)} already; nothing changed."
    else:
        summary = f"{rollout.ref} {_DONE[command]}: {page.place_text(rollout)}."
    now = replace(before, rollout=rollout, look=None, now=context.clock())
    facts = {
        "rollout": rollout.id,
        "before": page.place_text(before.rollout),
        "after": page.place_text(rollout),
        "because": page.why_text(rollout),
        "next": page.next_text(now),
    }
    return Result(
        command=f"rollout {command}",
        data={
            "name": rollout.model,
            "id": rollout.id,
            "changed": after is not None,
            "before": {"state": before.rollout.state, "step": before.rollout.step + 1},
            "after": {"state": rollout.state, "step": rollout.step + 1},
            "weight": rollout.share,
            "event": rollout.event,
            "version": rollout.candidate,
        },
        report=Report(
            title=f"rollout {command} {rollout.model}",
            summary=summary,
            facts=tuple(Fact(label, value) for label, value in facts.items() if value),
            next_steps=(f"mlx rollout status {rollout.model}",),
        ),
        warnings=warnings,
    )
