"""The bodies of `POST /predict`: rows as JSON objects or lists in, one object of answers per row out."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Columns
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.inference.model import Model
from mlx_platform.inference.steps.step import CellError
from mlx_platform.serving.json_body import parse_object
from mlx_platform.serving.json_tensors import all_finite
from mlx_platform.serving.refusal import Refusal, malformed

# What a pipeline says of a cell begins with the cell itself.
_VALUE = re.compile(r"^.*\b(is not |is no |does not fit )", re.DOTALL)
_MEMBERS = frozenset(("rows", "id"))


def parse_predict(body: bytes) -> tuple[Any, str | None]:
    """The rows, not looked at yet, and the id of a request.

    Raises:
        Refusal: 400; no JSON object, no rows, or members that nothing here takes.
    """
    document = parse_object(body)
    if not document.keys() <= _MEMBERS or "rows" not in document:
        raise malformed("The body takes rows, a list with one entry per row, and if you like an id.")
    request_id = document.get("id")
    if request_id is not None and type(request_id) is not str:
        raise malformed("The id must be a string.")
    return document["rows"], request_id


def complaint(error: UsageError, rows: Any, model: Model) -> str:
    """What is wrong with rows, told by the names of the model and never by what the client sent."""
    if isinstance(error, CellError):
        problem = _VALUE.sub(r"this \1", error.problem)
        return f"Row {error.row}, column {printable(error.column, 128)!r}: {problem}."
    columns = model.columns or tuple(spec.name for spec in model.spec.inputs)
    if isinstance(rows, list):
        for index, row in enumerate(rows):
            if type(row) is dict and row.keys() != set(columns):
                return _wrong_columns(index, row, columns)
    return error.message


def _wrong_columns(index: int, row: Mapping[str, Any], columns: Sequence[str]) -> str:
    unknown = [name for name in row if name not in set(columns)]
    if unknown:
        hint = printable(did_you_mean(unknown[0], columns))
        return f"Row {index} has a column that the model does not take. {hint}"
    missing = next(name for name in columns if name not in row)
    return f"Row {index} has no column {printable(missing, 128)!r}."


def render_predict(request_id: str | None, answers: Columns, rows: int, head: Mapping[str, Any]) -> bytes:
    """Write the answers.

    Args:
        request_id: the id that the client gave, echoed.
        answers: columns with one entry per row.
        rows: how many rows were asked.
        head: who answered.

    Raises:
        Refusal: 422; NaN or infinity, or answers that are not one per row.
    """
    columns: list[Any] = []
    for name, column in answers.items():
        if column.shape[:1] != (rows,):
            raise Refusal(
                422, "The model does not answer row by row: ask it for tensors, on its infer route."
            )
        if column.dtype.kind == "f" and not all_finite(column):
            raise Refusal(422, f"The answer {name!r} of the model is NaN or infinite for one of these rows.")
        is_text = column.dtype.kind in "OSU"
        columns.append(_texts(column.tolist(), name) if is_text else np.ascontiguousarray(column))
    document: dict[str, Any] = {"id": request_id} if request_id is not None else {}
    document |= head
    names = tuple(answers)
    document["predictions"] = [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _texts(cells: list[Any], name: str) -> list[Any]:
    try:
        return [
            _texts(cell, name)
            if isinstance(cell, list)
            else cell.decode()
            if isinstance(cell, bytes)
            else cell
            for cell in cells
        ]
    except UnicodeDecodeError as error:
        raise Refusal(422, f"The answer {name!r} of the model holds bytes that are no UTF-8 text.") from error
