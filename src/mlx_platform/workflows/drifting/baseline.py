"""The profile that a window is compared with: of the package, of a file, or made from reference rows."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.drift.profile import Profile, build_profile, profile_columns
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.parquet import columns, is_plain, open_table
from mlx_platform.workflows.inputs import left_out
from mlx_platform.workflows.subject import Subject, open_model


@dataclass(frozen=True, slots=True)
class Baseline:
    """A profile, and where it comes from in words."""

    profile: Profile
    source: str


def find_baseline(context: Context, subject: Subject | None, path: Path | None) -> Baseline:
    """The baseline to compare with; a file that is named outranks the package's own.

    Raises:
        NotFoundError: there is no such file.
        UndecidedError: nothing was named, and the package holds none.
        UsageError: the file is neither a profile nor rows.
    """
    if path is not None:
        return _from_file(context, subject, path)
    if subject is None:
        raise UsageError("Name a version, or a baseline with --baseline.")
    stored = subject.package.baseline_path
    if stored is None:
        raise UndecidedError(
            f"{subject.ref} has no baseline, so there is nothing to compare its traffic with.",
            hint=f"Register it with rows as in training: mlx register {subject.name} SOURCE --baseline DATA; "
            "or name them here: --baseline DATA.",
        )
    return Baseline(Profile.from_json(stored.read_bytes()), f"profile of {subject.ref}")


def _from_file(context: Context, subject: Subject | None, path: Path) -> Baseline:
    if path.suffix.lower() == ".json":
        try:
            return _from_json(path, path.read_bytes())
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no baseline {path}.") from error
        except OSError as error:
            raise UsageError(f"Cannot read the baseline {path}: {error.strerror}.") from error
    from mlx_platform.inference.dataset import read_dataset

    with context.progress.stage("profiling the baseline"):
        if subject is None and is_plain(path):
            with open_table(path) as table:
                found = columns(table, left_out(context, None))
                return Baseline(profile_columns(table.metadata.num_rows, found), f"rows of {path}")
        package = subject.package if subject else None
        rows = read_dataset(path).features(drop=left_out(context, package))
        if subject is None:
            return Baseline(build_profile(rows), f"rows of {path}")
        from mlx_platform.inference.model import features

        answers = open_model(context, subject, device="cpu").predict(rows).columns
        return Baseline(build_profile(features(subject.package.spec, rows), answers), f"rows of {path}")


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
