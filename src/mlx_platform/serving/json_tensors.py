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
from mlx_platform.serving.refusal import Refusal, malformed

_NUMBERS = frozenset((int, float))
_TYPES: dict[str, frozenset[type]] = {"b": frozenset((bool,)), "f": _NUMBERS, "O": frozenset((str,))}
_INTEGERS = frozenset((int,))
_WORDS = {"b": "true or false", "f": "numbers", "O": "strings", "i": "integers", "u": "integers"}


def read_shape(shape: Any, spec: TensorSpec) -> tuple[int, ...]:
    """Check a shape against what the input takes.

    Raises:
        Refusal: 400; it is no list of counts, or a fixed dimension or the rank differs.
    """
    if type(shape) is not list or any(type(dim) is not int or dim < 0 for dim in shape):
        raise malformed(f"The shape of input {spec.name!r} must be a list of integers from 0 up.")
    wanted = spec.shape
    if len(shape) != len(wanted) or any(
        want is not None and want != dim for want, dim in zip(wanted, shape, strict=True)
    ):
        raise malformed(f"The input {spec} does not take this shape.")
    return tuple(shape)


def read_data(data: Any, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    """Turn JSON values into an array of the input's type.

    Raises:
        Refusal: 400; values of another type, too many or too few, ragged, or beyond the type's range.
    """
    dtype = spec.numpy_type
    if spec.datatype == "FP16":
        raise malformed(
            f"Input {spec.name!r} is FP16, which JSON cannot carry: send it as binary tensor data."
        )
    if type(data) is not list:
        raise malformed(f"The data of input {spec.name!r} must be a list.")
    cells = _flatten(data, shape, spec)
    if len(cells) != math.prod(shape):
        raise malformed(f"The data of input {spec.name!r} are not as many values as its shape says.")
    if not _TYPES.get(dtype.kind, _INTEGERS).issuperset(map(type, cells)):
        raise malformed(f"The data of input {spec.name!r} must be {_WORDS[dtype.kind]}.")
    if dtype.kind == "O":
        return text_column(cells).reshape(shape)
    try:
        if dtype.kind != "f":
            return np.array(cells, dtype=dtype).reshape(shape)
        with np.errstate(over="ignore"):
            array = np.array(cells, dtype=dtype).reshape(shape)
    except OverflowError as error:
        raise _beyond(spec) from error
    if not np.isfinite(array).all():
        raise _beyond(spec)
    return array


def _beyond(spec: TensorSpec) -> Refusal:
    return malformed(f"The data of input {spec.name!r} hold a number beyond the range of {spec.datatype}.")


def _flatten(data: list[Any], shape: tuple[int, ...], spec: TensorSpec) -> list[Any]:
    if not data or type(data[0]) is not list:
        return data
    if not shape or len(data) != shape[0]:
        raise malformed(f"The nested data of input {spec.name!r} do not have its shape.")
    for size in shape[1:]:
        if set(map(type, data)) != {list} or set(map(len, data)) != {size}:
            raise malformed(f"The nested data of input {spec.name!r} do not have its shape.")
        data = list(chain.from_iterable(data))
    return data


def write_data(array: Array, name: str) -> Array | list[Any]:
    """The flat values of an output, as orjson writes them.

    Raises:
        Refusal: 422; there is NaN, infinity or text that is no UTF-8, for which JSON has no form.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "f":
        if not np.isfinite(flat).all():
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
