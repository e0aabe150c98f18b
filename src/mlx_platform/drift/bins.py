"""Bins from the baseline alone: observed values as edges, never interpolated, the same for every window.

A numeric feature keeps 119 edges, its 120-quantiles, ties included; 120 can be divided by 3, 5, 8, 10, 12, 20
and more, so that coarser quantile bins are sums of the fine ones.
"""

import numpy as np
import numpy.typing as npt

from mlx_platform.core.tensors import Array

FINE_BINS = 120
DISCRETE_VALUES = 20
"""A baseline with at most so many distinct values is counted value by value."""
DISCRETE_INTEGERS = 50
"""The same, when all of them are whole numbers."""


def quantiles(ordered: Array, parts: int = FINE_BINS) -> Array:
    """The observed values below which k/parts of the rows lie, for k = 1 .. parts - 1.

    x[ceil(k n / parts) - 1], which NumPy calls `inverted_cdf`, in integers throughout.

    Args:
        ordered: finite values in ascending order [n], n >= 1.
        parts: into how many.
    """
    steps = np.arange(1, parts, dtype=np.int64)
    return ordered[-(-steps * len(ordered) // parts) - 1]


def edges(fine: Array, maximum: float, parts: int) -> Array:
    """Right-closed inner edges of `parts` quantile bins, from the fine quantiles.

    Repeated edges fall together, and one that equals the maximum is dropped: no bin is empty on the baseline.

    Args:
        fine: from `quantiles`, with `FINE_BINS` parts.
        maximum: of the baseline.
        parts: a divisor of `FINE_BINS`.
    """
    step = FINE_BINS // parts
    found = np.unique(fine[step - 1 :: step])
    return found[found < maximum]


def is_discrete(values: Array) -> bool:
    """Whether distinct baseline values are few enough to be bins themselves."""
    if len(values) <= DISCRETE_VALUES:
        return True
    whole = values.dtype.kind in "iu" or bool(np.all(values == np.rint(values)))
    return whole and len(values) <= DISCRETE_INTEGERS


def count_intervals(ordered: Array, inner: Array) -> npt.NDArray[np.int64]:
    """How many values lie in each of (-inf, e1], (e1, e2] .. (ek, inf).

    Args:
        ordered: values in ascending order [n]: sorting a million and looking up the edges costs a third of
            looking up a million values among the edges.
        inner: edges in ascending order [k].
    """
    upto = np.searchsorted(ordered, common_type(inner, ordered), side="right")
    return np.diff(np.concatenate([[0], upto, [len(ordered)]])).astype(np.int64)


def count_values(ordered: Array, known: Array) -> npt.NDArray[np.int64]:
    """How many values equal each known one, and how many lie in the gaps before, between and after them.

    Args:
        ordered: values in ascending order [n].
        known: distinct values in ascending order [k].

    Returns:
        Counts [2 k + 1] in ascending order: gap, value, gap, value .. gap.
    """
    known = common_type(known, ordered)
    marks = np.empty(2 * len(known) + 2, dtype=np.int64)
    marks[0], marks[-1] = 0, len(ordered)
    marks[1:-1:2] = np.searchsorted(ordered, known, side="left")
    marks[2:-1:2] = np.searchsorted(ordered, known, side="right")
    # Two known values may round to the same one in traffic of less precision; the first then has the rows.
    return np.diff(np.maximum.accumulate(marks))


def common_type(inner: Array, values: Array) -> Array:
    """Edges rounded as the values are: a baseline's 0.1 must meet the 0.1 of float32 traffic."""
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        return inner.astype(values.dtype)
    return inner


def merge_bins(counts: npt.NDArray[np.int64], fine: Array, coarse: Array) -> npt.NDArray[np.int64]:
    """Counts over fine right-closed bins, summed into coarse ones whose edges are among the fine."""
    target = np.searchsorted(coarse, fine, side="left")
    merged = np.zeros(len(coarse) + 1, dtype=np.int64)
    np.add.at(merged, np.append(target, len(coarse)), counts)
    return merged


def group_ends(counts: npt.NDArray[np.int64], parts: int) -> npt.NDArray[np.int64]:
    """Where to cut discrete values into neighbours that share about n/parts of the baseline's rows.

    Args:
        counts: of the baseline, by value in ascending order [k].
        parts: how many groups at most.

    Returns:
        Indices of the last value of each group but the last.
    """
    last_rank = np.cumsum(counts) - 1
    group = np.maximum(last_rank, 0) * parts // max(1, int(counts.sum()))
    return np.flatnonzero(np.diff(group)).astype(np.int64)
