"""Evidently's report and scores beside ours, of the same rows.

It works on rows, which neither a profile nor counts have; up to `ROWS` of each side are taken.
"""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.report import Result, Table
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.core.text import first_line, plural, printable
from mlx_platform.drift.verdict import FeatureDrift
from mlx_platform.drift.watched import Watched
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.readers.opening import Reading
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.counting import is_file_of_rows, log_batches
from mlx_platform.workflows.drifting.outcome import Outcome
from mlx_platform.workflows.drifting.page import worst_first
from mlx_platform.workflows.drifting.profiling import source_rows
from mlx_platform.workflows.drifting.window import Window

ROWS = 50_000
PAGE = "evidently.html"
_SCRIPT = "mlx_platform.workflows.drifting.evidently_run"
_PATIENCE = 600.0
_THRESHOLD = 0.1  # Evidently's own for PSI


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of both sides are, and how they become features."""

    watched: Watched
    baseline: Path
    traffic: Path
    reading: Reading


@dataclass(frozen=True, slots=True)
class Beside:
    """Evidently's PSI by feature, and how many rows of baseline and window it saw."""

    scores: Mapping[str, float]
    rows: tuple[int, int]

    def document(self) -> dict[str, object]:
        return {
            "rows": {"baseline": self.rows[0], "window": self.rows[1]},
            "psi": {name: value if math.isfinite(value) else None for name, value in self.scores.items()},
        }


def check_evidently(*, wanted: bool, report: Path | None, baseline: Path | None) -> None:
    """Refuse what Evidently cannot be run on.

    Raises:
        UsageError: there is no folder for its page, or the baseline has no rows.
    """
    if not wanted:
        return
    if report is None:
        raise UsageError("--evidently writes a page into the report's folder.", hint="Add --report DIR.")
    if baseline is None or baseline.suffix.lower() == ".json":
        raise UsageError(
            "Evidently compares rows, and a profile holds none.", hint="Name the rows: --baseline FILE."
        )


def with_evidently(context: Context, result: Result, outcome: Outcome, rows: Rows, report: Path) -> Result:
    """The result with Evidently's scores beside ours, and its page in the report's folder.

    What Evidently cannot do takes nothing from what was found here: it is a warning, and a pass has its exit
    code.
    """
    try:
        report.mkdir(parents=True, exist_ok=True)
        beside = _run(context, outcome, rows, report / PAGE)
    except (MlxError, OSError, subprocess.TimeoutExpired) as error:
        warning = f"There is no report of Evidently: {first_line(error)}."
        code = MlxError.exit_code if result.exit_code == 0 else result.code
        return replace(result, warnings=(*result.warnings, warning), code=code)
    found = worst_first(outcome.groups[0].whole.features)
    page = replace(result.report, details=(_table(beside, found), *result.report.details))
    return replace(result, data={**result.data, "evidently": beside.document()}, report=page)


def _run(context: Context, outcome: Outcome, rows: Rows, page: Path) -> Beside:
    """Run Evidently on the rows of both sides, in a process of its own."""
    names = {feature.name for feature in outcome.features if feature.role == "input" and feature.scores}
    package = outcome.subject.package if outcome.subject else None
    with tempfile.TemporaryDirectory() as name, context.progress.stage("running Evidently"):
        folder = Path(name)
        baseline = _first(rows.watched, source_rows(context, package, rows.baseline), names)
        window = _first(rows.watched, _window_rows(context, outcome, rows), names)
        shared = baseline.keys() & window.keys()
        if not shared:
            raise MlxError("no feature has rows on both sides")
        files = folder / "baseline.parquet", folder / "window.parquet"
        sides = _written(files[0], baseline, shared), _written(files[1], window, shared)
        scores = folder / "scores.json"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", _SCRIPT, *map(str, (*files, page, scores))],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
            raise MlxError(printable(last[0], 300))
        found = {str(name): float(score) for name, score in json.loads(scores.read_text()).items()}
        return Beside(found, sides)


def _window_rows(context: Context, outcome: Outcome, rows: Rows) -> Iterator[Columns]:
    package = outcome.subject.package if outcome.subject else None
    if is_file_of_rows(rows.traffic, rows.reading):
        yield from source_rows(context, package, rows.traffic)
        return
    window = Window(str(rows.traffic), outcome.window.cut, outcome.baseline.profile, {}, LogStats())
    for batch in log_batches(context, outcome.subject, rows.traffic, window, rows.reading):
        yield batch.inputs


def _first(watched: Watched, rows: Iterable[Columns], names: set[str]) -> dict[str, list[Array]]:
    """The first rows as features, those that every batch has."""
    found: dict[str, list[Array]] = {name: [] for name in names}
    count = 0
    for columns in rows:
        if count >= ROWS:
            break
        features = watched.inputs(columns)
        length = len(next(iter(columns.values()), ()))
        for name in list(found):
            column = features.get(name)
            if isinstance(column, np.ndarray) and column.ndim == 1 and len(column) == length:
                found[name].append(column[: ROWS - count])
            else:
                del found[name]
        count += length
    return {name: parts for name, parts in found.items() if parts}


def _written(path: Path, features: Mapping[str, Sequence[Array]], names: Collection[str]) -> int:
    """Write a Parquet file; how many rows it has."""
    import pandas as pd

    frame = pd.DataFrame({name: np.concatenate(features[name]) for name in sorted(names)})
    frame.to_parquet(path)
    return len(frame)


def _table(beside: Beside, found: Sequence[FeatureDrift]) -> Table:
    """Both tools' numbers, feature by feature, and why they differ."""
    rows = tuple(
        (
            feature.name,
            f"{feature.psi:.4f}",
            f"{feature.decision.adjusted:.4f}" if feature.decision else "",
            str(feature.level),
            f"{beside.scores[feature.name]:.4f}",
            "drift" if beside.scores[feature.name] >= _THRESHOLD else "ok",
            _why(feature),
        )
        for feature in found
        if feature.name in beside.scores and feature.role == "input"
    )
    ours, theirs = ("PSI", "beyond chance", "verdict"), ("Evidently's PSI", "its verdict")
    columns = ("feature", *ours, *theirs, "why they differ")
    seen = f"{plural(beside.rows[0], 'row')} of the baseline and {beside.rows[1]:,} of the window"
    return Table(f"Beside Evidently, on {seen}", columns, rows, numeric=(1, 2, 4))


def _why(feature: FeatureDrift) -> str:
    """What of the data makes the two definitions part."""
    reasons = []
    if any(feature.missing_rate):
        reasons.append("missing values are a bin here, and left out there")
    if feature.kind == "numeric":
        reasons.append("deciles of the baseline here, equal widths over both sides there")
    if feature.out_of_range > 0.001:
        reasons.append("values outside of the baseline stretch its bins")
    if feature.kind == "categorical" and (feature.new_categories or feature.gone_categories):
        reasons.append("an empty bin gets half a row here, 0.0001 of the rows there")
    return "; ".join(reasons) or "only smoothing"
