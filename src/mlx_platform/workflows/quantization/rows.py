"""The rows to calibrate on and the rows to judge by."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.settings import EvaluationSettings
from mlx_platform.core.tensors import Array, Columns, row_count
from mlx_platform.core.text import plural, printable
from mlx_platform.workflows.evaluation.kept import Names
from mlx_platform.workflows.evaluation.layout import no_weights, usual_id
from mlx_platform.workflows.inputs import no_inputs

if TYPE_CHECKING:
    from mlx_platform.inference.dataset import Dataset
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import Package

MOST_ROWS = 1000  # more hardly widen a range; they are taken evenly from the file
_PROBE_ROWS = 16
_SEARCH_ROWS, _SEARCH_LEAST = 256, 100
_BATCH = 32
_REPEATED = 0.05  # share of the judging rows, as in most real data a few are alike


@dataclass(frozen=True, slots=True)
class Calibration:
    """Feature columns to calibrate on; `numbers` holds each row's place in the file, counted from 0."""

    columns: Columns
    numbers: Array
    path: Path
    rows_in_file: int

    @property
    def rows(self) -> int:
        return len(self.numbers)

    def name(self, row: int) -> str:
        """What to call a row in a message; the fill of a last batch goes by its last row."""
        return f"row {self.numbers[min(row, self.rows - 1)]} of {self.path}"

    def first(self, rows: int = _PROBE_ROWS) -> "Calibration":
        return self._some(slice(rows))

    def spread(self, most: int) -> "Calibration":
        """So many of the rows, taken evenly."""
        return self._some(np.linspace(0, self.rows - 1, min(self.rows, most)).round().astype(np.int64))

    def _some(self, kept: Any) -> "Calibration":
        return Calibration(take(self.columns, kept), self.numbers[kept], self.path, self.rows_in_file)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the file, and the row by its place there, in whatever is wrong with a row of these."""
        from mlx_platform.inference.steps.step import CellError

        with about(self.path):
            try:
                yield
            except CellError as error:
                raise error.moved(int(self.numbers[min(error.row, self.rows - 1)]) - error.row) from error


@dataclass(frozen=True, slots=True)
class Rows:
    """Both files, and how they fit together.

    `judged` and `truth` are the labelled rows, and `weights` what they count where the settings name a column
    for it. `groups` says which of them are the same inputs once more, where there are many such. `search` are
    rows to compare candidates on: none of them judges, and where there are enough none of them calibrates.
    """

    calibration: Calibration
    search: Calibration
    judged: Columns
    truth: Array
    weights: Array | None
    groups: Array | None
    label: str
    path: Path
    fingerprints: Mapping[str, str]
    warnings: tuple[str, ...]

    def identity(self, package: "Package") -> str:
        """What tells the calibration rows, as the model of a package gets them, from all others."""
        parts = (
            self.fingerprints["calibration"],
            package.content_digest,
            *sorted(self.calibration.columns),
            hashlib.sha256(self.calibration.numbers.tobytes()).hexdigest(),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_rows(
    settings: EvaluationSettings, calibration: Path, data: Path, label: str | None, taken: Sequence[str]
) -> Rows:
    """Read both files and check that they fit their purposes.

    Args:
        settings: name the columns that are no features.
        calibration: a data file.
        data: a data file with labels.
        label: the column of the labels, when not the one of the settings.
        taken: the columns that the model takes by name.

    Raises:
        UsageError: a feature is NaN or infinite, the label column is missing, or more than a twentieth of the
            rows that shall judge are calibration rows too; see `_check_ids` as well.
    """
    from mlx_platform.inference.dataset import read_dataset
    from mlx_platform.quantize.rows import few_rows, overlap, refuse_not_finite

    name = label or settings.label
    sources = {"calibration": read_dataset(calibration), "data": read_dataset(data)}
    truth = sources["data"].column(name)
    for source in sources.values():
        for column in taken:
            source.column(column)
    _check_ids(sources["data"], settings, (*taken, name))
    aside = no_inputs(settings, taken, label=name) | ({"path"} - set(taken))
    fit, judged = (source.features(label=name, drop=aside) for source in sources.values())
    if not taken:
        _check_order(fit, judged, calibration, data)
    refuse_not_finite(fit, str(calibration))
    refuse_not_finite(judged, str(data))
    shared = overlap(fit, judged)
    if shared.too_large:
        raise UsageError(
            f"{shared.shared:,} of the {plural(shared.rows, 'row')} in {data} are calibration rows too:"
            " judged by rows that it was fitted to, a model looks better than it is.",
            hint="Calibrate on other rows, such as some of the training data.",
            shared=shared.shared,
        )
    rows = sources["calibration"].rows
    few = few_rows(len(np.unique(_inputs_of(fit, taken))))
    warnings = [few] if few else []
    if settings.weight and settings.weight not in sources["data"].columns:
        warnings.append(no_weights(settings.weight))
    if shared.shared:
        warnings.append(f"{shared.shared:,} of the rows in {data} are calibration rows too.")
    groups, repeated = _repeats(_inputs_of(judged, taken), data)
    warnings += filter(None, [repeated])
    numbers = np.linspace(0, rows - 1, min(rows, MOST_ROWS)).round().astype(np.int64)
    searched = _search_numbers(fit, judged, numbers)
    return Rows(
        calibration=Calibration(take(fit, numbers), numbers, calibration, rows),
        search=Calibration(take(fit, searched), searched, calibration, rows),
        judged=judged,
        truth=truth,
        weights=_weights(sources["data"], settings.weight),
        groups=groups,
        label=name,
        path=data,
        fingerprints={key: source.fingerprint for key, source in sources.items()},
        warnings=tuple(warnings),
    )


def _check_order(fit: Columns, judged: Columns, calibration: Path, data: Path) -> None:
    """Refuse two files whose columns a model that takes them by their places would take for others.

    Raises:
        UsageError: names the first place at which they differ.
    """
    for place, (ours, theirs) in enumerate(zip_longest(fit, judged), start=1):
        if ours != theirs:
            first, second = (
                f"{printable(name, 80)!r}" if name is not None else "nothing" for name in (ours, theirs)
            )
            raise UsageError(
                f"The model takes columns by their order, and column {place} is {first} in {calibration}"
                f" but {second} in {data}.",
                hint="Give both files the same columns in the order of the training data,"
                " or name the columns in a model.toml.",
            )


def _inputs_of(columns: Columns, taken: Sequence[str]) -> Array:
    """A digest of what the model sees of each row: of the columns that it takes by name, else of all."""
    from mlx_platform.inference.digests import row_digests

    named = {name: columns[name] for name in taken if name in columns}
    return row_digests(named or columns)


def _repeats(inputs: Array, path: Path) -> tuple[Array | None, str]:
    """Which rows are the same once more, and a warning, where so many are that it matters."""
    rows, different = len(inputs), len(np.unique(inputs))
    if rows - different <= _REPEATED * rows:
        return None, ""
    return inputs, (
        f"The {plural(rows, 'row')} of {printable(str(path))} hold {different:,} different inputs:"
        " rows that are alike count as one."
    )


def _weights(data: "Dataset", name: str) -> Array | None:
    """What each row counts, where the settings name a column that is there."""
    from mlx_platform.evaluation.truth import weight_numbers

    with about(data.path):
        return weight_numbers(data.columns[name], name) if name in data.columns else None


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Name the file in whatever is wrong with its rows."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint, **error.details) from error


def _check_ids(data: "Dataset", settings: EvaluationSettings, taken: Sequence[str]) -> None:
    """Refuse rows that their ids do not tell apart: each of them would count once more.

    Raises:
        UsageError: of the column that the settings name.
        UndecidedError: of one that is only called so.
    """
    name = settings.id or usual_id(data.columns, taken)
    if not name:
        return
    names = Names(data.rows)
    names.add(data.column(name))
    names.finish()
    doubtful = names.repeated + names.missing
    if doubtful:
        message = (
            f"{data.path}: {plural(doubtful, 'row')} may count twice, as ids of the column "
            f"{printable(name, 80)!r} are there again or missing."
        )
        hint = "Leave them out, or name another column in [evaluation] id."
        raise UsageError(message, hint=hint) if settings.id else UndecidedError(message, hint=hint)


def _search_numbers(fit: Columns, judged: Columns, calibrated: Array) -> Array:
    """Places of rows that do not judge, drawn by their digests: of those that calibrate only at need."""
    from mlx_platform.inference.digests import row_digests

    names = sorted(set(fit) & set(judged))
    if not names:
        return calibrated[:_SEARCH_ROWS]
    ours, theirs = (row_digests({name: side[name] for name in names}) for side in (fit, judged))
    apart = np.flatnonzero(~np.isin(ours, theirs))
    left = np.setdiff1d(apart, calibrated)
    drawn = next((rows for rows in (left, apart) if len(rows) >= _SEARCH_LEAST), apart)
    if not len(drawn):
        drawn = calibrated
    order = np.argsort(ours[drawn], kind="stable")
    return np.sort(drawn[order[:_SEARCH_ROWS]])


def take(columns: Columns, rows: Any) -> dict[str, Array]:
    """Some rows of all columns."""
    return {name: column[rows] for name, column in columns.items()}


def feeds(model: "Model", calibration: Calibration) -> Iterator[dict[str, Array]]:
    """Rows as input tensors, batch by batch, each as production would send it.

    Where a dimension other than the first varies, such as a text's length, rows go one by one: filled up to
    the longest of a batch they would show the model values that it never meets.

    Raises:
        UsageError: a column is missing or holds what the model cannot take; names file, column and row.
    """
    fixed = model.spec.fixed_rows
    varies = any(dim is None for spec in model.spec.inputs for dim in spec.shape[1:])
    size = fixed or (1 if varies else _BATCH)
    for start in range(0, row_count(calibration.columns), size):
        # The last batch of a fixed size is filled up with the last row.
        stop = start + size if fixed else min(start + size, calibration.rows)
        at = np.arange(start, stop).clip(max=calibration.rows - 1)
        batch = Calibration(
            take(calibration.columns, at), calibration.numbers[at], calibration.path, calibration.rows_in_file
        )
        with batch.named():
            encoded = model.encode(batch.columns)
        yield encoded
