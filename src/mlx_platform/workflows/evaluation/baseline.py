"""Which version an evaluation compares with."""

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.ref import is_alias
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject

PRODUCTION = "production"


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
    if named == "none" or (not named and subject.version is None):
        return None
    number = named.removeprefix("version:") if named.startswith("version:") else ""
    if not number and named and named != "pinned" and not is_alias(named):
        return named
    if subject.version is None:
        raise UsageError(
            f"The baseline {printable(named, 80)!r} belongs to a registered model, and "
            f"{printable(subject.source)} is none.",
            hint="Name the baseline with --against NAME@production.",
        )
    if number:
        return f"{subject.name}/{number}"
    if named == "pinned":
        first = context.catalog.history(subject.name, alias=PRODUCTION)[-1:]
        return f"{subject.name}/{first[0].to_version}" if first else None
    alias = named or PRODUCTION
    return f"{subject.name}@{alias}" if alias in context.catalog.holders(subject.name) else None
