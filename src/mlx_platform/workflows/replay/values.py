"""What requests hold, in words or as it is."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable

_CELLS = 8
_TEXT = 200  # characters of a value


def described(arrays: Mapping[str, Array]) -> dict[str, str]:
    """What stands in for values: their kind and size."""
    return {name: _description(array) for name, array in arrays.items()}


def _description(array: Array) -> str:
    if array.dtype.kind in "OUS":
        cells = array.reshape(-1).tolist()
        lengths = [len(cell) for cell in cells if isinstance(cell, str | bytes)]
        if len(lengths) == len(cells) == 1:
            return f"text of {lengths[0]:,} characters"
        return f"{len(cells):,} values"
    return f"{array.dtype} {'x'.join(map(str, array.shape))}"


def shown(arrays: Mapping[str, Array]) -> dict[str, str]:
    """The first values, safe to show."""
    found = {}
    for name, array in arrays.items():
        cells = np.asarray(array).reshape(-1)[:_CELLS].tolist()
        more = ", …" if array.size > _CELLS else ""
        found[name] = printable(", ".join(map(_cell, cells)), _TEXT) + more
    return found


def _cell(value: Any) -> str:
    """A float with as many digits as tell single precision apart."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
