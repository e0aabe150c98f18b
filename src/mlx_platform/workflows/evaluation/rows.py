"""The labelled rows of an evaluation, and a model's answers to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlx_platform.core.errors import IntegrityError, UsageError
from mlx_platform.core.settings import EvaluationSettings
from mlx_platform.core.tensors import Array, Columns, row_count
from mlx_platform.core.text import plural, printable
from mlx_platform.evaluation.gates import DatasetRules
from mlx_platform.evaluation.truth import CLASS_TASKS, model_labels
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject, open_model

if TYPE_CHECKING:
    from mlx_platform.inference.dataset import Dataset

_CHUNK = 1024  # rows between two signs of progress


@dataclass(frozen=True, slots=True)
class Rows:
    """What the model gets, what is true, and what a row is called.

    Attributes:
        dataset: the file.
        label: the column of the truth.
        features: what the model gets.
        truth: as it stands in the file [rows].
        ids: what rows are called [rows].
        weights: what each row counts [rows]; None for one each.
        groups: which rows depend on each other [rows]; None where none do.
        queries: which rows are ranked together [rows]; None where nothing is ranked.
        slices: the columns that make slices [rows].
        warnings: about the data.
    """

    dataset: "Dataset"
    label: str
    features: Columns
    truth: Array
    ids: Sequence[object]
    weights: Array | None = None
    groups: Array | None = None
    queries: Array | None = None
    slices: Mapping[str, Array] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """A model's answer columns, and the labels of its classes (empty for regression)."""

    columns: dict[str, Array]
    labels: tuple[str, ...]


def labelled_rows(
    dataset: "Dataset",
    rules: DatasetRules,
    settings: EvaluationSettings,
    *,
    inputs: Sequence[str],
    slices: Sequence[str] = (),
) -> Rows:
    """Tell inputs from label, id, weight, group, query and slices.

    Args:
        dataset: the file.
        rules: what the command line and the gate file say about it, before the settings.
        settings: the usual names.
        inputs: columns that the model takes by name; they are inputs whatever they are called.
        slices: columns that make slices.

    Raises:
        UsageError: there is no such column.
        IntegrityError: it is not the file that the gate file names.
    """
    if rules.sha256 and rules.sha256.lower() != dataset.fingerprint:
        raise IntegrityError(
            f"{dataset.path} is not the data that the gate file names: its SHA-256 is {dataset.fingerprint}.",
            hint="Evaluate on that file, or change dataset.sha256.",
        )
    if rules.path and Path(rules.path).name != dataset.path.name:
        raise UsageError(
            f"The gates are for {printable(rules.path)}, not for {dataset.path}.",
            hint="Evaluate on that file, or take path out of the gate file's dataset table.",
        )
    label = rules.label or settings.label
    truth = dataset.column(label)
    named = rules.id or settings.id
    id_column = named or next((name for name in ("id", "path") if name in dataset.columns), "")
    named_weight = rules.weight or settings.weight
    beside = {id_column, named_weight or "weight", rules.group, rules.query, *slices} - {"", *inputs}
    features = dataset.features(label=label, drop=sorted(beside & set(dataset.columns)))
    ids = dataset.column(id_column).tolist() if id_column else range(dataset.rows)
    warnings = []
    repeated = len(ids) - len(set(map(str, ids))) if id_column else 0
    if repeated:
        warnings.append(f"{plural(repeated, 'row')} repeat an id of the column {printable(id_column)!r}.")
    return Rows(
        dataset,
        label,
        features,
        truth,
        ids,
        weights=dataset.column(named_weight) if named_weight else None,
        groups=dataset.column(rules.group) if rules.group else None,
        queries=dataset.column(rules.query) if rules.query else None,
        slices={name: dataset.column(name) for name in slices},
        warnings=tuple(warnings),
    )


def answer(context: Context, subject: Subject, features: Columns) -> Answered:
    """Load the subject and let it answer all rows, with progress.

    Raises:
        UsageError: names the column and the row that the model cannot take.
    """
    from mlx_platform.inference.steps.step import CellError

    model = open_model(context, subject)
    total = row_count(features)
    parts: list[dict[str, Array]] = []
    with context.progress.stage(f"answering with {subject.ref}", total) as advance:
        for start in range(0, total, _CHUNK):
            chunk = {name: column[start : start + _CHUNK] for name, column in features.items()}
            try:
                parts.append(model.predict(chunk).columns)
            except CellError as error:
                raise error.moved(start) from error
            advance(row_count(chunk))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    labels = model_labels(columns, model.labels) if model.spec.task in CLASS_TASKS else ()
    return Answered(columns, labels)
