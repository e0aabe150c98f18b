"""Golden cases: inputs with the outputs that a model must give, one JSON line each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, decode_array, encode_array


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """Inputs with the outputs they must give.

    Attributes:
        inputs: encoded arrays (`core.tensors.encode_array`) by raw column, or by input tensor.
        outputs: encoded arrays by answer column or output tensor.
        rtol: relative tolerance of floating-point outputs; everything else must be equal.
        atol: absolute tolerance.
        generated: the model's own outputs at the time of building, not somebody's expectation.
    """

    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    rtol: float = 1e-3
    atol: float = 1e-5
    generated: bool = False

    def rows(self) -> dict[str, Array]:
        return {name: decode_array(value) for name, value in self.inputs.items()}

    def expected(self) -> dict[str, Array]:
        return {name: decode_array(value) for name, value in self.outputs.items()}

    def document(self) -> dict[str, Any]:
        """The case as JSON-ready data, which `parse_case` reads back."""
        return {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "rtol": self.rtol,
            "atol": self.atol,
            "generated": self.generated,
        }


def golden_line(case: GoldenCase) -> bytes:
    """A case as a line of `golden.jsonl`."""
    return orjson.dumps(case.document(), option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def make_case(
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    *,
    rtol: float,
    atol: float,
    generated: bool = False,
) -> GoldenCase:
    """A case from arrays."""
    return GoldenCase(
        {name: encode_array(array) for name, array in inputs.items()},
        {name: encode_array(array) for name, array in outputs.items()},
        rtol,
        atol,
        generated,
    )


def read_golden(path: Path) -> tuple[GoldenCase, ...]:
    """Read a `golden.jsonl`.

    An array may also be written plainly, as a list with one item per row; a single row as a scalar.

    Raises:
        UsageError: a line is no case; the message names it.
    """
    return tuple(_golden_case(line, f"{path.name}, line {number}") for number, line in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _golden_case(line: bytes, where: str) -> GoldenCase:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{where} is no JSON: {error}.") from error
    return parse_case(document, where)


def parse_case(document: Any, where: str) -> GoldenCase:
    """A case from parsed JSON; `where` is how messages call its place.

    Raises:
        UsageError: it is no case.
    """
    known = {"inputs", "outputs", "rtol", "atol", "generated"}
    if (
        not isinstance(document, dict)
        or document.keys() - known
        or not {"inputs", "outputs"} <= document.keys()
    ):
        raise UsageError(f"{where}: a golden case has inputs and outputs, and may have rtol and atol.")
    tolerances = [document.get("rtol", 1e-3), document.get("atol", 1e-5)]
    if any(type(value) not in {int, float} or value < 0 for value in tolerances):
        raise UsageError(f"{where}: rtol and atol take numbers that are not negative.")
    sides = []
    for side in ("inputs", "outputs"):
        if not isinstance(document[side], dict) or not document[side]:
            raise UsageError(f"{where}: {side} takes an object with at least one column.")
        sides.append(
            {name: _encoded(value, f"{where}, {side} {name!r}") for name, value in document[side].items()}
        )
    return GoldenCase(
        inputs=sides[0],
        outputs=sides[1],
        rtol=float(tolerances[0]),
        atol=float(tolerances[1]),
        generated=document.get("generated") is True,
    )


def _encoded(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        decode_array(value)
        return value
    cells = value if isinstance(value, list) else [value]
    try:
        array = np.asarray(cells)
    except ValueError as error:
        raise UsageError(f"{where}: the rows are not of one shape.") from error
    if array.dtype.kind == "U":
        array = array.astype(object)
    if array.dtype.kind not in "fiubO" or any(cell is None for cell in array.reshape(-1).tolist()):
        raise UsageError(f"{where}: the rows must be numbers or texts.")
    return encode_array(array)
