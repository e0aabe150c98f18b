"""Rows in whatever form they come, as columns."""

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, Columns, TensorSpec, text_column
from mlx_platform.core.text import did_you_mean, listed, plural, printable
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.inference.steps.step import CellError, ColumnKind

Kinds = Mapping[str, ColumnKind | TensorSpec]
"""What each column holds: a kind of scalar, or the cells of an input tensor."""

_NUMBERS = {int, float}
_SCALARS: dict[str, tuple[set[type], str]] = {
    "number": (_NUMBERS, "a number"),
    "category": ({str, int, float, bool}, "a text or a number"),
    "text": ({str}, "a text"),
    "image": ({str, bytes}, "an image in base64"),
}


def column_kinds(spec: ModelSpec) -> dict[str, ColumnKind | TensorSpec]:
    """What the pipeline expects in each column it takes by name."""
    kinds: dict[str, ColumnKind | TensorSpec] = {}
    made: set[str] = set()
    for step in spec.pre_steps():
        for name, kind in step.takes.items():
            if name not in made:
                kinds.setdefault(name, kind)
        made |= set(step.makes)
    for tensor in spec.inputs:
        if tensor.name not in made:
            kinds.setdefault(tensor.name, tensor)
    return kinds


def rows_from_json(rows: Any, spec: ModelSpec, columns: Sequence[str], kinds: Kinds) -> dict[str, Array]:
    """Parsed JSON rows as columns, read strictly: a boolean is no number, a number no text.

    Args:
        rows: a list of objects, or of lists where the model takes its columns in order.
        spec: the model's limits and inputs.
        columns: names the model takes, () where it names none.
        kinds: what each column holds.

    Raises:
        UsageError: names the row and the column that cannot be used.
    """
    if not isinstance(rows, list) or not rows:
        raise UsageError("The rows must be a list with at least one row.")
    if len(rows) > spec.limits.max_rows:
        raise UsageError(f"A request takes at most {spec.limits.max_rows:,} rows, not {len(rows):,}.")
    types = set(map(type, rows))
    if types == {dict}:
        names = tuple(columns) or tuple(tensor.name for tensor in spec.inputs)
        return _from_objects(rows, names, kinds)
    if columns:
        raise UsageError(
            "Each row must be an object with the columns of the model.", hint=f"Columns: {listed(columns)}."
        )
    if types <= _NUMBERS and len(spec.inputs[0].shape) == 1:
        return {spec.inputs[0].name: _cells(rows, spec.inputs[0], spec.inputs[0].name)}
    if types != {list}:
        raise UsageError("Each row must be a list of values, one per column.")
    return {spec.inputs[0].name: _cells(rows, spec.inputs[0], spec.inputs[0].name)}


def _from_objects(rows: list[dict[str, Any]], names: tuple[str, ...], kinds: Kinds) -> dict[str, Array]:
    wanted = set(names)
    for index, row in enumerate(rows):
        if row.keys() != wanted:
            raise _wrong_columns(row, names, index)
    cells: list[Sequence[Any]] = (
        list(zip(*map(itemgetter(*names), rows), strict=True))
        if len(names) > 1
        else [[row[names[0]] for row in rows]]
    )
    if all(kinds.get(name) == "number" for name in names):
        return _number_columns(names, cells)
    return {name: _column(list(column), name, kinds) for name, column in zip(names, cells, strict=True)}


def _wrong_columns(row: Mapping[str, Any], names: Sequence[str], index: int) -> UsageError:
    known = set(names)
    unknown = next((name for name in row if name not in known), None)
    if unknown is not None:
        return UsageError(
            f"Row {index} has a column {printable(unknown, 80)!r} that the model does not take.",
            hint=did_you_mean(unknown, names),
        )
    missing = next(name for name in names if name not in row)
    return UsageError(f"Row {index} has no column {missing!r}.", hint=did_you_mean(missing, row))


def _number_columns(names: tuple[str, ...], cells: list[Sequence[Any]]) -> dict[str, Array]:
    # One matrix for all of them: a request of one row would spend its time on making small arrays.
    if set(map(type, chain.from_iterable(cells))) <= _NUMBERS:
        try:
            matrix = np.array(cells, dtype=np.float64)
        except OverflowError as error:
            raise UsageError("A number is too large.") from error
        return dict(zip(names, matrix, strict=True))
    kinds: Kinds = dict.fromkeys(names, "number")
    return {name: _column(list(column), name, kinds) for name, column in zip(names, cells, strict=True)}


def _column(cells: list[Any], name: str, kinds: Kinds) -> Array:
    kind = kinds[name]
    if isinstance(kind, TensorSpec):
        return _cells(cells, kind, name)
    allowed, noun = _SCALARS[kind]
    for row, cell in enumerate(cells):
        if type(cell) not in allowed:
            raise CellError(name, row, f"{_shown(cell)} is not {noun}")
    if kind == "number":
        try:
            return np.array(cells, dtype=np.float64)
        except OverflowError as error:
            raise UsageError(f"Column {printable(name, 128)!r} holds a number that is too large.") from error
    if kind == "image":
        return text_column([_image(cell, name, row) for row, cell in enumerate(cells)])
    return text_column(cells)


def _image(cell: str | bytes, name: str, row: int) -> bytes:
    if isinstance(cell, bytes):
        return cell  # came as it is, beside JSON
    import base64
    import binascii

    try:
        return base64.b64decode(cell, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CellError(name, row, "the image is no base64") from error


def _cells(cells: list[Any], spec: TensorSpec, name: str) -> Array:
    """Cells of nested lists as one array with the rank of the input; the dtype follows what came."""
    dims = [len(cells)]
    level: list[Any] = cells
    for want in spec.shape[1:]:
        for row, item in enumerate(level):
            if type(item) is not list:
                raise CellError(
                    name, row * len(cells) // len(level), f"{_shown(item)} is not a list of values"
                )
        widths = set(map(len, level))
        if len(widths) != 1 or 0 in widths:
            raise _ragged(level, len(cells), name)
        dims.append(widths.pop())
        if want is not None and dims[-1] != want:
            raise CellError(name, 0, f"there are {plural(dims[-1], 'value')} where the model takes {want}")
        level = list(chain.from_iterable(level))
    allowed, noun = _leaves(spec)
    if not set(map(type, level)) <= allowed:
        place = next(index for index, leaf in enumerate(level) if type(leaf) not in allowed)
        raise CellError(name, place * len(cells) // len(level), f"{_shown(level[place])} is not {noun}")
    if spec.datatype == "BYTES":
        return text_column(level).reshape(dims)
    try:
        return np.array(level, dtype=_leaf_type(spec, level)).reshape(dims)
    except OverflowError as error:
        raise UsageError(
            f"Column {printable(name, 128)!r} holds a number that does not fit into {spec.datatype}."
        ) from error


def _leaf_type(spec: TensorSpec, level: list[Any]) -> Any:
    if spec.datatype == "BOOL":
        return np.bool_
    whole = spec.numpy_type.kind in "iu" and set(map(type, level)) == {int}
    return (np.uint64 if spec.datatype == "UINT64" else np.int64) if whole else np.float64


def _leaves(spec: TensorSpec) -> tuple[set[type], str]:
    if spec.datatype == "BOOL":
        return {bool}, "true or false"
    return ({str}, "a text") if spec.datatype == "BYTES" else (_NUMBERS, "a number")


def _ragged(level: list[Any], rows: int, name: str) -> UsageError:
    first = len(level[0])
    for index, item in enumerate(level):
        if len(item) != first or not item:
            row = index * rows // len(level)
            return CellError(
                name, row, f"there are {plural(len(item), 'value')}, where the first row has {first}"
            )
    return UsageError(f"Column {printable(name, 128)!r} has rows of different lengths.")


def _shown(cell: Any) -> str:
    names = {dict: "an object", list: "a list", bool: str(cell).lower(), type(None): "null"}
    return names.get(type(cell), printable(repr(cell), 40))


def as_columns(rows: Any, spec: ModelSpec, columns: Sequence[str]) -> Columns:
    """Rows of a Python caller as columns: a mapping of arrays, a data frame, a 2-D array, dicts or lists.

    Raises:
        UsageError: the rows are none of these, or have no common shape.
    """
    if isinstance(rows, Mapping):
        return {str(name): _array(column) for name, column in rows.items()}
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):
        return {str(name): rows.iloc[:, index].to_numpy() for index, name in enumerate(rows.columns)}
    if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
        names = list(rows[0])
        for index, row in enumerate(rows):
            if row.keys() != rows[0].keys():
                raise _wrong_columns(row, names, index)
        return {str(name): _array([row[name] for row in rows]) for name in names}
    try:
        matrix = np.asarray(rows)
    except ValueError as error:
        raise UsageError("The rows have different lengths.") from error
    if matrix.ndim < 1 or matrix.dtype.kind not in "fiubOUS" or not matrix.size:
        raise UsageError("Rows are given as columns, a data frame, an array, or a list of dicts or lists.")
    if columns and matrix.ndim == 2:
        if matrix.shape[1] != len(columns):
            raise UsageError(
                f"The rows have {plural(matrix.shape[1], 'column')}, but the model takes {len(columns)}.",
                hint=f"Columns: {listed(columns)}.",
            )
        return {name: matrix[:, index] for index, name in enumerate(columns)}
    if columns and len(columns) > 1:
        raise UsageError("Rows for several columns are given by name.", hint=f"Columns: {listed(columns)}.")
    return {columns[0] if columns else spec.inputs[0].name: matrix}


def _array(column: Any) -> Array:
    if isinstance(column, np.ndarray):
        return column
    cells = column.tolist() if hasattr(column, "tolist") else list(column)
    if any(isinstance(cell, str | bytes) or cell is None for cell in cells):
        return text_column(cells)
    try:
        return np.asarray(cells)
    except ValueError:
        return text_column(cells)
