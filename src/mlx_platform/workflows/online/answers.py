"""What a logged request was answered, as columns of one entry per row."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_platform.core.errors import MlxError
from mlx_platform.core.tensors import Array, Columns, Tensors, decode_array, text_column
from mlx_platform.evaluation.resample import Floats
from mlx_platform.traffic.record import Record

_SCORES = 20_000  # of rows without a label, to compare with those that have one
_UNUSABLE = (MlxError, LookupError, TypeError, ValueError)
"""What a log with cells that no server would write can bring about in the pipeline."""


class Reservoir:
    """A sample of records, drawn evenly in one pass (Vitter, ACM TOMS 11, 1985)."""

    def __init__(self) -> None:
        self._kept: list[Record] = []
        self._seen = 0
        self._generator = random.Random(0)  # noqa: S311 - a repeatable draw, no secret

    def offer(self, record: Record) -> None:
        self._seen += 1
        if len(self._kept) < _SCORES:
            self._kept.append(replace(record, inputs={}))
        elif (place := self._generator.randrange(self._seen)) < _SCORES:
            self._kept[place] = replace(record, inputs={})

    def scores(self, decode: Callable[[Tensors], Columns]) -> Floats:
        parts = [scores_of(answers_of(record, decode)) for record in self._kept]
        return np.concatenate(parts) if parts else np.empty(0)


def answers_of(record: Record, decode: Callable[[Tensors], Columns]) -> Columns:
    """What was answered, one entry per row; nothing where the log does not tell."""
    try:
        arrays = {name: decode_array(encoded) for name, encoded in record.outputs.items()}
        answers = decode(arrays) if record.endpoint == "infer" else arrays
    except _UNUSABLE:
        return {}
    rows = max(1, record.rows)
    return {name: array for name, array in answers.items() if array.ndim and len(array) == rows}


def scores_of(answers: Columns) -> Floats:
    """One number per row that tells how the model answered: its confidence, or the value it predicted."""
    if "confidence" in answers:
        found = answers["confidence"]
    elif "probabilities" in answers:
        found = answers["probabilities"].max(axis=-1)
    else:
        found = answers.get("value", np.empty(0))
    try:
        numbers: Floats = np.asarray(found, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        return np.empty(0)
    return numbers[np.isfinite(numbers)]


def stacked(cells: list[Any]) -> Array:
    """Cells of one kind as a column [rows, ...]; of different shapes as objects."""
    if all(
        isinstance(cell, np.generic | np.ndarray) and np.shape(cell) == np.shape(cells[0]) for cell in cells
    ):
        return np.stack(cells)
    return text_column(cells)
