"""From what calibration saw to the range that a tensor is quantized in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.quantize.calibrate import BINS, Histogram, Range

Method = Literal["minmax", "percentile", "entropy"]
DEFAULT_PERCENT = 99.99
_LEAST_PERCENT = 50.0
_LEVELS = 255  # steps of an 8-bit scale
_STRIDE = 8  # bins between two thresholds that are tried


@dataclass(frozen=True, slots=True)
class Rule:
    """`percent` of the magnitudes are kept within the range; only a percentile looks at it."""

    method: Method = "minmax"
    percent: float = DEFAULT_PERCENT

    def __str__(self) -> str:
        return f"percentile:{self.percent:g}" if self.method == "percentile" else self.method

    @property
    def extremes_only(self) -> bool:
        """Whether no histogram is needed."""
        return self.method == "minmax"

    def range(self, seen: Histogram) -> Range:
        """The range of one tensor, never wider than its extremes.

        Args:
            seen: a histogram of at least one number; extremes alone are enough for `minmax`.
        """
        if self.method == "minmax" or seen.limit == 0:
            return seen.extremes()
        threshold = _percentile(seen, self.percent) if self.method == "percentile" else _entropy(seen)
        return Range(max(-threshold, seen.lowest), min(threshold, seen.highest))

    def ranges(self, seen: Mapping[str, Histogram]) -> dict[str, Range]:
        """The range of each tensor; those that were always empty have none."""
        return {name: self.range(histogram) for name, histogram in seen.items() if histogram.count}


def parse_rule(text: str) -> Rule:
    """Read `minmax`, `percentile`, `percentile:99.9` or `entropy`.

    Raises:
        UsageError: it is none of them, or the percentile is not within 50 and 100.
    """
    name, _, number = text.strip().lower().partition(":")
    methods: dict[str, Method] = {method: method for method in get_args(Method)}
    if name not in methods or (number and name != "percentile"):
        raise UsageError(
            f"{printable(text)!r} is no way to choose ranges:"
            " minmax, percentile, percentile:99.9 or entropy.",
            hint=did_you_mean(name, methods),
        )
    try:
        percent = float(number) if number else DEFAULT_PERCENT
    except ValueError:
        percent = math.nan
    if not _LEAST_PERCENT <= percent <= 100:
        raise UsageError(
            f"A range cannot hold {printable(number)} % of the values.",
            hint="Choose 50 to 100, such as percentile:99.9.",
        )
    return Rule(methods[name], percent)


def _percentile(seen: Histogram, percent: float) -> float:
    """The upper limit of the first bin up to which the share of magnitudes is reached."""
    if percent >= 100:
        return seen.limit
    share = np.cumsum(seen.bins) / seen.count
    first = int(np.searchsorted(share, percent / 100))
    return (min(first, BINS - 1) + 1) * seen.limit / BINS


def _entropy(seen: Histogram) -> float:
    """The threshold of which the least information is lost.

    For every threshold, the magnitudes up to it with all larger ones counted at it are compared with what is
    left of them on the integer scale: the smallest Kullback-Leibler divergence wins (Migacz, 8-bit Inference
    with TensorRT, GPU Technology Conference 2017). Here the scale has as many levels for magnitudes as the
    range leaves it: 255 where all numbers have one sign, about half of them where they have both.
    """
    width = seen.limit / BINS
    counts = seen.bins.astype(np.float64)
    top = int(np.flatnonzero(counts)[-1]) + 1
    # Zero is exact on every scale, so that the zeros of a Relu say nothing about where to clip.
    counts[0] = min(counts[0], counts[1])
    if not counts.any():
        return top * width
    negative, positive = max(0.0, -seen.lowest), max(0.0, seen.highest)
    best, lost = top, math.inf
    for stop in (*range(_LEVELS // 2, top, _STRIDE), top):
        threshold = stop * width
        both = min(threshold, negative) + min(threshold, positive)
        levels = round(_LEVELS * threshold / both) if both else _LEVELS
        found = _divergence(counts, stop, min(levels, _LEVELS))
        if found <= lost:
            best, lost = stop, found
    return best * width


def _divergence(counts: npt.NDArray[np.float64], stop: int, levels: int) -> float:
    """What is lost of the counts when they are clipped at a bin and told apart by so many levels, in nats."""
    kept = counts[:stop]
    clipped = kept.copy()
    clipped[-1] += counts[stop:].sum()
    if stop <= levels:
        coarse = kept
    else:
        starts = (np.arange(levels) * stop) // levels
        sizes = np.diff(np.append(starts, stop))
        filled = kept > 0
        total, used = np.add.reduceat(kept, starts), np.add.reduceat(filled.astype(np.int64), starts)
        coarse = np.repeat(total / np.maximum(used, 1), sizes) * filled
    present: npt.NDArray[Any] = clipped > 0
    if (coarse[present] == 0).any():
        return math.inf  # a threshold within a gap is no better than the one below the gap
    p = clipped[present] / clipped.sum()
    q = coarse[present] / coarse.sum()
    return float(np.sum(p * np.log(p / q)))
