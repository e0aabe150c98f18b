"""Columns of a table, read as the type that the model declares for them."""

from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, text_column
from mlx_platform.drift import values
from mlx_platform.drift.values import Column


def as_category(column: Array) -> Array:
    """A column of categories as their keys: 1, 1.0 and "1" are one. NaN and null are missing.

    Args:
        column: cells of any type [rows].
    """
    if column.dtype.kind in "fiub":
        distinct, place = np.unique(column, return_inverse=True)
        return text_column([_key(cell) for cell in distinct.tolist()])[place]
    return text_column([_key(cell) for cell in column.tolist()])


def _key(cell: Any) -> Any:
    if cell is None or cell != cell:  # noqa: PLR0124 - NaN
        return None
    key = values.category_key(cell)
    return cell if key is None else key


def as_number(column: Array) -> Column:
    """A column of numbers; text that spells one is read, any other counts as invalid."""
    return values.numbers(column) if column.dtype.kind in "OUST" else column
