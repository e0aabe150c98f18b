"""`mlx rollback`: an alias goes back to the version before, at once and without gates."""

from mlx_platform.core.errors import ConflictError, NotFoundError, UsageError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.text import printable
from mlx_platform.registry.journal import Event, check_reason
from mlx_platform.registry.ref import AliasRef, LabelRef, NameRef, VersionRef, check_name, parse_ref
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import event_facts, holder_text


def rollback(context: Context, name: str, *, to: str | None = None, reason: str = "") -> Result:
    """Move an alias back.

    The target's bytes are fetched and verified first, so that the alias never points to what cannot be
    served. Without `to` the target is the last version that held the alias before and was not itself rolled
    back from; quarantined and archived versions are passed over.

    Args:
        context: the command's context.
        name: the model, or `NAME@ALIAS`; the alias is production otherwise.
        to: the version instead: a number, or a reference. With it the command can be repeated safely.
        reason: why; recorded with the move.

    Raises:
        ConflictError: there is nothing to go back to, or somebody moved the alias meanwhile.
        NotFoundError: no such model or version, or nobody holds the alias.
        IntegrityError: the target's bytes are missing or changed.
    """
    check_reason(reason)
    model, alias = _which(name)
    before = context.catalog.holders(model).get(alias)
    if before is None:
        context.catalog.versions(model, limit=1)  # a model that is not there is said first
        raise NotFoundError(
            f"No version of {model} holds the alias {alias!r}, so there is nothing to roll back.",
            hint=f"Promote one with: mlx promote {model}/NUMBER --to {alias}",
        )
    warnings: tuple[str, ...] = ()
    if to is None:
        target, warnings = _previous(context, model, alias)
    else:
        target = _named(context, model, to)
    if target.number == before:
        return _result(target, alias, before, None, ())
    with context.progress.stage(f"verifying {target.ref}"):
        context.catalog.fetch(target)
    event = context.catalog.move(
        model, alias, target.number, expect=before, kind="rollback", actor=context.actor, reason=reason
    )
    return _result(target, alias, before, event, warnings)


def _which(name: str) -> tuple[str, str]:
    ref = parse_ref(name)
    if isinstance(ref, AliasRef) and ref.back == 0:
        return ref.name, ref.alias
    if isinstance(ref, NameRef | LabelRef):
        return check_name(name), "production"
    raise UsageError(
        f"{printable(name, 200)!r} is not the name of a model.",
        hint="Write mlx rollback NAME, or mlx rollback NAME --to NUMBER.",
    )


def _named(context: Context, model: str, to: str) -> Version:
    ref = VersionRef(model, int(to)) if to.isascii() and to.isdigit() and len(to) < 10 else parse_ref(to)
    version = context.catalog.resolve(ref)
    if version.name != model:
        raise UsageError(f"{version.ref} is no version of {model}.")
    if version.archived or version.quarantined:
        raise ConflictError(
            f"{version.ref} is {version.state}.", hint=f"Choose a sound version: mlx history {model}"
        )
    return version


def _previous(context: Context, model: str, alias: str) -> tuple[Version, tuple[str, ...]]:
    passed: list[str] = []
    for number in context.catalog.journal(model).rollback_targets(alias):
        try:
            version = context.catalog.resolve(VersionRef(model, number))
        except NotFoundError:
            passed.append(f"{model}/{number} is no longer there and was passed over.")
            continue
        if not version.archived and not version.quarantined:
            return version, tuple(passed)
        passed.append(f"{version.ref} is {version.state} and was passed over.")
    raise ConflictError(
        f"No earlier holder of {model}@{alias} is left to go back to.",
        hint=" ".join((*passed, f"Name a version: mlx rollback {model} --to NUMBER; see: mlx list {model}")),
    )


def _result(
    target: Version, alias: str, before: int, event: Event | None, warnings: tuple[str, ...]
) -> Result:
    name = target.name
    went = f"{name}@{alias} went back from {holder_text(before)} to {target.number}."
    return Result(
        command="rollback",
        data={
            "name": name,
            "alias": alias,
            "version": target.number,
            "before": before,
            "after": target.number,
            "changed": event is not None,
            "event": event.document() if event else None,
        },
        report=Report(
            title=f"rollback {name}",
            summary=went if event else f"{name}@{alias} is {target.number} already; nothing changed.",
            facts=event_facts(event) if event else (Fact("version", target.ref),),
            next_steps=(f"mlx history {name}", f"mlx show {name}/{before}"),
        ),
        warnings=warnings,
    )
