"""`mlx rollout start` and `retry`: a version begins its way to production, once nothing speaks against it."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlx_platform.core.errors import ConflictError, GateFailedError, NotFoundError, UsageError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.text import printable
from mlx_platform.registry.journal import check_reason
from mlx_platform.registry.policy import QUARANTINE, SELF_CHECK, Requirement
from mlx_platform.registry.ref import VersionRef
from mlx_platform.registry.sight import Sight
from mlx_platform.registry.version import Version
from mlx_platform.serving.following.compatibility import differences
from mlx_platform.serving.rollout.carrying import carry_out, production_in, rollout_in
from mlx_platform.serving.rollout.cautions import warnings_of
from mlx_platform.serving.rollout.machine import Request, Transition, begin, next_state
from mlx_platform.serving.rollout.plan import Plan
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.events import deliver_pending
from mlx_platform.workflows.judgement import Judgement, judge_version
from mlx_platform.workflows.rollouts import page
from mlx_platform.workflows.rollouts.planning import ab_text, duration, read_plan, shortest, step_table
from mlx_platform.workflows.rollouts.seen import see

CHANNEL = "production"
OWN = ("shadow", "rollout")
"""Evidence that a rollout itself brings about, and that nobody asks for before it starts."""


def start(
    context: Context,
    ref: str,
    *,
    plan: Path | None = None,
    ab: float | None = None,
    replace_active: bool = False,
    force: bool = False,
    skip_baseline: bool = False,
    reason: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Check that a version may go to production, and begin with the first step of the plan.

    It is fetched, verified, loaded and asked its golden cases; it must take and give what the version in
    production does, and have the evidence that production asks for, but for what a rollout brings itself.
    Servers that follow the model do the rest. What goes on already with the same version and plan is left as
    it is, and so is a version that holds production.

    Args:
        context: the command's context.
        ref: the version.
        plan: a plan file; `[rollout]` of the settings otherwise.
        ab: percent of the requests for an A/B test instead of a promotion.
        replace_active: abort the rollout that goes on.
        force: let everything pass by hand that `mlx promote --override` could; needs a reason.
        skip_baseline: compare nothing with the version in production, because that is the broken one.
        reason: why; kept with the rollout.
        say: tells people something before it begins.

    Raises:
        ConflictError: another rollout goes on, or somebody was faster; an archived version, or one that plain
            MLflow registered.
        GateFailedError: something speaks against the version; says what.
        IntegrityError: the package's bytes are missing or changed.
        NotFoundError: no such version or plan, or nobody holds production.
        UsageError: a plan that cannot be carried out, or `force` without a reason.

    Exits:
        6: with `--wait`, it was aborted or rolled back.
        7: with `--wait`, it waits for somebody.
        8: with `--timeout`, it was still going on.
    """
    check_reason(reason)
    _check_force(reason, force=force)
    found = read_plan(context, plan, ab=ab, skip_baseline=skip_baseline)
    version = context.catalog.resolve(ref)
    return _begin(context, version, found, replace_active, force, reason, say, command="rollout start")


def retry(context: Context, name: str, *, force: bool = False, reason: str = "") -> Result:
    """Start the last rollout of a model again: the same version and plan, from the first step.

    Args:
        context: the command's context.
        name: the model.
        force: also when the version was quarantined for what happened; needs a reason.
        reason: why; kept with the rollout.

    Raises:
        ConflictError: it goes on still, or another one does.
        GateFailedError: something speaks against the version, such as its quarantine.
        IntegrityError: the package's bytes are missing or changed.
        NotFoundError: no such model, it never had a rollout, or the version is gone.
        UsageError: `force` without a reason.
    """
    check_reason(reason)
    _check_force(reason, force=force)
    seen = see(context, name)
    last = seen.rollout
    if last.active:
        raise ConflictError(
            f"The rollout of {last.ref} goes on: {page.place_text(last)}.",
            hint=f"Let it go on with: mlx rollout resume {name}; or end it: mlx rollout abort {name}",
        )
    version = context.catalog.resolve(VersionRef(last.model, last.candidate))
    if last.candidate_digest and version.digest != last.candidate_digest:
        raise ConflictError(f"{version.ref} is not the package any more that was tried.")
    plan = replace(last.plan)
    return _begin(context, version, plan, False, force, reason, lambda _: None, command="rollout retry")


def _check_force(reason: str, *, force: bool) -> None:
    if force and not reason.strip():
        raise UsageError(
            "Letting something pass by hand needs a reason.",
            hint="Add --reason 'why it is right all the same'.",
        )


def _begin(
    context: Context,
    version: Version,
    plan: Plan,
    replace_active: bool,
    force: bool,
    reason: str,
    say: Callable[[str], None],
    *,
    command: str,
) -> Result:
    sight = context.catalog.sight(version.name)
    active = rollout_in(sight)
    if active and active.candidate == version.number and active.plan == plan and not replace_active:
        return _result(command, active, changed=False)
    if active and not replace_active:
        raise ConflictError(
            f"The rollout {active.id} of {active.ref} goes on: {page.place_text(active)}.",
            hint=f"Wait for it: mlx rollout status {version.name} --watch; or put it aside with --replace.",
            rollout={"id": active.id, "version": active.candidate, "state": active.state},
        )
    if sight.holders.get(CHANNEL) == version.number:
        return _there(command, version)
    stable = _stable(context, sight, version)
    again = f"retry {version.name}" if command == "rollout retry" else f"start {version.ref}"
    overridden = _judge(context, version, sight, plan, force=force, again=again)
    _refuse_other_signature(context, version, stable)
    if plan.ab:
        say(f"The test {ab_text(plan.ab)}.")
    after = sight.head
    if active:
        after = _put_aside(context, active, sight, version)
    rollout = begin(
        plan,
        id=secrets.token_hex(4),
        model=version.name,
        stable=stable.number,
        candidate=version.number,
        stable_digest=stable.digest,
        candidate_digest=version.digest,
        now=context.clock(),
        actor=context.actor,
        reason=reason,
        channel=CHANNEL,
    )
    rollout = replace(rollout, overridden=overridden)
    event = carry_out(context.catalog, Transition(rollout), after=after)
    warnings = (*warnings_of(plan), *deliver_pending(context, version.name))
    return _result(command, replace(rollout, event=event.number), changed=True, warnings=warnings)


def _stable(context: Context, sight: Sight, version: Version) -> Version:
    """Who holds production."""
    number = sight.holders.get(CHANNEL)
    if number is None:
        raise NotFoundError(
            f"Nobody holds {version.name}@{CHANNEL}, so there is nothing to compare with.",
            hint=f"Put the first version there with: mlx promote {version.ref} --to {CHANNEL}",
        )
    return context.catalog.resolve(VersionRef(version.name, number))


def _judge(
    context: Context, version: Version, sight: Sight, plan: Plan, *, force: bool, again: str
) -> tuple[str, ...]:
    """Refuse what production would refuse, but for the evidence that is still to be gathered.

    A plan whose candidate answers nobody may gather evidence before there is any.

    Returns:
        What was let pass by hand.
    """
    if version.archived:
        raise ConflictError(
            f"{version.ref} is archived.", hint=f"Take it out with: mlx archive {version.ref} --undo"
        )
    if not version.sealed:
        raise ConflictError(
            f"{version.ref} is not sealed: its bytes may change on the way.",
            hint=f"Adopt it with: mlx adopt {version.ref}",
        )
    before = sight.holders.get(CHANNEL)
    judgement = judge_version(context, version, CHANNEL, before, sight.journal)
    answers = plan.promotes or plan.ab is not None
    wanted = tuple(
        one
        for one in judgement.open
        if one.name not in OWN and (answers or one.name in {QUARANTINE, SELF_CHECK})
    )
    liftable = all(one.lift and one.name != SELF_CHECK for one in wanted)
    if wanted and not (force and liftable):
        raise _refused(judgement, wanted, f"mlx rollout {again} --force --reason WHY" if liftable else "")
    return tuple(one.name for one in wanted)


def _refused(judgement: Judgement, wanted: tuple[Requirement, ...], by_hand: str) -> GateFailedError:
    version = judgement.version
    said = ", ".join(f"{one.name} ({one.check.measured})" for one in wanted)
    messages = [one.check.message for one in wanted if one.check.message]
    commands = dict.fromkeys(one.command for one in wanted if one.command)
    parts = [*messages, *([f"Run: {'; '.join(commands)}."] if commands else [])]
    if by_hand:
        parts.append(f"To try it all the same: {by_hand}")
    return GateFailedError(
        f"{version.ref} may not go to {judgement.alias}: {said}.",
        hint=" ".join(parts),
        **judgement.document(),
    )


def _refuse_other_signature(context: Context, version: Version, stable: Version) -> None:
    """Whoever asks the one must be able to ask the other: callers do not know who answers them."""
    fetch = context.catalog.fetch
    found = differences(fetch(stable).spec, fetch(version).spec)
    if found:
        raise GateFailedError(
            f"{version.ref} cannot answer the requests of {stable.ref}: {'; '.join(found)}.",
            hint=f"See: mlx diff {stable.ref} {version.ref}",
            differences=list(found),
        )


def _put_aside(context: Context, active: Rollout, sight: Sight, version: Version) -> int:
    """Abort the rollout that goes on; the number of its last event."""
    request = Request("abort", context.actor, f"{version.ref} takes its place.")
    production = production_in(sight, active.channel)
    transition = next_state(active, now=context.clock(), production=production, request=request)
    if transition is None:
        raise ConflictError(f"The rollout of {active.ref} cannot be ended.")  # pragma: no cover
    if "roll_back" in transition.effects:
        raise ConflictError(
            f"{active.ref} is promoted already, and only watched.",
            hint=f"End that first: mlx rollout advance {version.name}, or mlx rollout abort {version.name}",
        )
    ended = transition.rollout
    if ended.state == "ABORTED":
        ended = replace(ended, cause="replaced")
    return carry_out(context.catalog, replace(transition, rollout=ended), after=sight.head).number


def _there(command: str, version: Version) -> Result:
    """What to say of a version that has arrived already."""
    return Result(
        command=command,
        data={"name": version.name, "id": None, "version": version.number, "changed": False},
        report=Report(
            title=f"{command} {version.ref}",
            summary=f"{version.ref} holds {CHANNEL} already; nothing changed.",
            next_steps=(f"mlx rollout history {version.name}",),
        ),
    )


def _result(command: str, rollout: Rollout, *, changed: bool, warnings: tuple[str, ...] = ()) -> Result:
    plan, name = rollout.plan, rollout.model
    if changed:
        summary = f"{rollout.ref} is on its way to {rollout.channel}: {page.place_text(rollout)}."
    else:
        summary = f"{rollout.ref} is on its way already: {page.place_text(rollout)}; nothing changed."
    facts = {
        "rollout": rollout.id,
        "candidate": f"{rollout.ref}, digest {rollout.candidate_digest[:16]}",
        rollout.channel: f"{name}/{rollout.stable}",
        "A/B": ab_text(plan.ab) if plan.ab else "",
        "at best": f"done in {duration(shortest(plan))}" if not plan.ab else "",
        "on fail": plan.on_fail,
        "by hand": ", ".join(rollout.overridden),
        "reason": printable(rollout.reason, 500),
    }
    return Result(
        command=command,
        data={
            "name": name,
            "id": rollout.id,
            "version": rollout.candidate,
            "stable": rollout.stable,
            "changed": changed,
            "state": rollout.state,
            "step": rollout.step + 1,
            "event": rollout.event,
            "overridden": list(rollout.overridden),
            "required": list(plan.ab.required) if plan.ab else None,
            "plan": plan.document(),
        },
        report=Report(
            title=f"{command} {rollout.ref}",
            summary=summary,
            facts=tuple(Fact(label, value) for label, value in facts.items() if value),
            sections=(step_table(plan, "Plan"),),
            next_steps=(
                f"mlx serve {name}@{rollout.channel} --follow    (unless servers follow it already)",
                f"mlx rollout status {name} --watch",
            ),
        ),
        warnings=warnings,
    )
