"""Which version an evaluation compares with."""

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.ref import is_alias
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject

PRODUCTION = "production"
_NUMBER = "version:"


def baseline_reference(context: Context, subject: Subject, *, against: str | None, named: str) -> str | None:
    """The reference to compare with.

    Args:
        context: the command's context.
        subject: what is evaluated.
        against: what the command line names.
        named: what the gate file names: an alias of the same model, `version:N`, `pinned` for the first
            version that production ever served, `none`, a reference, or nothing for production.

    Returns:
        None when nothing is to be compared, or nobody holds what is named.

    Raises:
        UsageError: the gate file names a version of the same model, and the subject is not registered.
    """
    if against:
        return against
    if subject.version is not None:
        return own_baseline(context, subject.name, named)
    if named in {"", "none"}:
        return None
    if _is_reference(named):
        return named
    raise UsageError(
        f"The baseline {printable(named, 80)!r} belongs to a registered model, and "
        f"{printable(subject.source)} is none.",
        hint="Name the baseline with --against NAME@production.",
    )


def own_baseline(context: Context, name: str, named: str) -> str | None:
    """What a gate file means for the versions of a registered model; see `baseline_reference`."""
    if named == "none":
        return None
    if _is_reference(named):
        return named
    if named.startswith(_NUMBER):
        return f"{name}/{named.removeprefix(_NUMBER)}"
    if named == "pinned":
        first = context.catalog.history(name, alias=PRODUCTION)[-1:]
        return f"{name}/{first[0].to_version}" if first else None
    alias = named or PRODUCTION
    return f"{name}@{alias}" if alias in context.catalog.holders(name) else None


def _is_reference(named: str) -> bool:
    return bool(named) and named != "pinned" and not named.startswith(_NUMBER) and not is_alias(named)
