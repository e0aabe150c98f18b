"""`mlx promote`: an alias moves to a version once the evidence that it needs is there."""

from dataclasses import replace
from typing import Any

from mlx_platform.core.errors import ConflictError, GateFailedError, UsageError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.journal import Event, check_reason
from mlx_platform.registry.ledger import ANYTHING, Anything, Expected, unexpected
from mlx_platform.registry.rollout import refuse_canary, superseded
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import event_facts, holder_text
from mlx_platform.workflows.events import deliver_pending
from mlx_platform.workflows.expectation import expected_holder
from mlx_platform.workflows.judgement import Judgement, check_target, judge_version
from mlx_platform.workflows.subject import adoption


def promote(
    context: Context,
    ref: str,
    *,
    to: str,
    expect: str | None = None,
    reason: str = "",
    override: tuple[str, ...] = (),
    dry_run: bool = False,
    when_gates_pass: bool = False,
) -> Result:
    """Move an alias to a version by compare-and-set, after its gates.

    Args:
        context: the command's context.
        ref: the version.
        to: the alias.
        expect: the version number, or `none`, that must still hold the alias.
        reason: why; recorded with the move.
        override: gates to let pass by hand, or `all`, which needs a reason and lifts neither a quarantine nor
            a self-check: those take their name.
        dry_run: judge and verify everything, and move nothing.
        when_gates_pass: for pipelines: gates that do not pass are an answer, with the verdict of the gates
            and nothing moved, instead of an error.

    Raises:
        ConflictError: the alias is not where it was expected, moved meanwhile, or was taken by a rollout; an
            archived version, or one that plain MLflow registered.
        GateFailedError: evidence is missing or did not pass; says how to get it.
        IntegrityError: the package's bytes are missing or changed.
        UsageError: flags that cannot be used.
    """
    _check_flags(reason, override)
    version = context.catalog.resolve(ref)
    expected: Expected = ANYTHING if expect is None else expected_holder(expect, version.name)
    journal = context.catalog.journal(version.name)
    holders = context.catalog.holders(version.name, journal)
    check_target(to, {*context.settings.promotion, *holders})
    refuse_canary(version.name, journal, to)
    before = holders.get(to)
    if not isinstance(expected, Anything) and expected != before:
        raise unexpected(version.name, to, before, expected)
    outside = context.catalog.differences(version.name, to)
    if before == version.number:
        if not dry_run:
            context.catalog.settle(version.name, to)
        there = _result(version, to, before, short=when_gates_pass, dry_run=dry_run)
        return replace(there, warnings=outside)
    if version.archived:
        raise ConflictError(
            f"{version.ref} is archived.",
            hint=f"Take it out with: mlx archive {version.ref} --undo; or choose another: "
            f"mlx list {version.name}",
        )
    if not version.sealed:
        raise ConflictError(
            f"{version.ref} is not sealed: its bytes may change under the alias.",
            hint=adoption(context, version)[0],
        )
    judgement = judge_version(context, version, to, before, journal, override=override, reason=reason)
    if judgement.open:
        if when_gates_pass:
            return _waiting(judgement)
        raise _refused(judgement, f" --expect {expect}" if expect else "")
    event: Event | None = None
    warnings: tuple[str, ...] = ()
    if not dry_run:
        event = _move(context, judgement, reason, strict=expect is not None)
        warnings = deliver_pending(context, version.name)
    result = _result(version, to, before, event, judgement, short=when_gates_pass, dry_run=dry_run)
    return replace(result, warnings=(*outside, *superseded(version.name, journal, to), *warnings))


def _move(context: Context, judgement: Judgement, reason: str, *, strict: bool) -> Event | None:
    """Move the alias from where it was judged; None when somebody else put the version there meanwhile."""
    version, to = judgement.version, judgement.alias
    try:
        return context.catalog.move(
            version.name,
            to,
            version.number,
            # The gates compared with this holder, and say nothing about another one.
            expect=judgement.before,
            kind="promote",
            actor=context.actor,
            reason=reason,
            evidence=_recorded(judgement),
        )
    except ConflictError:
        if strict or context.catalog.holders(version.name).get(to) != version.number:
            raise
        return None


def _check_flags(reason: str, override: tuple[str, ...]) -> None:
    if override and not reason.strip():
        raise UsageError(
            "Letting a gate pass by hand needs a reason.", hint="Add --reason 'why it is right all the same'."
        )
    check_reason(reason)


def _refused(judgement: Judgement, expect: str) -> GateFailedError:
    commands = f"Run: {'; '.join(judgement.commands)}. " if judgement.commands else ""
    messages = " ".join(one.check.message for one in judgement.open if not one.command and one.check.message)
    by_hand = f"To let it pass by hand: {judgement.by_hand}{expect}" if judgement.by_hand else ""
    return GateFailedError(
        f"{judgement.version.ref} cannot move to {judgement.alias}: {judgement.reasons}.",
        hint=" ".join(part for part in (messages, commands.strip(), by_hand) if part),
        **judgement.document(),
    )


def _waiting(judgement: Judgement) -> Result:
    """The answer to a pipeline whose gates do not pass, or not yet."""
    version, to = judgement.version, judgement.alias
    what = "cannot move" if judgement.verdict is Verdict.FAIL else "does not move yet"
    return Result(
        command="promote",
        data=judgement.document()
        | {"after": judgement.before, "changed": False, "event": None, "dry_run": False},
        report=Report(
            title=f"promote {version.ref}", summary=f"{version.ref} {what} to {to}: {judgement.reasons}."
        ),
        verdict=judgement.verdict,
    )


def _recorded(judgement: Judgement) -> dict[str, Any]:
    found: dict[str, Any] = {
        printable(kind, 80): {"id": summary.id, "verdict": summary.verdict}
        for kind, summary in judgement.evidence.items()
    }
    overridden = list(judgement.overridden)
    return found | ({"overridden": overridden} if overridden else {})


def _result(
    version: Version,
    to: str,
    before: int | None,
    event: Event | None = None,
    judgement: Judgement | None = None,
    *,
    short: bool,
    dry_run: bool,
) -> Result:
    """What came of it; without a judgement the version held the alias already."""
    if event:
        # The journal knows better than what was read before the gates.
        before = event.from_version
    move = f"from {holder_text(before)} to {version.number}"
    if event:
        summary = f"{version.name}@{to} moved {move}."
    elif judgement and dry_run:
        summary = f"{version.name}@{to} would move {move}; nothing changed."
    else:
        summary = f"{version.name}@{to} is {version.number} already; nothing changed."
    report = Report(title=f"promote {version.ref}", summary=summary)
    if not short:
        report = Report(
            title=report.title,
            summary=summary,
            facts=event_facts(event) if event else (Fact("version", version.ref),),
            checks=judgement.checks if judgement else (),
            next_steps=_next_steps(version, to, event),
        )
    evidence = judgement.evidence if judgement else {}
    return Result(
        command="promote",
        data={
            "name": version.name,
            "alias": to,
            "version": version.number,
            "before": before,
            "after": before if dry_run else version.number,
            "changed": event is not None,
            "would_change": judgement is not None,
            "dry_run": dry_run,
            "event": event.document() if event else None,
            "evidence": {kind: summary.document() for kind, summary in evidence.items()},
            "gates": [one.document() for one in judgement.requirements] if judgement else [],
        },
        report=report,
        verdict=Verdict.PASS if short else None,
    )


def _next_steps(version: Version, to: str, event: Event | None) -> tuple[str, ...]:
    if event and to == "production":
        back = (f"mlx rollback {version.name}",) if event.from_version else ()
        return (f"mlx serve {version.name}@{to}", *back)
    return (f"mlx history {version.name}",)
