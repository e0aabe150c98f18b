"""Resampling of rows for numbers that are functions of sums, at a cost that does not grow with the rows.

Nearly every metric is computed from column sums over the rows. So rows are first added up into blocks, and
the bootstrap draws blocks: one block per row while there are few rows, random blocks of equal size beyond
that. Drawing random blocks estimates the same variance and skewness as drawing rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.core.statistics import (
    Interval,
    bca_confidence,
    bca_interval,
    percentile_confidence,
    percentile_interval,
)

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

RESAMPLES = 1000
MAX_BLOCKS = 5_000
MIN_BLOCKS = 500
_MAX_CELLS = 500_000  # sums in all blocks: half a second for a thousand resamples
_CHUNK = 100  # resamples at a time: 4 MB of weights at the most blocks
_CHUNK_CELLS = 2_000_000  # 16 MB
_JACKKNIFE_GROUPS = 100


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which block each row belongs to: `index` [rows], `count` blocks; `weights` [rows], None for ones."""

    index: Codes
    count: int
    weights: Floats | None = None

    def sums(self, *columns: npt.NDArray[np.generic]) -> Floats:
        """Add up columns [rows] within the blocks, each row by its weight: [blocks, columns]."""
        totals = [np.bincount(self.index, self._weighted(column), self.count) for column in columns]
        return np.stack(totals, axis=1)

    def counts(self, codes: Codes, width: int, *columns: npt.NDArray[np.generic]) -> Floats:
        """Count codes 0..width-1 [rows] within the blocks by their weights, or add up each column by code.

        Returns:
            [blocks, width], or [blocks, width * len(columns)] with the columns one after the other.
        """
        cells = self.index * width + codes
        size = self.count * width
        weighted: list[Floats | None] = [self._weighted(column) for column in columns]
        weighted = weighted or [self.weights]
        parts = [np.bincount(cells, weight, size).astype(np.float64, copy=False) for weight in weighted]
        return np.concatenate([part.reshape(self.count, width) for part in parts], axis=1)

    def _weighted(self, column: npt.NDArray[np.generic]) -> Floats:
        values = column.astype(np.float64, copy=False)
        return values if self.weights is None else values * self.weights


def block_limit(width: int) -> int:
    """The most blocks, when each carries that many sums: the more sums, the fewer blocks."""
    return min(max(_MAX_CELLS // width, MIN_BLOCKS), MAX_BLOCKS)


def make_blocks(
    rows: int, *, most: int, seed: int, groups: Codes | None = None, weights: Floats | None = None
) -> Blocks:
    """A block per row, or per group of rows, while they are few; else random blocks of nearly equal size.

    Args:
        rows: how many rows.
        most: how many blocks at most.
        seed: of the random assignment.
        groups: rows that belong together [rows]; they stay in one block.
        weights: what each row counts [rows].
    """
    units = None if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    total = rows if units is None else int(units.max(initial=-1)) + 1
    if total <= most:
        return Blocks(np.arange(rows) if units is None else units, total, weights)
    # At random, because rows often come sorted by class or time.
    places = np.random.default_rng(seed).permutation(total) % most
    return Blocks(places if units is None else places[units], most, weights)


@dataclass(frozen=True, slots=True)
class Resampled:
    """A number with the values it takes on resamples [resamples] and with a part of the rows left out."""

    value: float
    draws: Floats
    left_out: Floats

    def interval(self, confidence: float) -> Interval:
        """The two-sided bias-corrected and accelerated interval; NaN ends where it is not defined."""
        return bca_interval(self.value, self.draws, self.left_out, confidence)

    def below(self, limit: float) -> float:
        """The confidence with which it lies below a limit; NaN where it is not defined."""
        return bca_confidence(self.value, self.draws, self.left_out, limit)

    def above(self, limit: float) -> float:
        """The confidence with which it lies above a limit."""
        return bca_confidence(-self.value, -self.draws, -self.left_out, -limit)

    def paired_interval(self, units: int, confidence: float) -> Interval:
        """The two-sided interval of a difference of two numbers on the same `units`.

        The outer ends of two intervals. The accelerated one alone is short where differences have heavy
        tails, the percentile one alone is short where they are skewed: few rows that lose much.
        """
        ends = self.interval(confidence), percentile_interval(self.draws, units, confidence)
        return Interval(min(one.lower for one in ends), max(one.upper for one in ends))

    def paired_below(self, units: int, limit: float) -> float:
        """The confidence with which such a difference lies below a limit, by the more careful of the two."""
        percentile = percentile_confidence(self.value, self.draws, units, limit)
        return float(np.minimum(self.below(limit), percentile))

    def paired_above(self, units: int, limit: float) -> float:
        """The confidence with which it lies above a limit."""
        percentile = percentile_confidence(-self.value, -self.draws, units, -limit)
        return float(np.minimum(self.above(limit), percentile))

    @property
    def error(self) -> float:
        """The standard error; NaN when more than a twentieth of the draws are undefined."""
        finite = self.draws[np.isfinite(self.draws)]
        return float(finite.std()) if len(finite) >= 0.95 * len(self.draws) else float("nan")

    def moved_to(self, value: float) -> "Resampled":
        """The same spread around another value: that of all rows, where the resamples were rounded."""
        shift = value - self.value
        return Resampled(value, self.draws + shift, self.left_out + shift)

    def combine(self, other: "Resampled", function: Callable[..., Any]) -> "Resampled":
        """A number made of this one and another one from the same resamples, such as their difference."""
        return Resampled(
            float(function(self.value, other.value)),
            function(self.draws, other.draws),
            function(self.left_out, other.left_out),
        )


@dataclass(frozen=True, slots=True)
class Draws:
    """How often each block was drawn: `counts` [resamples, blocks].

    The same blocks and the same seed give the same draws, so that numbers of two models can be compared.
    """

    counts: npt.NDArray[np.uint16]

    def apply(self, part: Floats, functions: Sequence[Callable[[Floats], Floats]]) -> list[Resampled]:
        """The numbers that functions from sums [any, ...] to values [any] make of the sums [blocks, ...]."""
        values: list[list[Floats]] = [[] for _ in functions]
        # Few large products rather than many small ones: each makes the threads of the library meet.
        chunk = max(1, _CHUNK_CELLS // max(len(part), part[0].size))
        for start in range(0, len(self.counts), chunk):
            counts = self.counts[start : start + chunk].astype(np.float64)
            sums = np.tensordot(counts, part, axes=1)
            for function, found in zip(functions, values, strict=True):
                found.append(function(sums))
        total, left_out = part.sum(axis=0, keepdims=True), _left_out(part)
        return [
            Resampled(float(function(total)[0]), np.concatenate(found), function(left_out))
            for function, found in zip(functions, values, strict=True)
        ]

    def call(self, function: Callable[[Codes], float], blocks: Blocks, *, resamples: int) -> Resampled:
        """The number that a function from row indices [any] makes of the first draws: slow, and for all."""
        rows = np.arange(len(blocks.index))
        draws = [function(np.repeat(rows, counts[blocks.index])) for counts in self.counts[:resamples]]
        groups = min(blocks.count, _JACKKNIFE_GROUPS)
        left_out = [function(rows[blocks.index % groups != group]) for group in range(groups)]
        return Resampled(function(rows), np.array(draws), np.array(left_out))


def draw(blocks: int, *, seed: int, resamples: int = RESAMPLES, kept: Sequence[Codes] = ()) -> Draws:
    """Draw as many blocks as there are, with repetition, again and again.

    Args:
        blocks: how many there are.
        seed: of the draws.
        resamples: how many draws.
        kept: sets of blocks, such as those with a rare class. A draw that misses one of the sets gets one
            block of it on top, since without the class the number in question would be another one.
    """
    generator = np.random.default_rng(seed)
    counts = np.empty((resamples, blocks), np.uint16)
    for start in range(0, resamples, _CHUNK):
        size = min(_CHUNK, resamples - start)
        drawn = generator.integers(0, blocks, (size, blocks)) + np.arange(size)[:, None] * blocks
        drawn_often = np.bincount(drawn.reshape(-1), minlength=size * blocks)
        counts[start : start + size] = drawn_often.reshape(size, blocks)
    for places in kept:
        missing = np.flatnonzero(~counts[:, places].any(axis=1))
        counts[missing, generator.choice(places, len(missing))] = 1
    return Draws(counts)


def _left_out(part: Floats) -> Floats:
    groups = min(len(part), _JACKKNIFE_GROUPS)
    # Strided groups, since neighbouring rows may be alike.
    grouped = np.stack([part[start::groups].sum(axis=0) for start in range(groups)])
    left: Floats = part.sum(axis=0) - grouped
    return left
