"""Quantiles of more numbers than fit into memory.

Sorted pieces are thinned out to values of equal weight, as in the sketches of Munro and Paterson (1980) and
Manku, Rajagopalan and Lindsay (SIGMOD 1998). Unlike KLL it flips no coins: the same rows give the same edges,
and with them the same baseline id. Ranks are off by at most half a piece's weight in each thinning, together
less than 0.1 % of the rows; what lies between the edges is counted exactly afterwards.
"""

from dataclasses import dataclass, field

import numpy as np

from mlx_platform.core.tensors import Array
from mlx_platform.drift import bins

PIECE = 131_072  # values that are sorted at a time
_KEPT = 2_048  # of each piece
_MOST = 131_072  # values in the summary, before it is thinned out to half of them


@dataclass(slots=True)
class Summary:
    """Finite numbers that come in pieces of any size.

    As long as there are at most `exact` of them all are kept, and everything is exact. Distinct values are
    known as long as they are few enough to be bins themselves.
    """

    exact: int
    rows: int = 0
    minimum: float | int | None = None
    maximum: float | int | None = None
    distinct: Array | None = field(default_factory=lambda: np.empty(0))
    _pending: list[Array] = field(default_factory=list)
    _waiting: int = 0
    _values: Array = field(default_factory=lambda: np.empty(0))
    _weights: Array = field(default_factory=lambda: np.empty(0, np.int64))
    _mean: float = 0.0
    _squares: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.rows <= self.exact

    def add(self, ordered: Array) -> None:
        """Take numbers in ascending order [n]."""
        if not len(ordered):
            return
        self._moments(ordered)
        self.rows += len(ordered)
        lowest, highest = ordered[0].item(), ordered[-1].item()
        self.minimum = lowest if self.minimum is None else min(self.minimum, lowest)
        self.maximum = highest if self.maximum is None else max(self.maximum, highest)
        self._distinct(ordered)
        self._pending.append(ordered)
        self._waiting += len(ordered)
        if self._waiting > self.exact and self._waiting >= PIECE:
            self._settle()

    def values(self) -> Array:
        """All numbers in ascending order; only as long as `is_exact`."""
        return np.sort(np.concatenate(self._pending)) if self._pending else np.empty(0)

    def quantiles(self, parts: int = bins.FINE_BINS) -> Array:
        """Observed values below which about k / parts of the rows lie, for k = 1 .. parts - 1."""
        values, weights = self._together()
        upto = np.cumsum(weights)
        ranks = -(-np.arange(1, parts, dtype=np.int64) * self.rows // parts)
        return values[np.searchsorted(upto, ranks, side="left")]

    @property
    def deviation(self) -> float:
        """The standard deviation of the rows."""
        return float(np.sqrt(self._squares / self.rows)) if self.rows else 0.0

    def _moments(self, ordered: Array) -> None:
        """Chan, Golub and LeVeque (1979)."""
        with np.errstate(over="ignore", invalid="ignore"):
            added = ordered.astype(np.float64, copy=False)
            mean, count = float(added.mean()), len(added)
            gap, total = mean - self._mean, self.rows + count
            self._squares += float(((added - mean) ** 2).sum()) + gap * gap * self.rows * count / total
            self._mean += gap * count / total

    def _distinct(self, ordered: Array) -> None:
        if self.distinct is None:
            return
        fresh = ordered[np.append(True, ordered[1:] != ordered[:-1])]
        found = np.union1d(self.distinct, fresh) if len(self.distinct) else fresh
        self.distinct = found if len(found) <= bins.DISCRETE_INTEGERS else None

    def _settle(self) -> None:
        """Thin out what is waiting, and the summary itself when it has grown."""
        piece = np.sort(np.concatenate(self._pending))
        self._pending, self._waiting = [], 0
        values, weights = _thinned(piece, np.ones(len(piece), np.int64), _KEPT * -(-len(piece) // PIECE))
        self._values = _appended(self._values, values)
        self._weights = np.concatenate([self._weights, weights])
        if len(self._values) > _MOST:
            order = np.argsort(self._values, kind="stable")
            self._values, self._weights = _thinned(self._values[order], self._weights[order], _MOST // 2)

    def _together(self) -> tuple[Array, Array]:
        waiting = self.values()
        values = _appended(self._values, waiting)
        weights = np.concatenate([self._weights, np.ones(len(waiting), np.int64)])
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]


def _appended(values: Array, more: Array) -> Array:
    """Both together, in a type that holds both; an empty side has none."""
    if not len(values) or not len(more):
        return values if len(values) else more
    return np.concatenate([values, more])


def _thinned(ordered: Array, weights: Array, most: int) -> tuple[Array, Array]:
    """At most so many of the values, each in the middle of the rows that it then stands for."""
    if len(ordered) <= most:
        return ordered, weights
    upto = np.cumsum(weights)
    total = int(upto[-1])
    ends = np.arange(most + 1, dtype=np.int64) * total // most
    middles = (ends[:-1] + ends[1:]) // 2
    return ordered[np.searchsorted(upto, middles, side="right")], np.diff(ends)
