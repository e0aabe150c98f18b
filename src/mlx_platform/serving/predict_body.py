"""The bodies of `POST /predict`: rows as JSON objects or lists in, one object of answers per row out."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Columns, TensorSpec
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.inference.model import Model
from mlx_platform.inference.steps.step import CellError
from mlx_platform.serving.json_body import count_marks, load_object, refuse_repeated_names
from mlx_platform.serving.json_tensors import all_finite
from mlx_platform.serving.refusal import Refusal, malformed

# What a pipeline says of a cell begins with the cell itself.
_VALUE = re.compile(r"^.*\b(is not |is no |does not fit )", re.DOTALL)
_MEMBERS = frozenset(("rows", "id"))
# So many marks too many are parsed in milliseconds, and then the client learns what exactly is wrong.
_SLACK = 10_000
_SHOWN_NAME = 128


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the largest body that a model could take holds, `_SLACK` aside.

    Attributes:
        rows: rows of a request.
        marks: how often `{`, `:` and `[` may stand outside of strings. Only rows and the body itself are
            objects, and only they have names. Lists are the rows, and per row the nested lists of input
            tensors; where these vary in number, `[` is not bounded.
    """

    rows: int
    marks: Mapping[bytes, int]

    @classmethod
    def of(cls, inputs: Iterable[TensorSpec], columns: Sequence[str], max_rows: int) -> "Bounds":
        """Work out the bounds of a model with these inputs, which takes these columns by name."""
        specs = tuple(inputs)
        marks = {b"{": 1 + max_rows, b":": len(_MEMBERS) + max_rows * (len(columns) or len(specs))}
        lists = [_lists(spec) for spec in specs]
        if None not in lists:
            marks[b"["] = 1 + max_rows * sum(filter(None, lists))
        return cls(max_rows, marks)

    def check(self, body: bytes) -> None:
        """Refuse, at the speed of a byte search, what would take seconds to parse and is then refused.

        Marks inside of strings mean nothing: they are told apart, at some cost, only where all marks
        together are more than the bound.

        Raises:
            Refusal: 400; there are more objects, names or lists than any request can have.
        """
        for mark, bound in self.marks.items():
            limit = bound + _SLACK
            if body.count(mark) > limit and count_marks(body, mark) > limit:
                raise malformed(
                    f"The body holds more than this model takes in {self.rows:,} rows, the most of a request."
                )


def _lists(spec: TensorSpec) -> int | None:
    """How many lists one row of an input is written with, None where that varies."""
    count, lists = 1, 0
    for level, _ in enumerate(spec.shape[1:], 1):
        lists += count
        size = spec.shape[level]
        if size is None:
            return lists if level == len(spec.shape) - 1 else None
        count *= size
    return lists


def parse_predict(body: bytes, bounds: Bounds) -> tuple[Any, str | None]:
    """The rows, counted but not looked at yet, and the id of a request.

    Raises:
        Refusal: 400; no JSON object, no rows, too many, or members that nothing here takes.
    """
    bounds.check(body)
    document = load_object(body)
    rows = document.get("rows")
    if type(rows) is list and len(rows) > bounds.rows:
        raise malformed(f"A request takes at most {bounds.rows:,} rows.")
    refuse_repeated_names(body, document)
    if not document.keys() <= _MEMBERS or "rows" not in document:
        raise malformed("The body takes rows, a list with one entry per row, and if you like an id.")
    request_id = document.get("id")
    if request_id is not None and type(request_id) is not str:
        raise malformed("The id must be a string.")
    return rows, request_id


def image_rows(image: bytes, model: Model) -> list[dict[str, bytes]]:
    """The one row of a request whose body is an image.

    Raises:
        Refusal: 415; the model takes something else than one image.
    """
    if len(model.columns) != 1 or model.kinds.get(model.columns[0]) != "image":
        raise Refusal(415, "This model does not take one image: send its columns as JSON.")
    return [{model.columns[0]: image}]


def complaint(error: UsageError, rows: Any, model: Model) -> str:
    """What is wrong with rows, told by the names of the model and never by what the client sent."""
    if isinstance(error, CellError):
        problem = _VALUE.sub(r"this \1", error.problem)
        return f"Row {error.row}, column {printable(error.column, 128)!r}: {problem}."
    columns = model.columns or tuple(spec.name for spec in model.spec.inputs)
    if isinstance(rows, list):
        wanted = frozenset(columns)
        for index, row in enumerate(rows):
            if type(row) is dict and row.keys() != wanted:
                return _wrong_columns(index, row, columns, wanted)
    return error.message


def _wrong_columns(index: int, row: Mapping[str, Any], columns: Sequence[str], wanted: frozenset[str]) -> str:
    unknown = next((name for name in row if name not in wanted), None)
    if unknown is not None:
        # Looking for the closest name reads every character of it.
        hint = printable(did_you_mean(unknown[:_SHOWN_NAME], columns))
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
