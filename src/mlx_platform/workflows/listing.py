"""`mlx list`: the models of the registry, or the versions of one."""

from mlx_platform.core.clock import both_zones
from mlx_platform.core.report import Report, Result, Table
from mlx_platform.core.text import listed, plural
from mlx_platform.registry.ref import check_alias
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import version_table


def list_versions(
    context: Context, name: str | None = None, *, alias: str | None = None, limit: int = 20
) -> Result:
    """List models, or a model's versions, newest first.

    Args:
        context: the command's context.
        name: the model; every model without it.
        alias: only what holds this alias.
        limit: at most so many lines.

    Raises:
        NotFoundError: there is no registry, or no such model.
    """
    return _models(context, alias, limit) if name is None else _versions(context, name, alias, limit)


def _models(context: Context, alias: str | None, limit: int) -> Result:
    if alias is not None:
        check_alias(alias)
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
    steps = ("mlx list NAME", "mlx show NAME@production") if rows else ("mlx register NAME model.onnx",)
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
            next_steps=steps,
        ),
        warnings=(
            *(f"{model.problem} Who holds its aliases is not known." for model in known if model.problem),
            *_left_out(context.catalog.left_out()),
        ),
    )


def _left_out(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    shown = listed([repr(name) for name in names], 3)
    return (f"{plural(len(names), 'model')} of the registry cannot be used by this name: {shown}.",)


def _versions(context: Context, name: str, alias: str | None, limit: int) -> Result:
    versions = context.catalog.versions(name, alias=alias, limit=limit)
    what = f"{plural(len(versions), 'version')} of {name}"
    if alias:
        what += f" with the alias {alias}"
    elif len(versions) == limit:
        what += ", the newest; more with --limit"
    return Result(
        command="list",
        data={"name": name, "versions": [version.document() for version in versions]},
        report=Report(
            title=f"list {name}",
            summary=f"{what}.",
            sections=(version_table(versions, ""),) if versions else (),
            next_steps=(f"mlx show {versions[0].ref}",) if versions else (),
        ),
        warnings=context.catalog.differences(name),
    )
