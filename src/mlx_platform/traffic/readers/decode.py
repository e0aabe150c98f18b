"""Bodies as the columns or tensors of a record, by the model's signature."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.bodies import Table, Whole, parse_body
from mlx_platform.traffic.readers.cells import Encoded, encode_cells, encode_numbers, encode_tensor
from mlx_platform.traffic.readers.entry import Body
from mlx_platform.traffic.readers.signature import Signature

_ROWS = ("instances", "dataframe_records")
_ANSWERS = ("predictions", "outputs")
ANSWER = "output"
"""The name of an answer that has none and whose model is not known."""


@dataclass(frozen=True, slots=True)
class Side:
    """Arrays by name; `tensors` when they are the model's own instead of raw columns or answers."""

    arrays: dict[str, Encoded]
    tensors: bool = False

    @property
    def rows(self) -> int:
        heights = {encoded["shape"][0] for encoded in self.arrays.values()}
        if len(heights) != 1:
            raise UsageError("The columns of a body differ in their number of rows, or there is none.")
        return int(heights.pop())


def decode_request(body: Body, signature: Signature) -> Side:
    """The inputs of a body.

    TensorFlow Serving's `instances` and `inputs`, MLflow's `dataframe_split` and `dataframe_records`, tensors
    of the Open Inference Protocol, rows or columns of plain JSON, CSV, and single texts or images are told
    apart by what they hold. Rows without names get the signature's columns in their order.

    Raises:
        UsageError: it holds none of these, or rows that do not fit the signature.
    """
    value = parse_body(body)
    if isinstance(value, Mapping):
        return _checked(_from_object(value, signature))
    return _checked(_unnamed(value, signature))


def decode_response(body: Body, signature: Signature) -> Side:
    """The answers of a body; those without names are named as the model's task has it.

    Raises:
        UsageError: it holds none.
    """
    value = parse_body(body)
    if isinstance(value, Mapping):
        found = next((value[name] for name in _ANSWERS if name in value), value)
        if _are_tensors(found):
            return _checked(_tensors(found, {tensor.name for tensor in signature.outputs}))
        value = found
    if isinstance(value, Mapping):
        lists = {name: cells for name, cells in value.items() if isinstance(cells, list)}
        arrays = _columnar(lists or value)  # beside answers in lists, single values say something else
    elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        arrays = _from_records(value)
    else:
        arrays = {"": _one_array(value)}
    return _checked(Side(_as_answers(arrays, signature)))


def _checked(side: Side) -> Side:
    if side.rows < 1:
        raise UsageError("A body holds no rows.")
    return side


def _from_object(value: Mapping[str, Any], signature: Signature) -> Side:
    if "dataframe_split" in value:
        return Side(_from_split(value["dataframe_split"]))
    for name in _ROWS:
        if name in value:
            return _unnamed(value[name], signature)
    if "inputs" not in value or "inputs" in signature.columns:
        return Side(_columnar(value))
    found = value["inputs"]
    if _are_tensors(found):
        return _tensors(found, {tensor.name for tensor in signature.inputs})
    return Side(_columnar(found)) if isinstance(found, Mapping) else _unnamed(found, signature)


def _are_tensors(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(tensor, Mapping) and {"name", "shape", "datatype"} <= tensor.keys() for tensor in value
        )
    )


def _tensors(tensors: Any, known: set[str]) -> Side:
    arrays = dict(map(encode_tensor, tensors))
    if known and not arrays.keys() <= known:
        # Columns of a table, each sent as a tensor [rows, 1] of its own.
        return Side({name: _squeezed(encoded) for name, encoded in arrays.items()})
    return Side(arrays, tensors=True)


def _squeezed(encoded: Encoded) -> Encoded:
    shape = encoded["shape"]
    return encoded | {"shape": shape[:1]} if len(shape) == 2 and shape[1] == 1 else encoded


def _from_split(split: Any) -> dict[str, Encoded]:
    if not isinstance(split, Mapping):
        raise UsageError("A dataframe_split is no object.")
    names, rows = split.get("columns"), split.get("data")
    if (
        not isinstance(names, list)
        or not isinstance(rows, list)
        or any(type(name) is not str for name in names)
        or any(not isinstance(row, list) or len(row) != len(names) for row in rows)
    ):
        raise UsageError("A dataframe_split has rows that do not fit its columns.")
    return {
        name: encode_cells(list(cells)) for name, cells in zip(names, zip(*rows, strict=True), strict=False)
    }


def _from_records(rows: list[Any]) -> dict[str, Encoded]:
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {name: encode_cells([row.get(name) for row in rows]) for name in names}


def _columnar(value: Mapping[str, Any]) -> dict[str, Encoded]:
    """Columns by name, or one row whose values are no lists."""
    if value and all(isinstance(cells, list) for cells in value.values()):
        return {str(name): encode_cells(cells) for name, cells in value.items()}
    return {str(name): encode_cells([cell]) for name, cell in value.items()}


def _unnamed(value: Any, signature: Signature) -> Side:
    """Rows in a list, of CSV, or an array; a single value is one row of the only column."""
    if isinstance(value, Whole):
        return Side({signature.only_column: encode_cells([value.value])})
    if isinstance(value, np.ndarray):
        return Side(_named_matrix(value, signature))
    rows = value.rows if isinstance(value, Table) else value
    if not isinstance(rows, list) or not rows:
        raise UsageError("A body holds no rows.")
    if all(isinstance(row, Mapping) for row in rows) and not _all_bytes(rows):
        return Side(_from_records(rows))
    if all(isinstance(row, list) for row in rows):
        return Side(_from_lists(rows, signature, is_text=isinstance(value, Table)))
    return Side({signature.only_column: encode_cells(rows)})


def _from_lists(rows: list[Any], signature: Signature, *, is_text: bool) -> dict[str, Encoded]:
    names = signature.columns
    if names and all(len(row) == len(names) for row in rows):
        return {
            name: encode_cells(list(cells))
            for name, cells in zip(names, zip(*rows, strict=True), strict=True)
        }
    if len(names) > 1:
        raise UsageError(f"A row without names has not the {len(names)} columns of the model.")
    return {signature.only_column: _matrix(rows) if is_text else encode_cells(rows)}


def _all_bytes(rows: list[Any]) -> bool:
    return all(row.keys() == {"b64"} for row in rows)


def _named_matrix(array: Any, signature: Signature) -> dict[str, Encoded]:
    if array.ndim == 2 and signature.columns and array.shape[1] == len(signature.columns):
        return {name: encode_numbers(array[:, at]) for at, name in enumerate(signature.columns)}
    if len(signature.columns) > 1:
        raise UsageError(f"An array has not the {len(signature.columns)} columns of the model.")
    return {signature.only_column: encode_numbers(array)}


def _matrix(rows: list[Any]) -> Encoded:
    """Rows of CSV for a model that takes one tensor; a cell without a number is NaN."""
    cells = [[float("nan") if cell is None else cell for cell in row] for row in rows]
    return encode_cells(cells)


def _one_array(value: Any) -> Encoded:
    if isinstance(value, Whole):
        return encode_cells([value.value])
    if isinstance(value, np.ndarray):
        return encode_numbers(value)
    if isinstance(value, Table):
        return encode_cells([row[0] for row in value.rows] if len(value.rows[0]) == 1 else value.rows)
    return encode_cells(value if isinstance(value, list) else [value])


def _as_answers(arrays: dict[str, Encoded], signature: Signature) -> dict[str, Encoded]:
    """Answer columns: one array is what the task gives, under whatever name; others keep their names."""
    if len(arrays) != 1:
        return {name or ANSWER: encoded for name, encoded in arrays.items()}
    (name, encoded), width = next(iter(arrays.items())), 1
    numbers = encoded["datatype"] != "BYTES"
    if len(encoded["shape"]) == 2:
        width = encoded["shape"][1]
    if signature.task == "regression" and numbers and width == 1:
        return {"value": encoded | {"shape": encoded["shape"][:1]}}
    if (
        signature.task == "classification"
        and len(encoded["shape"]) == 2
        and numbers
        and width == len(signature.labels)
    ):
        return _of_probabilities(encoded, signature.labels)
    if signature.task == "classification" and len(encoded["shape"]) == 1:
        texts = [_label_text(cell) for cell in encoded["data"]]
        if set(texts) <= set(signature.labels):
            return {"label": encoded | {"datatype": "BYTES", "data": texts}}
    if len(signature.outputs) == 1 and (not name or signature.task == "tensors"):
        name = signature.outputs[0].name
    return {name or ANSWER: encoded}


def _label_text(cell: Any) -> str:
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _of_probabilities(encoded: Encoded, labels: tuple[str, ...]) -> dict[str, Encoded]:
    rows, width = encoded["shape"]
    matrix = np.asarray(encoded["data"], dtype=np.float64).reshape(rows, width)
    chosen = np.argmax(matrix, axis=1).tolist()
    return {
        "label": {"datatype": "BYTES", "shape": [rows], "data": [labels[at] for at in chosen]},
        "confidence": encode_numbers(matrix.max(axis=1)),
        "probabilities": encoded,
    }
