"""Steps for tables: numbers to one tensor, categories to codes."""

import math
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, TensorSpec
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.inference.steps.step import Batch, CellError, Options, Site, Step, asset_path


def as_numbers(column: Array, name: str) -> Array:
    """A column as an array of numbers, whatever Python made of it.

    Raises:
        CellError: a cell is text, missing or no number.
    """
    if column.dtype.kind in "fiub":
        return column
    if column.dtype.kind not in "OUS":
        raise UsageError(f"Column {printable(name, 128)!r} holds {column.dtype}, where numbers are expected.")
    cells = column.reshape(-1).tolist()
    width = math.prod(column.shape[1:])
    for index, cell in enumerate(cells):
        if not isinstance(cell, int | float | np.number | np.bool_):
            row = (_first_word(cells, index) if isinstance(cell, str) else index) // max(width, 1)
            shown = "missing" if cell is None else f"{printable(repr(cells[row * width]), 80)} is no number"
            raise CellError(name, row, shown)
    try:
        return np.asarray(cells, dtype=np.float64).reshape(column.shape)
    except (OverflowError, ValueError) as error:
        raise UsageError(f"Column {printable(name, 128)!r} holds a number that is too large.") from error


def _first_word(cells: list[Any], start: int) -> int:
    # A file with one bad cell arrives as a whole column of text: the culprit is the one no float can read.
    for index in range(start, len(cells)):
        if not isinstance(cells[index], str):
            continue
        try:
            float(cells[index])
        except ValueError:
            return index
    return start


def as_type(numbers: Array, spec: TensorSpec, name: str) -> Array:
    """Numbers as the input's datatype, refusing every value that the cast would change beyond rounding.

    Raises:
        CellError: NaN, infinity, out of range, or a fraction for an integer input.
    """
    target = spec.numpy_type
    if target.kind == "f":
        with np.errstate(over="ignore"):
            cast = numbers.astype(target, copy=False)
        # One look at the result finds what came in as NaN or infinity, and what the cast made so.
        return cast if np.isfinite(cast).all() else _refuse(numbers, ~np.isfinite(cast), spec, name)
    if target.kind == "b":
        if numbers.dtype.kind == "b":
            return numbers
        raise UsageError(f"Column {printable(name, 128)!r} holds numbers; {spec.name!r} takes true or false.")
    if numbers.dtype == target:
        return numbers
    with np.errstate(invalid="ignore", over="ignore"):
        cast = numbers.astype(target)
    info = np.iinfo(target)
    bad = (cast != numbers) | (numbers < info.min) | (numbers > info.max)
    return _refuse(numbers, bad, spec, name) if bad.any() else cast


def _refuse(numbers: Array, bad: Array, spec: TensorSpec, name: str) -> NoReturn:
    place = tuple(np.argwhere(bad)[0])
    value = numbers[place]
    if np.isfinite(value):
        raise CellError(name, int(place[0]), f"{value} does not fit into {spec.datatype}")
    raise CellError(name, int(place[0]), "a value is missing, NaN or infinite")


def stack(columns: list[Array], names: tuple[str, ...], spec: TensorSpec) -> Array:
    """Columns of numbers side by side as a [rows, k] tensor of the input's datatype.

    Raises:
        CellError: names the first column and row that cannot be used.
    """
    numbers = [as_numbers(column, name) for column, name in zip(columns, names, strict=True)]
    for column, name in zip(numbers, names, strict=True):
        if column.ndim != 1 and column.shape[1:] != (1,):
            raise UsageError(
                f"Column {printable(name, 128)!r} holds {column.shape[1]} values per row, not one."
            )
    if spec.numpy_type.kind != "f":
        typed = [as_type(column.reshape(-1), spec, name) for column, name in zip(numbers, names, strict=True)]
        return np.stack(typed, axis=1)
    matrix = np.empty((len(numbers[0]), len(numbers)), dtype=spec.numpy_type)
    with np.errstate(over="ignore"):
        for index, column in enumerate(numbers):
            matrix[:, index] = column.reshape(-1)
    if not np.isfinite(matrix).all():
        for column, name in zip(numbers, names, strict=True):
            as_type(column, spec, name)
    return matrix


class ColumnsStep(Step):
    """`columns`: named columns of numbers become one 2-D input, in the order of `names`."""

    kind = "columns"

    def __init__(self, options: Options, site: Site) -> None:
        self._names = options.words("names", required=True)
        self._input = site.input(options.text("input"))
        options.done()
        if not self._names:
            raise UsageError("Step 'columns' names no column.")
        if len(set(self._names)) != len(self._names):
            raise UsageError("Step 'columns' names a column twice.")
        width = self._input.shape[1] if len(self._input.shape) == 2 else 0
        if width is not None and width != len(self._names):
            raise UsageError(
                f"Step 'columns' names {len(self._names)} columns, which do not fill the input {self._input}."
            )
        self.takes = dict.fromkeys(self._names, "number")
        self.makes = (self._input.name,)

    def __call__(self, batch: Batch) -> Batch:
        made = stack([batch[name] for name in self._names], self._names, self._input)
        return batch | {self._input.name: made}


class CategoriesStep(Step):
    """`categories`: a column becomes the position of its value in a list, as INT64 [rows].

    The list is `values`, or the JSON list in the asset that `asset` names. A value that is not in it is an
    error, or the code that `unknown` gives.
    """

    kind = "categories"

    def __init__(self, options: Options, site: Site) -> None:  # noqa: ARG002 - every step is made alike
        self._column = options.text("column", required=True)
        self._asset = options.text("asset")
        self._unknown: int | str = options.take("unknown", (int, str), "error")
        values = options.take("values", list, [])
        options.done()
        if bool(values) == bool(self._asset):
            raise UsageError("Step 'categories' takes either values or an asset.")
        if isinstance(self._unknown, str) and self._unknown != "error":
            raise UsageError("Step 'categories': unknown takes \"error\" or an integer.")
        self._codes = _codes(values)
        self.takes = {self._column: "category"}
        self.makes = (self._column,)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self._codes)

    def load(self, root: Path) -> None:
        if self._asset:
            import orjson

            try:
                values = orjson.loads(asset_path(root, self._asset, self.kind).read_bytes())
            except orjson.JSONDecodeError as error:
                raise UsageError(f"assets/{self._asset} is no JSON: {error}.") from error
            if not isinstance(values, list) or not values:
                raise UsageError(f"assets/{self._asset} must hold a JSON list of values.")
            self._codes = _codes(values)

    def __call__(self, batch: Batch) -> Batch:
        cells = batch[self._column].tolist()
        try:
            codes = list(map(self._codes.get, cells))
        except TypeError as error:
            raise UsageError(
                f"Column {printable(self._column, 128)!r} holds lists, not categories."
            ) from error
        if None in codes:
            if isinstance(self._unknown, str):
                row = codes.index(None)
                value = cells[row]
                raise CellError(
                    self._column,
                    row,
                    "the value is missing" if value is None else f"{printable(repr(value), 80)} is not known",
                    hint=did_you_mean(str(value), map(str, self._codes)) if len(self._codes) <= 50 else "",
                )
            codes = [self._unknown if code is None else code for code in codes]
        return batch | {self._column: np.asarray(codes, dtype=np.int64)}


def _codes(values: list[Any]) -> dict[Any, int]:
    if any(not isinstance(value, str | int | float) for value in values):
        raise UsageError("Step 'categories' takes values that are text or numbers.")
    codes = {value: code for code, value in enumerate(values)}
    if len(codes) != len(values):
        raise UsageError("Step 'categories' lists a value twice.")
    return codes
