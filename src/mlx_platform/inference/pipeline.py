"""From raw columns to input tensors, and from output tensors to answers: the declared steps at work."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from mlx_platform.inference.parts import Parts
from mlx_platform.inference.rows import column_kinds
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.inference.steps.step import PARTS, WEIGHTS, Batch, GoOn, Step, for_ever
from mlx_platform.inference.steps.table import as_numbers, as_type, stack
from mlx_platform.inference.steps.text import as_texts


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows on their way into the network.

    Attributes:
        feeds: the input tensors by name.
        parts: how the rows were split; None where a row of tensors is a row.
        seconds: what each step took, by its kind.
    """

    feeds: dict[str, Array]
    parts: Parts | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def merged(self, tensors: Tensors) -> dict[str, Array]:
        """The output tensors of the rows, of those that the feeds gave."""
        return dict(tensors) if self.parts is None else self.parts.merged(tensors)

    def packed(self) -> dict[str, Array]:
        """Feeds and parts as one set of arrays, for whoever keeps them; see `Pipeline.unpacked`."""
        if self.parts is None:
            return self.feeds
        return self.feeds | {PARTS: self.parts.counts, WEIGHTS: self.parts.weights}


class Pipeline:
    """The steps of one model, their assets loaded; safe to use from many threads.

    Attributes:
        columns: raw columns taken by name; () when one plain input takes all columns in order.
        kinds: what each of them holds.
        cheap: whether the steps over a few rows cost less than handing them to another thread.
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
        self._splitter = _splitter(self._pre, spec)
        self.cheap = all(step.cheap for step in (*self._pre, *self._post))

    def encode(self, rows: Columns, go_on: GoOn = for_ever) -> Encoded:
        """The input tensors of raw columns; `go_on` is called from time to time, see `GoOn`.

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
        seconds: dict[str, float] = {}
        for step in self._pre:
            began = time.perf_counter()
            batch = step.run(batch, go_on)
            seconds[step.kind] = seconds.get(step.kind, 0.0) + time.perf_counter() - began
        parts = self._parts(batch)
        feeds = {}
        for spec in self._spec.inputs:
            tensor = batch[spec.name] if spec.name in self._made else self._tensor(batch[spec.name], spec)
            if parts is not None and spec.name not in self._of_parts:
                tensor = parts.spread(tensor)
            check_tensor(tensor, spec)
            feeds[spec.name] = tensor
        return Encoded(feeds, parts, seconds)

    def unpacked(self, arrays: Tensors) -> Encoded:
        """What `Encoded.packed` made."""
        parts = self._parts(arrays)
        return Encoded({name: array for name, array in arrays.items() if name not in {PARTS, WEIGHTS}}, parts)

    @property
    def _of_parts(self) -> tuple[str, ...]:
        return self._splitter.makes if self._splitter is not None else ()

    def _parts(self, batch: Tensors) -> Parts | None:
        splitter = self._splitter
        if splitter is None or splitter.merge is None:
            return None
        return Parts(batch[PARTS], batch[WEIGHTS], splitter.merge)

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


def _splitter(steps: Sequence[Step], spec: ModelSpec) -> Step | None:
    """The step that may take a row in parts.

    Raises:
        UsageError: two would, or the network fixes its rows, so that parts have no room.
    """
    found = [step for step in steps if step.merge is not None]
    if len(found) > 1:
        raise UsageError("Only one step of a pipeline can split rows into parts.")
    if found and spec.fixed_rows is not None:
        raise UsageError(
            f"The network takes exactly {plural(spec.fixed_rows, 'row')} a run, so rows cannot be split.",
            hint="Export it with a first dimension that varies.",
        )
    return found[0] if found else None


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
