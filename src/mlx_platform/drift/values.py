"""Columns as they come, sorted into numbers or category keys and several ways of being missing."""

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array

KEY_CAP = 256  # characters of a category's key
_KEY_KEPT = 200


@dataclass(frozen=True, slots=True)
class Missing:
    """Rows without a usable value: null, not a number, or of a type the feature does not have."""

    null: int = 0
    nan: int = 0
    invalid: int = 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """`ordered` holds the values in ascending order [n], finite or infinite, float or int64."""

    ordered: Array
    missing: Missing

    def __len__(self) -> int:
        """The rows of the column."""
        return len(self.ordered) + self.missing.null + self.missing.nan + self.missing.invalid

    @property
    def finite(self) -> Array:
        return self.ordered[self.neginf : len(self.ordered) - self.posinf]

    @property
    def neginf(self) -> int:
        if self.ordered.dtype.kind != "f":
            return 0
        return int(np.searchsorted(self.ordered, -np.inf, side="right"))

    @property
    def posinf(self) -> int:
        if self.ordered.dtype.kind != "f":
            return 0
        return len(self.ordered) - int(np.searchsorted(self.ordered, np.inf, side="left"))


@dataclass(frozen=True, slots=True)
class Categories:
    """How often each key occurs: a column of which only that matters, already counted."""

    counts: Mapping[str, int]
    missing: Missing

    def __len__(self) -> int:
        """The rows of the column."""
        return sum(self.counts.values()) + self.missing.null + self.missing.nan + self.missing.invalid


Column = Array | Categories | Numbers
"""A feature's values [rows], or their counts, or its numbers already read."""


def is_scalar(column: Column) -> bool:
    """Whether a column has one value in each row."""
    return isinstance(column, Categories | Numbers) or column.ndim == 1


def numbers(column: Column) -> Numbers:
    """Read a column as numbers; text that spells a number counts as one.

    Raises:
        UsageError: the column is not one-dimensional.
    """
    if isinstance(column, Numbers | Categories):
        return column if isinstance(column, Numbers) else _numbers_from_categories(column)
    if column.ndim != 1:
        raise UsageError("A feature has one value in each row.")
    kind = column.dtype.kind
    if kind == "f":
        ordered = np.sort(column)
        present = int(np.searchsorted(ordered, np.nan, side="left"))  # NaN sorts to the end
        return Numbers(ordered[:present], Missing(nan=len(ordered) - present))
    if kind == "u" and column.size and int(column.max()) > np.iinfo(np.int64).max:
        return Numbers(np.sort(column.astype(np.float64)), Missing())
    if kind in "iub":
        return Numbers(np.sort(column.astype(np.int64, copy=False)), Missing())
    if kind in "mM":
        unit = "datetime64[ns]" if kind == "M" else "timedelta64[ns]"
        moments = column[~np.isnat(column)].astype(unit).astype(np.int64)
        return Numbers(np.sort(moments), Missing(null=len(column) - len(moments)))
    return _numbers_from_cells(column.tolist())


def _numbers_from_cells(cells: list[Any]) -> Numbers:
    found: list[float] = []
    null = nan = invalid = 0
    for cell in cells:
        value = None if cell is None else _as_number(cell)
        if cell is None:
            null += 1
        elif value is None:
            invalid += 1
        elif math.isnan(value):
            nan += 1
        else:
            found.append(value)
    return Numbers(np.sort(np.asarray(found, dtype=np.float64)), Missing(null, nan, invalid))


def _numbers_from_categories(column: Categories) -> Numbers:
    spelled = {key: _as_number(key) for key in column.counts}
    known = {key: value for key, value in spelled.items() if value is not None and not math.isnan(value)}
    times = [column.counts[key] for key in known]
    nan = sum(column.counts[key] for key, value in spelled.items() if value is not None) - sum(times)
    invalid = sum(column.counts[key] for key, value in spelled.items() if value is None)
    ordered = np.sort(np.repeat(np.asarray(list(known.values()), dtype=np.float64), times))
    missing = column.missing
    return Numbers(ordered, Missing(missing.null, missing.nan + nan, missing.invalid + invalid))


def _as_number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


def categories(column: Column) -> Categories:
    """Read a column as categories. One number is one category, whether it comes as 1, 1.0 or "1".

    Raises:
        UsageError: the column is not one-dimensional.
    """
    if isinstance(column, Categories):
        return column
    if isinstance(column, Numbers):
        distinct, occurrences = np.unique(column.ordered, return_counts=True)
        found = categories_of(zip(distinct.tolist(), occurrences.tolist(), strict=True))
        return Categories(found.counts, column.missing)
    if column.ndim != 1:
        raise UsageError("A feature has one value in each row.")
    raw: Mapping[Any, int]
    if column.dtype.kind in "OUST":
        raw = _count_cells(column.tolist())
    else:
        distinct, occurrences = np.unique(column, return_counts=True)
        raw = dict(zip(distinct.tolist(), occurrences.tolist(), strict=True))
    return categories_of(raw.items())


def categories_of(occurrences: Iterable[tuple[Any, int]]) -> Categories:
    """Categories from distinct cells of any type, each with how often it occurs."""
    counts: Counter[str] = Counter()
    null = nan = invalid = 0
    for cell, occurrence in occurrences:
        if cell is None:
            null += occurrence
        elif isinstance(cell, float) and math.isnan(cell):
            nan += occurrence
        elif (key := category_key(cell)) is None:
            invalid += occurrence
        else:
            counts[key] += occurrence
    return Categories(counts, Missing(null, nan, invalid))


def _count_cells(cells: list[Any]) -> Mapping[Any, int]:
    try:
        return Counter(cells)
    except TypeError:  # lists, arrays: no categories, but no reason to lose the rest of the column
        return Counter(cell if isinstance(cell, Hashable) else type(cell) for cell in cells)


def category_key(cell: Any) -> str | None:
    """The text by which a value is counted; None when it is no category at all."""
    match cell:
        case bool():
            text = "true" if cell else "false"
        case int():
            text = str(cell)
        case float():
            text = str(int(cell)) if cell.is_integer() else repr(cell)
        case str():
            text = cell
        case bytes():
            text = cell.decode("utf-8", "replace")
        case np.generic():
            return category_key(cell.item())
        case _:
            return None
    if len(text) <= KEY_CAP:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:_KEY_KEPT]}…{digest}"


def holds_numbers(column: Column) -> bool:
    """Whether a baseline column is a numeric feature; text and truth values are categories."""
    if isinstance(column, Categories | Numbers):
        return isinstance(column, Numbers)
    if column.dtype.kind in "fiumM":
        return True
    if column.dtype.kind != "O":
        return False
    present = {type(cell) for cell in column.tolist()} - {type(None)}
    return (
        bool(present)
        and all(issubclass(kind, int | float | np.number) for kind in present - {bool})
        and (bool not in present)
    )
