"""From raw columns to input tensors, and from output tensors to answers: the declared steps at work."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import (
    Array,
    Columns,
    Tensors,
    TensorSpec,
    check_tensor,
    row_count,
    text_column,
)
from mlx_platform.core.text import did_you_mean, listed, plural, printable
from mlx_platform.inference.rows import column_kinds
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.inference.steps.step import Batch
from mlx_platform.inference.steps.table import as_numbers, as_type, stack
from mlx_platform.inference.steps.text import as_texts


class Pipeline:
    """The steps of one model, their assets loaded; safe to use from many threads.

    Attributes:
        columns: raw columns taken by name; () when one plain input takes all columns in order.
        kinds: what each of them holds.
    """

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self._spec = spec
        self._pre = spec.pre_steps()
        self._post = spec.post_steps()
        for step in (*self._pre, *self._post):
            step.load(root)
        self.columns = spec.columns
        self.kinds = column_kinds(spec)
        self._answers = [name for step in self._post for name in step.answers]
        self._made = {name for step in self._pre for name in step.makes}

    def encode(self, rows: Columns) -> dict[str, Array]:
        """The input tensors of raw columns.

        Raises:
            UsageError: a column is missing; `CellError` where one cell cannot be used.
        """
        row_count(rows)
        batch: Batch = dict(rows) if self.columns else self._gathered(rows)
        for name in self.columns:
            if name not in batch:
                raise UsageError(
                    f"The column {printable(name, 128)!r} is missing.",
                    hint=did_you_mean(name, map(str, rows)),
                )
        for step in self._pre:
            batch = step(batch)
        feeds = {}
        for spec in self._spec.inputs:
            feeds[spec.name] = (
                batch[spec.name] if spec.name in self._made else self._tensor(batch[spec.name], spec)
            )
            check_tensor(feeds[spec.name], spec)
        return feeds

    def by_length(self, rows: Columns) -> npt.NDArray[np.intp] | None:
        """The order of raw rows [rows] from long to short; None where all cost the same.

        Rows of one batch are padded to the longest of them: neighbours in this order waste least. The longest
        come first, so that memory is asked for once.
        """
        found = [lengths for step in self._pre if (lengths := step.lengths(dict(rows))) is not None]
        return np.argsort(-np.sum(found, axis=0), kind="stable") if found else None

    def decode(self, tensors: Tensors) -> dict[str, Array]:
        """The answer columns of the output tensors; the outputs themselves where no step answers."""
        if not self._answers:
            return dict(tensors)
        batch: Batch = dict(tensors)
        for step in self._post:
            batch = step(batch)
        return {name: batch[name] for name in self._answers}

    def _gathered(self, rows: Columns) -> Batch:
        """All columns side by side for a model that names none."""
        spec = self._spec.inputs[0]
        if spec.name in rows and (len(rows) == 1 or rows[spec.name].ndim > 1):
            return {spec.name: rows[spec.name]}
        names = tuple(rows)
        if len(names) == 1 and len(spec.shape) == rows[names[0]].ndim == 2:
            return {spec.name: rows[names[0]]}  # a column of lists
        width = spec.shape[1] if len(spec.shape) == 2 else 1
        if width is not None and len(names) != width:
            raise UsageError(
                f"The model takes {plural(width, 'column')} of numbers, not {len(names)}: "
                f"{listed(names, 8)}.",
                hint="Name the columns that are no features: label, id, weight.",
            )
        if spec.datatype == "BYTES":
            return {spec.name: text_column(rows[names[0]].tolist())}
        matrix = stack([rows[name] for name in names], names, spec)
        return {spec.name: matrix if len(spec.shape) == 2 else matrix[:, 0]}

    def _tensor(self, column: Array, spec: TensorSpec) -> Array:
        """A column as the tensor of the same name."""
        if spec.datatype == "BYTES":
            texts = as_texts(column, spec.name, self._spec.limits.max_text_chars)
            shape = (len(column), *column.shape[1:])
            return _fit(text_column(texts).reshape(shape), spec)
        if spec.datatype == "BOOL" and column.dtype.kind == "b":
            return _fit(column, spec)
        return _fit(as_type(as_numbers(column, spec.name), spec, spec.name), spec)


def _fit(column: Array, spec: TensorSpec) -> Array:
    """A flat column in the shape of its input, where certain: [n] as [n, 1], [n, k] as [n, c, h, w]."""
    if column.ndim == len(spec.shape):
        return column
    dims = spec.shape[1:]
    if column.ndim == 1 and all(dim in {1, None} for dim in dims):
        return column.reshape(len(column), *(1 for _ in dims))
    if column.ndim == 2 and column.shape[1] == 1 and not dims:
        return column[:, 0]
    if column.ndim == 2 and None not in dims:
        sizes = [dim for dim in dims if dim is not None]
        if math.prod(sizes) == column.shape[1]:
            return column.reshape(len(column), *sizes)
    return column
