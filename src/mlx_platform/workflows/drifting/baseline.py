"""The profile that a window is compared with: of the package, of a file, or made from reference rows."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.span import ALWAYS, Span
from mlx_platform.core.text import listed
from mlx_platform.drift.building import Built
from mlx_platform.drift.counts import Counts, count_features
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.drift.feature import Role
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.refit import refit
from mlx_platform.drift.watched import watched
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.counting import count_window, is_file_of_rows
from mlx_platform.workflows.drifting.profiling import answered_rows, profile_log, profile_rows
from mlx_platform.workflows.drifting.window import Cut
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.subject import Subject, open_model


@dataclass(frozen=True, slots=True)
class Baseline:
    """A profile, where it comes from in words, what is to be known about it, and what it holds of a model."""

    profile: Profile
    source: str
    warnings: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ("input", "output")


@dataclass(frozen=True, slots=True)
class Sources:
    """What to compare with.

    Attributes:
        baseline: a profile, rows or a log; None takes the profile of the package.
        reference: rows or a log that are counted on the bins of the baseline, and take its place.
        span: which part of a log is meant.
        assume_tz: the zone of times in a log that name none.
    """

    baseline: Path | None = None
    reference: Path | None = None
    span: Span = ALWAYS
    assume_tz: str | None = None


def find_baseline(context: Context, subject: Subject | None, sources: Sources) -> Baseline:
    """The baseline to compare with; a file that is named outranks the package's own.

    Raises:
        NotFoundError: there is no such file.
        UndecidedError: nothing was named and the package holds none, or what was named has no rows.
        UsageError: the file is neither a profile nor rows nor a log.
    """
    reference, path = sources.reference, sources.baseline
    if path is None and reference is not None and (subject is None or not subject.package.baseline_path):
        # There are no bins yet: the reference makes them.
        path, reference = reference, None
    if path is not None:
        found = _from_path(context, subject, path, sources)
    elif subject is None:
        raise UsageError("Name a version, or a baseline with --baseline.")
    else:
        found = _of_package(subject)
    return found if reference is None else _on_bins(context, subject, reference, found, sources)


def _of_package(subject: Subject) -> Baseline:
    stored = subject.package.baseline_path
    if stored is None:
        raise UndecidedError(
            f"{subject.ref} has no baseline, so there is nothing to compare its traffic with.",
            hint=f"Register it with rows as in training: mlx register {subject.name} SOURCE --baseline DATA; "
            "or name them here: --baseline DATA.",
        )
    return Baseline(Profile.from_json(stored.read_bytes()), f"profile of {subject.ref}")


def _from_path(context: Context, subject: Subject | None, path: Path, sources: Sources) -> Baseline:
    if path.suffix.lower() == ".json" and not path.is_dir():
        try:
            return _from_json(path, path.read_bytes())
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no baseline {path}.") from error
        except OSError as error:
            raise UsageError(f"Cannot read the baseline {path}: {error.strerror}.") from error
    built, source, warnings = build_baseline(context, subject, path, sources)
    return Baseline(built.profile, source, (*warnings, *told(built)))


def build_baseline(
    context: Context, subject: Subject | None, path: Path, sources: Sources
) -> tuple[Built, str, tuple[str, ...]]:
    """Profile rows or a log.

    Returns:
        The profile, where it comes from in words, and warnings about what was read.
    """
    reading = make_reading(subject, assume_tz=sources.assume_tz)
    if is_file_of_rows(path, reading):
        _check_no_span(path, sources.span)
        model = open_model(context, subject, device="cpu") if subject else None
        return profile_rows(context, model, path), f"rows of {path}", ()
    built, window = profile_log(context, subject, path, Cut(sources.span), reading)
    return built, f"traffic of {path}", tuple(window.warnings())


def told(built: Built) -> tuple[str, ...]:
    """What a profile does not know exactly, in sentences."""
    found = []
    if built.thinned:
        found.append(
            "The baseline is large: the edges of the bins are quantiles to 0.1 % of the rows; what lies "
            f"between them is counted exactly. This holds for {listed(list(built.thinned), 5)}."
        )
    for name, bound in built.tails.items():
        known = f"; every one with more than {bound:,} rows is among them" if bound else ""
        found.append(f"{name} has more categories than are kept by name{known}. The others count together.")
    return tuple(found)


def _on_bins(
    context: Context, subject: Subject | None, path: Path, baseline: Baseline, sources: Sources
) -> Baseline:
    """What a reference holds, on the bins of a baseline."""
    profile = baseline.profile
    look = watched(subject.package if subject else None, profile)
    names = tuple(feature.name for feature in profile.of_role("input"))
    reading = make_reading(subject, names, assume_tz=sources.assume_tz)
    warnings: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ("input", "output")
    if subject is not None and is_file_of_rows(path, reading):
        _check_no_span(path, sources.span)
        counts = _count_answered(context, subject, profile, path)
    else:
        window = count_window(context, subject, profile, look, path, Cut(sources.span), reading)
        counts, warnings, roles = window.counts, tuple(window.warnings()), window.roles
    if not counts.rows:
        raise UndecidedError(f"The reference {path} holds no rows to compare with.")
    source = f"{path} on the bins of the {baseline.source}"
    return Baseline(refit(profile, counts), source, (*baseline.warnings, *warnings), roles)


def _count_answered(context: Context, subject: Subject, profile: Profile, path: Path) -> Counts:
    model = open_model(context, subject, device="cpu")
    counts = Counts.nothing(profile)
    with context.progress.stage("counting the reference"):
        look = InputFeatures(model.spec, model.package.root, profile.vocabularies)
        for batch in answered_rows(context, model, look, path):
            counts += count_features(profile, batch)
    return counts


def _check_no_span(path: Path, span: Span) -> None:
    if span != ALWAYS:
        raise UsageError(f"{path} is a plain data file, whose rows have no time to select by.")


def _from_json(path: Path, content: bytes) -> Baseline:
    """A profile of ours, or the statistics of Amazon SageMaker Model Monitor."""
    from mlx_platform.drift.model_monitor import is_constraints, is_statistics, profile_of_statistics

    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        document = None
    if is_statistics(document):
        return Baseline(profile_of_statistics(document), f"statistics of Model Monitor {path}")
    if is_constraints(document):
        raise UsageError(
            f"{path} holds Model Monitor's constraints, and no distribution to compare with.",
            hint="Name the statistics.json that lies beside it.",
        )
    return Baseline(Profile.from_json(content), f"profile {path}")
