"""`mlx list`: the models of the registry, the versions of one, or the versions that fit a condition."""

from collections.abc import Iterable, Sequence

from mlx_platform.core.clock import both_zones, parse_time
from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import listed, plural
from mlx_platform.registry.damage import told_damage
from mlx_platform.registry.fields import Field, parse_field
from mlx_platform.registry.ref import check_alias
from mlx_platform.registry.selection import Asked, Selection
from mlx_platform.registry.version import ModelSummary, Version
from mlx_platform.registry.where import parse_where
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import version_table

SHOWN = 20
_TWINS = 5  # groups of versions with the same bytes that a page names, and names of each


def list_versions(
    context: Context,
    name: str | None = None,
    *,
    alias: str | None = None,
    where: str | None = None,
    since: str | None = None,
    sort: str | None = None,
    everything: bool = False,
    limit: int | None = None,
) -> Result:
    """List models, or a model's versions, newest first; with a condition or an order versions of every model.

    Args:
        context: the command's context.
        name: the model; every model without it.
        alias: only what holds this alias.
        where: only versions of which this is true; see `registry.where`.
        since: only versions registered since: a time with zone, or an age such as 7d.
        sort: a field of `where`, with `-` in front for the highest first.
        everything: archived versions as well, and no limit unless one is given.
        limit: at most so many lines, by default 20.

    Raises:
        NotFoundError: there is no registry, or no such model.
        UsageError: the condition, the time or the field makes no sense.
    """
    if alias is not None:
        check_alias(alias)
    if limit is None and not everything:
        limit = SHOWN
    if name is None and where is None and since is None and sort is None:
        return _models(context, alias, limit)
    condition = parse_where(where, now=context.clock()) if where is not None else None
    asked = Asked(
        where=condition,
        alias=alias,
        since=parse_time(since, now=context.clock()) if since is not None else None,
        sort=_order(sort) if sort is not None else None,
        # Whoever asks about the state means every state.
        archived=everything or bool(condition and condition.names("archived", "state")),
        limit=limit,
    )
    return _versions(context, name, asked)


def _order(text: str) -> tuple[Field, bool]:
    return parse_field(text.removeprefix("-")), text.startswith("-")


def _models(context: Context, alias: str | None, limit: int | None) -> Result:
    known = context.catalog.models()
    found = [model for model in known if alias is None or alias in model.aliases]
    shown = found[:limit]
    rows = tuple(
        (
            model.name,
            str(model.versions),
            model.newest.ref,
            both_zones(model.newest.created),
            "unknown"
            if model.problem
            else ", ".join(f"{held} {number}" for held, number in model.aliases.items()),
        )
        for model in shown
    )
    table = Table("", ("model", "versions", "newest", "created", "aliases"), rows, numeric=(1,))
    cut = f", the first {len(shown)} shown" if len(shown) < len(found) else ""
    return Result(
        command="list",
        data={
            "models": [
                {
                    "name": model.name,
                    "versions": model.versions,
                    "newest": model.newest.document(),
                    "aliases": dict(model.aliases),
                    "problem": model.problem,
                }
                for model in shown
            ],
            "total": len(found),
        },
        report=Report(
            title="list",
            summary=f"{plural(len(found), 'model')} in {context.catalog.shown}{cut}.",
            sections=(table,) if rows else (),
            next_steps=_model_steps(shown),
        ),
        warnings=(
            *(f"{model.problem} Who holds its aliases is not known." for model in known if model.problem),
            *_left_out(context.catalog.left_out()),
        ),
        # Who holds an alias was asked, and one answer is missing.
        code=IntegrityError.exit_code if alias and any(model.problem for model in known) else None,
    )


def _model_steps(shown: Sequence[ModelSummary]) -> tuple[str, ...]:
    if len(shown) == 1:
        (model,) = shown
        ref = f"{model.name}@production" if "production" in model.aliases else model.newest.ref
        return (f"mlx list {model.name}", f"mlx show {ref}")
    return ("mlx list NAME",) if shown else ("mlx register NAME model.onnx",)


def _left_out(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    shown = listed([repr(name) for name in names], 3)
    return (f"{plural(len(names), 'model')} of the registry cannot be used by this name: {shown}.",)


def _versions(context: Context, name: str | None, asked: Asked) -> Result:
    found = context.catalog.select(name, asked)
    versions = found.versions
    twins = _twins(versions)
    differences = _differences(context, name) if name else ()
    return Result(
        command="list",
        data={
            "name": name,
            "where": asked.where.text if asked.where else None,
            "versions": [version.document() for version in versions],
            "total": found.total,
            "same_bytes": twins,
        },
        report=Report(
            title=f"list {name}" if name else "list",
            summary=_summary(context, name, asked, found),
            facts=tuple(Fact("same bytes", listed(group, _TWINS)) for group in twins[:_TWINS]),
            sections=(version_table(versions, "", asked.fields),) if versions else (),
            next_steps=(f"mlx show {versions[0].ref}",) if versions else (),
        ),
        warnings=(*found.warnings, *differences, *(text for one in versions for text in told_damage(one))),
        code=IntegrityError.exit_code if found.incomplete else None,
    )


def _differences(context: Context, name: str) -> tuple[str, ...]:
    try:
        return context.catalog.differences(name)
    except IntegrityError:
        return ()  # the selection warns of the broken journal already


def _summary(context: Context, name: str | None, asked: Asked, found: Selection) -> str:
    count = len(found.versions)
    what = plural(count if found.total is None else found.total, "version")
    what += f" of {name}" if name else f" in {context.catalog.shown}"
    if asked.alias:
        what += f" with the alias {asked.alias}"
    if asked.where:
        what += f" where {asked.where.text}"
    if found.total is not None and count < found.total:
        what += f", the first {count} shown; more with --limit or --all"
    elif found.total is None and count == asked.limit:
        what += ", the newest; more with --limit or --all"
    return f"{what}."


def _twins(versions: Iterable[Version]) -> list[list[str]]:
    """Versions of the same content: of several models, or registered on several machines at once."""
    groups: dict[str, list[str]] = {}
    for version in versions:
        groups.setdefault(version.content_digest or version.digest, []).append(version.ref)
    return [group for digest, group in groups.items() if digest and len(group) > 1]
