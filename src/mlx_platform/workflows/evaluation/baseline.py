"""Which versions an evaluation compares with."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.evaluation.gates import GateFile
from mlx_platform.registry.ref import is_alias
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject, open_subject

PRODUCTION = "production"
_NUMBER = "version:"


@dataclass(frozen=True, slots=True)
class Others:
    """What the subject is compared with: the baseline, and by name what gates guard against besides."""

    baseline: Subject | None = None
    guards: dict[str, Subject] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Subject, ...]:
        return (*([self.baseline] if self.baseline else []), *self.guards.values())


def open_others(
    context: Context, stack: ExitStack, subject: Subject, *, against: str | None, asked: GateFile
) -> Others:
    """Hold the packages to compare with for as long as the stack.

    Args:
        context: the command's context.
        stack: closes them.
        subject: what is evaluated.
        against: the baseline that the command line names.
        asked: the gates.

    Raises:
        MlxError: a baseline cannot be loaded, or is a model for another task; the message names it.
    """
    ref = baseline_reference(context, subject, against=against, named=asked.baseline)
    baseline = _open(context, stack, subject, ref, "baseline") if ref else None
    guards = {}
    for name in asked.guards:
        guarded = _guard_reference(context, subject, baseline, name)
        if guarded:
            guards[name] = _open(context, stack, subject, guarded, f"guard {name!r}")
    return Others(baseline, guards)


def _open(context: Context, stack: ExitStack, subject: Subject, ref: str, what: str) -> Subject:
    try:
        other = stack.enter_context(open_subject(context, ref))
    except MlxError as error:
        # The kind of error stays, since it tells what is wrong with the registry, the file or its bytes.
        message = f"The {what} {printable(ref, 200)} cannot be loaded. {error.message}"
        raise type(error)(message, hint=error.hint, **error.details) from error
    task, wanted = other.package.spec.task, subject.package.spec.task
    if task != wanted:
        raise UsageError(
            f"{printable(other.ref)} is a model for {task}: it cannot be the {what} of one for {wanted}."
        )
    return other


def _guard_reference(context: Context, subject: Subject, baseline: Subject | None, named: str) -> str | None:
    if subject.version is None and baseline is not None and baseline.version is not None:
        # A file that is compared with a registered version is guarded by that model's history.
        return own_baseline(context, baseline.version.name, named)
    return baseline_reference(context, subject, against=None, named=named)


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
