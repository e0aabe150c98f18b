"""Which rows a drift comes from: those in bins that hold more of the window than of the baseline."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array
from mlx_platform.drift import bins, scores
from mlx_platform.drift.feature import FeatureProfile
from mlx_platform.drift.table import BINS, all_categories
from mlx_platform.drift.tally import Tally
from mlx_platform.drift.values import category_key


class Excess:
    """What a row adds to a feature's PSI, by the bin that its value lies in.

    A bin with more of the window than of the baseline adds (p - q) ln(p / q), which the share q of the rows
    brings about: each of them (p - q) ln(p / q) / q, as if all were like it. Rows of other bins add nothing.

    Args:
        feature: of the baseline.
        window: counts on its bins.
    """

    def __init__(self, feature: FeatureProfile, window: Tally) -> None:
        self._kind = feature.kind
        self._known: Array = np.empty(0)
        self._keys: dict[str, int] = {}
        if feature.kind == "categorical":
            keys, a, b = all_categories(feature, window)
            self._keys = {key: place for place, key in enumerate(keys)}
        elif feature.kind == "numeric":
            fine = feature.edges
            self._known = bins.edges(np.asarray(feature.quantiles), feature.highest, BINS)
            a, b = (bins.merge_bins(tally.bins, fine, self._known) for tally in (feature.tally, window))
        else:
            self._known = np.asarray(feature.values)
            a, b = feature.tally.bins, window.bins
        self._each = _each(np.append(a, feature.tally.missing_rows), np.append(b, window.missing_rows))

    def of(self, column: Array) -> Array:
        """What each row adds [rows]."""
        return self._each[[self._place(cell) for cell in column.tolist()]]

    def _place(self, cell: Any) -> int:
        """The bin of a value; the last is for rows without one."""
        if self._kind == "categorical":
            key = None if cell is None else category_key(cell)
            return self._keys.get(key, -1) if key is not None else -1
        try:
            number = float(cell)
        except (TypeError, ValueError, OverflowError):
            return -1
        if math.isnan(number) or self._kind == "empty":
            return -1 if math.isnan(number) else 0
        place = int(np.searchsorted(self._known, number, side="left"))
        if self._kind == "numeric":
            return place
        found = place < len(self._known) and float(self._known[place]) == number
        return 2 * place + (1 if found else 0)


def _each(a: Array, b: Array) -> Array:
    """What a row of each bin adds, 0 where the window has no more than the baseline."""
    smoothing, count = scores.SMOOTHING, len(a)
    p = (a + smoothing) / (a.sum() + smoothing * count)
    q = (b + smoothing) / (b.sum() + smoothing * count)
    return np.where(q > p, scores.contributions(p, q) / q, 0.0)


def row_weights(excesses: Mapping[str, Excess], columns: Mapping[str, Any], rows: int) -> Array:
    """What each row adds to PSI over all features [rows]; a column that is not there adds nothing."""
    total = np.zeros(rows)
    for name, excess in excesses.items():
        column = columns.get(name)
        if isinstance(column, np.ndarray) and column.shape == (rows,):
            total += excess.of(column)
    return total
