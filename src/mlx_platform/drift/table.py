"""Baseline and window side by side over the same bins, at a chosen resolution."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mlx_platform.core.text import printable
from mlx_platform.drift import bins
from mlx_platform.drift.feature import FeatureProfile
from mlx_platform.drift.tally import Bins, Tally

BINS = 10
"""Quantile bins of a score unless a comparison needs fewer."""
OTHER = "__other__"
MISSING = "(missing)"
_LABEL_CAP = 60  # characters
_EXPECTED = 5  # rows that a category needs on both sides to stand alone


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Counts [K] of both sides; bins that are empty on both have been left out."""

    labels: tuple[str, ...]
    baseline: Bins
    window: Bins

    @property
    def bins(self) -> int:
        return len(self.labels)

    @property
    def rows(self) -> tuple[int, int]:
        return int(self.baseline.sum()), int(self.window.sum())

    def with_missing(self, baseline: int, window: int) -> "Table":
        """The same with one more bin, for rows without a value."""
        labels = (*self.labels, MISSING)
        return make_table(labels, np.append(self.baseline, baseline), np.append(self.window, window))


def make_table(labels: tuple[str, ...], baseline: Bins, window: Bins) -> Table:
    used = (baseline > 0) | (window > 0)
    kept = tuple(label for label, use in zip(labels, used, strict=True) if use)
    return Table(kept, baseline[used], window[used])


def tabulate(feature: FeatureProfile, window: Tally, parts: int | None = None) -> Table:
    """The present values of a feature on both sides.

    Args:
        feature: of the baseline.
        window: what was counted on its bins.
        parts: about how many bins; None is the feature's own resolution: deciles, each discrete value, or
            each category that is frequent enough.
    """
    base = feature.tally
    match feature.kind:
        case "numeric":
            return _intervals(feature, window, parts or BINS)
        case "discrete" | "constant":
            if parts is None or parts >= len(feature.values):
                return _values(feature, window)
            return _grouped_values(feature, window, parts)
        case "categorical":
            return _pooled(feature, window, parts)
        case "empty":
            return make_table(("present",), base.bins, window.bins)


def _intervals(feature: FeatureProfile, window: Tally, parts: int) -> Table:
    fine = feature.edges
    coarse = bins.edges(np.asarray(feature.quantiles), feature.highest, parts)
    return make_table(
        interval_labels([number_text(edge) for edge in coarse.tolist()]),
        bins.merge_bins(feature.tally.bins, fine, coarse),
        bins.merge_bins(window.bins, fine, coarse),
    )


def interval_labels(edges: list[str]) -> tuple[str, ...]:
    """Names of right-closed bins."""
    if not edges:
        return ("any",)
    inner = [f"({low}, {high}]" for low, high in pairwise(edges)]
    return (f"≤ {edges[0]}", *inner, f"> {edges[-1]}")


def number_text(number: float) -> str:
    """Short where that is exact, with all digits of a whole number."""
    return str(number) if isinstance(number, int) else f"{number:.6g}"


def _values(feature: FeatureProfile, window: Tally) -> Table:
    """Each value, what lies between them, and what lies beyond both ends."""
    if len(feature.values) == 1:
        only = number_text(feature.values[0])
        return make_table((f"< {only}", f"= {only}", f"> {only}"), feature.tally.bins, window.bins)
    labels = (*(f"= {number_text(value)}" for value in feature.values), "between", "beyond")
    return make_table(labels, _guarded(feature.tally.bins), _guarded(window.bins))


def _guarded(counts: Bins) -> Bins:
    gaps = counts[0::2]
    return np.concatenate([counts[1::2], [gaps[1:-1].sum(), gaps[0] + gaps[-1]]])


def _grouped_values(feature: FeatureProfile, window: Tally, parts: int) -> Table:
    ends = bins.group_ends(feature.tally.bins[1::2], parts)
    cuts = 2 * ends + 2  # right-closed: the gap after a group's last value opens the next group
    labels = interval_labels([number_text(feature.values[end]) for end in ends])
    starts = np.concatenate([[0], cuts])
    return make_table(
        labels, np.add.reduceat(feature.tally.bins, starts), np.add.reduceat(window.bins, starts)
    )


def _pooled(feature: FeatureProfile, window: Tally, parts: int | None) -> Table:
    """Frequent categories by name, the rest together.

    What is frequent follows from both sides pooled. Choosing by the baseline alone would favour categories
    that chance made frequent there, and alarm without drift.
    """
    keys, baseline, counted = all_categories(feature, window)
    n, m = feature.tally.present, window.present
    pooled = baseline + counted
    frequent = pooled * min(n, m) >= _EXPECTED * (n + m)
    order = np.argsort(-pooled, kind="stable")
    chosen = [int(index) for index in order if frequent[index]][: None if parts is None else parts - 1]
    labels = (*(category_text(keys[index]) for index in chosen), OTHER)
    return make_table(
        labels,
        np.append(baseline[chosen], n - baseline[chosen].sum()).astype(np.int64),
        np.append(counted[chosen], m - counted[chosen].sum()).astype(np.int64),
    )


def all_categories(feature: FeatureProfile, window: Tally) -> tuple[list[str], Bins, Bins]:
    """The keys that either side names, with both sides' counts [k]; values without a name are left out."""
    fresh = sorted({*feature.tally.fresh, *window.fresh})
    baseline, counted = (
        np.concatenate([side.bins, np.asarray([side.fresh.get(key, 0) for key in fresh], np.int64)])
        for side in (feature.tally, window)
    )
    return [*feature.categories, *fresh], baseline, counted


def category_text(key: str) -> str:
    return printable(key, _LABEL_CAP) or "(empty text)"


def largest(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """The keys with the highest counts, ties in the order of keys."""
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return [(category_text(key), count) for key, count in ranked[:most]]
