"""`mlx promote`: an alias moves to a version once the evidence that it needs is there."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlx_platform.core.errors import ConflictError, GateFailedError, UsageError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.registry.journal import Event, check_reason
from mlx_platform.registry.ledger import ANYTHING, Anything, Expected, unexpected
from mlx_platform.registry.policy import QUARANTINE, missing, producing_command
from mlx_platform.registry.ref import check_alias
from mlx_platform.registry.version import EvidenceSummary, Version, evidence_of
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import event_facts, holder_text

_ALL = "all"


def promote(
    context: Context,
    ref: str,
    *,
    to: str,
    expect: str | None = None,
    reason: str = "",
    override: tuple[str, ...] = (),
) -> Result:
    """Move an alias to a version by compare-and-set, after its gates.

    Args:
        context: the command's context.
        ref: the version.
        to: the alias.
        expect: the version number, or `none`, that must still hold the alias.
        reason: why; recorded with the move.
        override: gates to let pass by hand, or `all`, which needs a reason and does not lift a quarantine:
            that takes `quarantine` by name.

    Raises:
        ConflictError: the alias is not where it was expected, or moved meanwhile; an archived version.
        GateFailedError: evidence is missing or did not pass; says how to get it.
        IntegrityError: the package's bytes are missing or changed.
        UsageError: flags that cannot be used.
    """
    _check_flags(reason, override)
    expected = _expected(expect)
    version = context.catalog.resolve(ref)
    holders = context.catalog.holders(version.name)
    _check_target(to, {*context.settings.promotion, *holders})
    before = holders.get(to)
    if not isinstance(expected, Anything) and expected != before:
        raise unexpected(version.name, to, before, expected)
    if before == version.number:
        return _result(version, to, before, None, (), {})
    if version.archived:
        raise ConflictError(f"{version.ref} is archived.", hint=f"Choose another: mlx list {version.name}")
    evidence = evidence_of(version)
    policy = context.settings.promotion.get(to, PromotionSettings())
    checks = _judge(policy, version, evidence, to, override, reason)
    with context.progress.stage(f"verifying {version.ref}"):
        context.catalog.fetch(version)
    event = context.catalog.move(
        version.name,
        to,
        version.number,
        expect=expected,
        kind="promote",
        actor=context.actor,
        reason=reason,
        evidence=_recorded(evidence, checks),
    )
    return _result(version, to, before, event, checks, evidence)


def _check_flags(reason: str, override: tuple[str, ...]) -> None:
    if override and not reason.strip():
        raise UsageError(
            "Letting a gate pass by hand needs a reason.", hint="Add --reason 'why it is right all the same'."
        )
    check_reason(reason)


def _expected(text: str | None) -> Expected:
    if text is None:
        return ANYTHING
    if text.lower() == "none":
        return None
    number = text.rpartition("/")[2]
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 10):
        raise UsageError(
            f"{printable(text, 100)!r} is no version to expect.", hint="Write its number, or none for nobody."
        )
    return int(number)


def _check_target(alias: str, known: set[str]) -> None:
    check_alias(alias)
    # A misspelt alias would be a new one, and a new one has no gates.
    close = difflib.get_close_matches(alias, known, n=1, cutoff=0.75)
    if alias not in known and close:
        raise UsageError(f"There is no alias {alias!r}.", hint=did_you_mean(alias, known))


def _judge(
    policy: PromotionSettings,
    version: Version,
    evidence: Mapping[str, EvidenceSummary],
    to: str,
    override: tuple[str, ...],
    reason: str,
) -> tuple[Check, ...]:
    checks = missing(policy, version, evidence)
    known = {*(check.name for check in checks), *policy.needs, QUARANTINE, _ALL}
    for name in override:
        if name not in known:
            raise UsageError(f"{to} has no gate {printable(name, 80)!r}.", hint=did_you_mean(name, known))
    if override and not policy.allow_override:
        raise UsageError(f"The gates of {to} cannot be let pass by hand: `allow_override` is false.")
    lifted = set(override)
    if _ALL in lifted:
        lifted |= {check.name for check in checks if check.name != QUARANTINE}
    judged = tuple(
        replace(check, skipped=f"let pass by hand: {reason}")
        if check.name in lifted and check.verdict is not Verdict.PASS
        else check
        for check in checks
    )
    failed = [check for check in judged if check.verdict is not Verdict.PASS and not check.skipped]
    if failed:
        raise _refused(version, to, failed)
    return judged


def _refused(version: Version, to: str, failed: list[Check]) -> GateFailedError:
    names = ", ".join(f"{check.name} ({check.measured})" for check in failed)
    commands = [command for check in failed if (command := producing_command(check.name, version))]
    override = " ".join(f"--override {check.name}" for check in failed)
    by_hand = f"mlx promote {version.ref} --to {to} {override} --reason WHY"
    hint = f"Run: {'; '.join(commands)}. " if commands else ""
    return GateFailedError(
        f"{version.ref} cannot move to {to}: {names}.",
        hint=f"{hint}To let it pass by hand: {by_hand}",
        gates=[
            {
                "name": check.name,
                "verdict": str(check.verdict),
                "measured": check.measured,
                "threshold": check.threshold,
                "message": check.message,
                "command": producing_command(check.name, version),
            }
            for check in failed
        ],
    )


def _recorded(evidence: Mapping[str, EvidenceSummary], checks: tuple[Check, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {
        printable(kind, 80): {"id": summary.id, "verdict": summary.verdict}
        for kind, summary in evidence.items()
    }
    overridden = [check.name for check in checks if check.skipped]
    return found | ({"overridden": overridden} if overridden else {})


def _result(
    version: Version,
    to: str,
    before: int | None,
    event: Event | None,
    checks: tuple[Check, ...],
    evidence: Mapping[str, EvidenceSummary],
) -> Result:
    if event:
        # The journal knows better than what was read before the gates.
        before = event.from_version
    moved = f"{version.name}@{to} moved from {holder_text(before)} to {version.number}."
    return Result(
        command="promote",
        data={
            "name": version.name,
            "alias": to,
            "version": version.number,
            "before": before,
            "after": version.number,
            "changed": event is not None,
            "event": event.document() if event else None,
            "evidence": {kind: summary.document() for kind, summary in evidence.items()},
        },
        report=Report(
            title=f"promote {version.ref}",
            summary=moved if event else f"{version.name}@{to} is {version.number} already; nothing changed.",
            facts=event_facts(event) if event else (Fact("version", version.ref),),
            checks=checks,
            next_steps=(f"mlx serve {version.name}@{to}", f"mlx rollback {version.name}")
            if event and to == "production"
            else (f"mlx history {version.name}",),
        ),
    )
