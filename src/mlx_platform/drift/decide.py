"""Whether the difference between baseline and window is more than chance, for one feature.

PSI has no fixed scale: without any drift it is about (K - 1)(1/n + 1/m). A score counts only beyond what
chance explains at that size (chi-square limit, Yurdakul 2018); with too few rows for the limit an exact test
decides; and where neither can tell, the answer is that there are too few rows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mlx_platform.drift import exact, scores
from mlx_platform.drift.feature import FeatureProfile
from mlx_platform.drift.table import BINS, OTHER, Table, all_categories, tabulate
from mlx_platform.drift.tally import Tally

ALPHA = 0.001
"""The chance of calling a feature significant that has not moved."""
COARSER = (5, 3)
"""Bins to retry with when the limit of a finer table is too wide to decide."""
ROWS_PER_BIN = 5
"""That a table needs on the smaller side to be judged by its limit."""

Method = Literal["chi2", "ks", "permutation"]


@dataclass(frozen=True, slots=True)
class Decision:
    """How one table decided.

    Attributes:
        method: chi2 limit of PSI, or an exact test.
        bins: of the table.
        psi: of the table.
        adjusted: PSI less what chance alone gives on average.
        p_value: of no drift.
        limit: what PSI stays below in 95 of 100 windows without drift.
    """

    method: Method
    bins: int
    psi: float
    adjusted: float
    p_value: float
    limit: float


def decide(feature: FeatureProfile, window: Tally, *, wide: float, missing: bool) -> Decision:
    """Judge a feature on one kind of table.

    Args:
        feature: of the baseline.
        window: counts on its bins, at least one row.
        wide: the PSI that a table has to be able to see; coarser ones are tried until its limit is below.
        missing: whether rows without a value are a bin.
    """
    decision = None
    for number, table in enumerate(_tables(feature, window, missing=missing)):
        n, m = table.rows
        if number == 0 and min(n, m) < ROWS_PER_BIN * _bins_wanted(feature, window, table):
            return _exact(feature, window, table, missing=missing)
        decision = _by_limit(table)
        if decision.p_value < ALPHA or decision.limit <= wide:
            return decision
    if decision is None:
        raise AssertionError("a feature has at least one table")
    return decision


def _tables(feature: FeatureProfile, window: Tally, *, missing: bool) -> Iterator[Table]:
    """From the finest that the rows can fill to the coarsest."""
    before = 0
    for parts in (None, BINS, *COARSER):
        table = tabulate(feature, window, parts)
        if missing:
            table = table.with_missing(feature.tally.missing_rows, window.missing_rows)
        too_fine = parts is None and table.bins > BINS and min(table.rows) < ROWS_PER_BIN * table.bins
        if not too_fine and table.bins != before:
            before = table.bins
            yield table


def _bins_wanted(feature: FeatureProfile, window: Tally, table: Table) -> int:
    if feature.kind != "categorical":
        return table.bins
    # Pooling may have left one bin only because there are so few rows.
    _, baseline, counted = all_categories(feature, window)
    return max(table.bins, min(BINS, int(np.count_nonzero(baseline + counted))))


def _by_limit(table: Table) -> Decision:
    n, m = table.rows
    score = scores.psi(*scores.shares(table.baseline, table.window))
    # Where no category is frequent enough to be looked at, nothing can be said about any.
    blind = table.labels[0] == OTHER
    return Decision(
        method="chi2",
        bins=table.bins,
        psi=score,
        adjusted=score - scores.noise(n, m) * (table.bins - 1),
        p_value=scores.psi_tail(score, n, m, table.bins) if table.bins > 1 else 1.0,
        limit=math.inf if blind else scores.psi_limit(n, m, table.bins, 0.95),
    )


def _exact(feature: FeatureProfile, window: Tally, table: Table, *, missing: bool) -> Decision:
    baseline, counted = feature.tally.bins, window.bins
    ordered = feature.kind in {"numeric", "discrete", "constant"}
    if feature.kind == "categorical":
        _, baseline, counted = all_categories(feature, window)
        baseline = np.append(baseline, feature.tally.other)
        counted = np.append(counted, window.other)
    if missing:
        # First in the order: any fixed place keeps a test of ordered bins valid, and they are seen as well.
        baseline = np.insert(baseline, 0, feature.tally.missing_rows)
        counted = np.insert(counted, 0, window.missing_rows)
    test = exact.ks_p_value if ordered else exact.permutation_p_value
    method: Method = "ks" if ordered else "permutation"
    return replace(_by_limit(table), method=method, p_value=test(baseline, counted))
