"""Tensors in JSON, as the Open Inference Protocol writes them: a datatype, a shape and a list of values.

https://github.com/kserve/open-inference-protocol `specification/protocol/inference_rest.md`. Values stand
flat or nested in row-major order. NumPy would turn true into 1, "1.5" into 1.5 and 1.5 into 1 without a word,
so the types of the values are checked before it sees them.
"""

import math
from itertools import chain
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, TensorSpec, text_column
from mlx_platform.serving.refusal import Refusal, malformed, out_of_memory

_NUMBERS = frozenset((int, float))
_TYPES: dict[str, frozenset[type]] = {"b": frozenset((bool,)), "f": _NUMBERS, "O": frozenset((str,))}
_INTEGERS = frozenset((int,))
_WORDS = {"b": "true or false", "f": "numbers", "O": "strings", "i": "integers", "u": "integers"}
_LONGEST = 2**31  # a dimension; NumPy fails on some longer ones, even of a tensor without values
_SINGLE_LIMIT = 2.0**128 - 2.0**103  # from here on a double rounds to infinity as a single


class InputReader:
    """Reads one input of a model, with all that depends on its specification worked out before."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self._dtype = spec.numpy_type
        self._kind = self._dtype.kind
        self._parsed_as = np.dtype(np.float64) if self._kind == "f" else self._dtype
        self._types = _TYPES.get(self._kind, _INTEGERS)

    def read_shape(self, shape: Any) -> tuple[int, ...]:
        """Check a shape against what the input takes.

        Raises:
            Refusal: 400; it is no list of counts, too long, or a fixed dimension or the rank differs.
        """
        if type(shape) is not list or len(shape) != len(self.spec.shape):
            raise self._wrong("needs a shape of as many dimensions")
        for dim, want in zip(shape, self.spec.shape, strict=True):
            if type(dim) is not int or not 0 <= dim <= _LONGEST or (want is not None and want != dim):
                raise self._wrong("does not take this shape")
        return tuple(shape)

    def read_data(self, data: Any, shape: tuple[int, ...]) -> tuple[Array, list[Any]]:
        """Turn JSON values into an array of the input's type; the second result are the same values, flat.

        Raises:
            Refusal: 400; values of another type, too many or too few, ragged, or beyond the type's range.
                503; there is no memory for them.
        """
        if self.spec.datatype == "FP16":
            raise self._wrong("has no form in JSON: send it as binary tensor data")
        if type(data) is not list:
            raise self._wrong("needs a list of data")
        cells = self._flatten(data, shape)
        if len(cells) != math.prod(shape):
            raise self._wrong("needs as many values as its shape says")
        if not set(map(type, cells)) <= self._types:
            raise self._wrong(f"takes {_WORDS[self._kind]}")
        try:
            if self._kind == "O":
                array = text_column(cells)
            else:
                array = np.array(cells, dtype=self._parsed_as)
                if self._dtype == np.float32:
                    array = _single(array)
            return array.reshape(shape), cells
        except ValueError as error:
            raise self._wrong("does not take this shape") from error
        except MemoryError as error:
            raise out_of_memory() from error
        except OverflowError as error:
            raise self._wrong("takes no number beyond the range of its datatype") from error

    def _flatten(self, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
        if not data or type(data[0]) is not list:
            return data
        if not shape or len(data) != shape[0]:
            raise self._wrong("needs nested data of its shape")
        for size in shape[1:]:
            if set(map(type, data)) != {list} or set(map(len, data)) != {size}:
                raise self._wrong("needs nested data of its shape")
            data = list(chain.from_iterable(data))
        return data

    def _wrong(self, problem: str) -> Refusal:
        return malformed(f"Input {self.spec} {problem}.")


def _single(array: Array) -> Array:
    """Doubles as singles; an OverflowError where one is too large."""
    if np.count_nonzero(np.abs(array) < _SINGLE_LIMIT) != array.size:
        raise OverflowError
    return array.astype(np.float32)


def all_finite(array: Array) -> bool:
    """Whether there is neither NaN nor infinity; for a handful of numbers three times as fast as `all`."""
    return int(np.count_nonzero(np.isfinite(array))) == array.size


def write_data(array: Array, name: str, *, nulls: bool = False) -> Array | list[Any]:
    """The flat values of an output, as orjson writes them.

    With `nulls` a value that JSON has no form for is null, and only then the result is a list of floats.

    Raises:
        Refusal: 422; there is NaN, infinity or text that is no UTF-8, for which JSON has no form.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "f":
        if not all_finite(flat):
            if nulls:
                return [value if math.isfinite(value) else None for value in flat.tolist()]
            raise Refusal(422, f"Output {name!r} of the model holds NaN or infinity for this input.")
        return flat
    if flat.dtype.kind in "OSU":
        return [_text(cell, name) for cell in flat.tolist()]
    return flat


def _text(cell: Any, name: str) -> str:
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError as error:
            raise Refusal(422, f"Output {name!r} of the model holds bytes that are no UTF-8 text.") from error
    return str(cell)
