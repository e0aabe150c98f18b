"""`mlx rollback`: an alias goes back to the version before, at once and without gates."""

import re
from dataclasses import dataclass

from mlx_platform.core.errors import (
    ConflictError,
    GateFailedError,
    IntegrityError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.text import printable
from mlx_platform.registry.journal import Event, Journal, check_reason
from mlx_platform.registry.ledger import unexpected
from mlx_platform.registry.policy import SELF_CHECK, rolled_back_text
from mlx_platform.registry.ref import AliasRef, LabelRef, NameRef, Ref, VersionRef, check_name, parse_ref
from mlx_platform.registry.rollout import refuse_canary, superseded
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import event_facts, holder_text
from mlx_platform.workflows.events import deliver_pending
from mlx_platform.workflows.expectation import expected_holder
from mlx_platform.workflows.selfcheck import self_check

_BACK = re.compile(r"[-~]([1-9][0-9]{0,3})")
_FORMS = "Write a version number, or -1 for the holder before, -2 for the one before that."


@dataclass(frozen=True, slots=True)
class _Place:
    """The alias that goes back, and who holds it."""

    model: str
    alias: str
    before: int
    journal: Journal

    @property
    def name(self) -> str:
        return f"{self.model}@{self.alias}"


def rollback(
    context: Context,
    name: str,
    *,
    to: str | None = None,
    expect: str | None = None,
    reason: str = "",
    verify: bool = True,
    dry_run: bool = False,
) -> Result:
    """Move an alias back.

    The target is fetched, verified, loaded and asked its golden cases first, so that the alias never points
    to what cannot be served. Neither evidence nor metrics nor the target's run are needed for that. Without
    `to` the target is the last version that held the alias before; quarantined, archived and rolled-back ones
    are passed over.

    Args:
        context: the command's context.
        name: the model, or `NAME@ALIAS`; the alias is production otherwise.
        to: the version instead, which held the alias before: a number, a reference, or `-N` for the N-th
            holder before, which is `~N` in references and is taken as well. With a number the command can be
            repeated safely.
        expect: the version that shall be rolled back. Where that has happened already nothing changes, so
            that the command can be repeated safely as well.
        reason: why; recorded with the move.
        verify: whether to look at the target at all; without, the move says so.
        dry_run: choose and verify, and move nothing.

    Raises:
        ConflictError: there is nothing to go back to, somebody moved the alias meanwhile, or a rollout has
            taken it.
        GateFailedError: the target does not load, or does not answer its golden cases.
        IntegrityError: the target's bytes are missing or changed.
        NotFoundError: no such model or version, or nobody holds the alias.
    """
    check_reason(reason)
    place = _place(context, name)
    refuse_canary(place.model, place.journal, place.alias)
    expected = place.before if expect is None else expected_holder(expect, place.model)
    if expected != place.before:
        result = _already(context, place, expected, to, dry_run=dry_run)
        return _settled(context, place, result, dry_run=dry_run)
    warnings: tuple[str, ...] = ()
    if to is None:
        target, warnings = _previous(context, place)
    else:
        target = _named(context, place, to)
    if target.number == place.before:
        return _settled(context, place, _result(place, target, None, dry_run=dry_run), dry_run=dry_run)
    if verify:
        _verify(context, place, target)
    else:
        warnings = (*warnings, f"Nobody looked whether {target.ref} can be served.")
    event = None
    if not dry_run:
        event = context.catalog.move(
            place.model,
            place.alias,
            target.number,
            expect=place.before,
            kind="rollback",
            actor=context.actor,
            reason=reason,
            evidence={} if verify else {"overridden": [SELF_CHECK]},
        )
        warnings = (*warnings, *deliver_pending(context, place.model))
    warnings = (*superseded(place.model, place.journal, place.alias), *warnings)
    return _result(place, target, event, warnings, verified=verify, dry_run=dry_run)


def _settled(context: Context, place: _Place, result: Result, *, dry_run: bool) -> Result:
    """Nothing to move, but whoever moved it may have died before MLflow's alias followed."""
    if not dry_run:
        context.catalog.settle(place.model, place.alias)
    return result


def _place(context: Context, name: str) -> _Place:
    ref = parse_ref(name)
    if isinstance(ref, AliasRef) and ref.back == 0:
        model, alias = ref.name, ref.alias
    elif isinstance(ref, NameRef | LabelRef):
        model, alias = check_name(name), "production"
    else:
        raise UsageError(
            f"{printable(name, 200)!r} is not the name of a model.",
            hint="Write mlx rollback NAME, or mlx rollback NAME --to NUMBER.",
        )
    journal = context.catalog.journal(model)
    before = context.catalog.holders(model, journal).get(alias)
    if before is None:
        # A model that is not there is said first.
        newest = context.catalog.versions(model, limit=1)[0].number
        raise NotFoundError(
            f"No version of {model} holds the alias {alias!r}, so there is nothing to roll back.",
            hint=f"Promote one with: mlx promote {model}/{newest} --to {alias}",
        )
    return _Place(model, alias, before, journal)


def _already(
    context: Context, place: _Place, expected: int | None, to: str | None, *, dry_run: bool
) -> Result:
    """The answer when the alias is elsewhere: it went back from there already, or somebody moved it."""
    last = place.journal.last(place.alias)
    holder = context.catalog.resolve(VersionRef(place.model, place.before))
    went_back = last and last.kind == "rollback" and last.from_version == expected
    if not went_back or (to is not None and _resolve(context, place, to).number != place.before):
        raise unexpected(place.model, place.alias, place.before, expected)
    return _result(place, holder, None, dry_run=dry_run)


def _resolve(context: Context, place: _Place, to: str) -> Version:
    ref: Ref
    if to.isascii() and to.isdigit() and len(to) < 10:
        ref = VersionRef(place.model, int(to))
    elif match := _BACK.fullmatch(to):
        ref = AliasRef(place.model, place.alias, int(match[1]))
    else:
        ref = _written(to)
    version = context.catalog.resolve(ref)
    if version.name != place.model:
        raise UsageError(f"{version.ref} is no version of {place.model}.")
    return version


def _written(to: str) -> Ref:
    shown = printable(to, 200)
    if to.startswith(("/", ".")):
        # Shells take ~2 for a folder.
        raise UsageError(f"--to {shown} is a path. Did the shell make it out of ~N?", hint=_FORMS)
    if to.startswith(("~", "-")):
        raise UsageError(f"--to {shown} counts no holders.", hint=_FORMS)
    return parse_ref(to)


def _named(context: Context, place: _Place, to: str) -> Version:
    version = _resolve(context, place, to)
    if version.number == place.before:
        return version
    moves = place.journal.moves(place.alias)
    if version.number not in {number for move in moves for number in (move.from_version, move.to_version)}:
        raise ConflictError(
            f"{version.ref} never held {place.alias}, so nothing can go back to it.",
            hint=f"Promote it, through its gates: mlx promote {version.ref} --to {place.alias}",
        )
    if event := place.journal.rolled_back(place.alias).get(version.number):
        raise ConflictError(
            f"{version.ref} was {rolled_back_text(event)}.",
            hint=f"If it is right all the same: mlx promote {version.ref} --to {place.alias} "
            "--override quarantine --reason WHY",
        )
    if version.archived or version.quarantined:
        undo = f"Take it out with: mlx archive {version.ref} --undo. " if version.archived else ""
        hint = f"{undo}Choose a sound version: mlx history {place.model}"
        raise ConflictError(f"{version.ref} is {version.state}.", hint=hint)
    if problem := _replaced(place, version):
        raise IntegrityError(problem, hint=f"Choose a sound version: mlx history {place.model}")
    return version


def _previous(context: Context, place: _Place) -> tuple[Version, tuple[str, ...]]:
    passed: list[str] = []
    for number in place.journal.rollback_targets(place.alias):
        try:
            version = context.catalog.resolve(VersionRef(place.model, number))
        except NotFoundError:
            passed.append(f"{place.model}/{number} is no longer there and was passed over.")
            continue
        event = place.journal.rolled_back(place.alias).get(number)
        if event:
            passed.append(f"{version.ref} was {rolled_back_text(event)}; it was passed over.")
        elif version.archived or version.quarantined:
            passed.append(f"{version.ref} is {version.state} and was passed over.")
        elif problem := _replaced(place, version):
            passed.append(f"{problem} It was passed over.")
        else:
            return version, tuple(passed)
    raise ConflictError(
        f"No earlier holder of {place.name} is left to go back to.",
        hint=" ".join((*passed, f"Promote a sound version instead; see: mlx list {place.model}")),
    )


def _replaced(place: _Place, version: Version) -> str:
    """Whether the number means another package now than when it held the alias."""
    held = [move for move in place.journal.moves(place.alias) if move.to_version == version.number]
    if not held or held[-1].digest == version.digest:
        return ""
    return f"{version.ref} is not the package that held {place.alias}: its digest has changed."


def _verify(context: Context, place: _Place, target: Version) -> None:
    others = [number for number in place.journal.rollback_targets(place.alias) if number != target.number]
    further = f"Go back elsewhere: mlx rollback {place.name} --to {others[0]}. " if others else ""
    blind = f"mlx rollback {place.name} --to {target.number} --no-verify"
    stays = f"{place.name} stays at {place.before}"
    try:
        checked = self_check(context, target)
    except IntegrityError as error:
        hint = f"{further}{error.hint}".strip()
        raise IntegrityError(f"{error.message} {stays}.", hint=hint, **error.details) from error
    except UnavailableError as error:
        hint = f"{error.hint} To go back without looking at the bytes: {blind}".strip()
        raise UnavailableError(error.message, hint=hint, **error.details) from error
    if checked.problems:
        problem = printable(checked.problems[0], 500)
        raise GateFailedError(
            f"{problem} {stays}.",
            hint=f"{further}To go back to it all the same: {blind}",
            problems=[printable(one, 500) for one in checked.problems[:20]],
        )


def _result(
    place: _Place,
    target: Version,
    event: Event | None,
    warnings: tuple[str, ...] = (),
    *,
    verified: bool = False,
    dry_run: bool = False,
) -> Result:
    way = f"from {holder_text(place.before)} to {target.number}"
    would_change = target.number != place.before
    if event:
        summary = f"{place.name} went back {way}."
    elif would_change and dry_run:
        summary = f"{place.name} would go back {way}; nothing changed."
    else:
        summary = f"{place.name} is {target.number} already; nothing changed."
    return Result(
        command="rollback",
        data={
            "name": place.model,
            "alias": place.alias,
            "version": target.number,
            "before": place.before,
            "after": place.before if dry_run else target.number,
            "changed": event is not None,
            "would_change": would_change,
            "dry_run": dry_run,
            "verified": verified,
            "event": event.document() if event else None,
        },
        report=Report(
            title=f"rollback {place.model}",
            summary=summary,
            facts=event_facts(event) if event else (Fact("version", target.ref),),
            next_steps=(f"mlx history {place.model}", f"mlx show {target.ref}"),
        ),
        warnings=warnings,
    )
