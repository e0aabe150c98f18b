"""Resampling of rows for numbers that are functions of sums, at a cost that does not grow with the rows.

Every metric here is computed from column sums over the rows. So rows are first added up into blocks, and
the bootstrap draws blocks: one block per row while there are few rows, random blocks of equal size beyond
that. Drawing random blocks estimates the same variance and skewness as drawing rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mlx_platform.core.statistics import Interval, bca_interval

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

RESAMPLES = 1000
MAX_BLOCKS = 5_000
MIN_BLOCKS = 500
_MAX_CELLS = 2_000_000
_CHUNK = 100  # resamples at a time: 4 MB of weights at the most blocks
_JACKKNIFE_GROUPS = 100


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which block each row belongs to: `index` [rows], `count` blocks."""

    index: Codes
    count: int

    def sums(self, *columns: npt.NDArray[np.generic]) -> Floats:
        """Add up columns [rows] within the blocks: [blocks, columns]."""
        totals = [np.bincount(self.index, column.astype(np.float64), self.count) for column in columns]
        return np.stack(totals, axis=1)

    def counts(self, codes: Codes, width: int, *weights: npt.NDArray[np.generic]) -> Floats:
        """Count codes 0..width-1 [rows] within the blocks, or add up each of the weights by code.

        Returns:
            [blocks, width], or [blocks, width * len(weights)] with the weights one after the other.
        """
        cells = self.index * width + codes
        size = self.count * width
        if not weights:
            return np.bincount(cells, minlength=size).reshape(self.count, width).astype(np.float64)
        parts = [np.bincount(cells, weight.astype(np.float64), size) for weight in weights]
        return np.concatenate([part.reshape(self.count, width) for part in parts], axis=1)


def make_blocks(rows: int, *, width: int, seed: int) -> Blocks:
    """A block per row while they are few, else random blocks of nearly equal size.

    Args:
        rows: how many rows.
        width: how many sums a block will carry; the more, the fewer blocks.
        seed: of the random assignment.
    """
    count = min(max(_MAX_CELLS // width, MIN_BLOCKS), MAX_BLOCKS)
    if rows <= count:
        return Blocks(np.arange(rows), rows)
    # At random, because rows often come sorted by class or time.
    return Blocks(np.random.default_rng(seed).permutation(rows) % count, count)


@dataclass(frozen=True, slots=True)
class Resampled:
    """A number with the values it takes on resamples [resamples] and with a part of the rows left out."""

    value: float
    draws: Floats
    left_out: Floats

    def interval(self, confidence: float) -> Interval:
        """The two-sided bias-corrected and accelerated interval; NaN ends where it is not defined."""
        return bca_interval(self.value, self.draws, self.left_out, confidence)

    @property
    def error(self) -> float:
        """The standard error; NaN when more than a twentieth of the draws are undefined."""
        finite = self.draws[np.isfinite(self.draws)]
        return float(finite.std()) if len(finite) >= 0.95 * len(self.draws) else float("nan")

    def combine(self, other: "Resampled", function: Callable[..., Any]) -> "Resampled":
        """A number made of this one and another one from the same resamples, such as their difference."""
        return Resampled(
            float(function(self.value, other.value)),
            function(self.draws, other.draws),
            function(self.left_out, other.left_out),
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """Column sums over all rows [1, k], over resamples [resamples, k], with a part left out [groups, k]."""

    total: Floats
    draws: Floats
    left_out: Floats

    def apply(self, function: Callable[[Floats], Floats]) -> Resampled:
        """The number that a function from sums [..., k] to values [...] makes of them."""
        value = float(function(self.total)[0])
        return Resampled(value, function(self.draws), function(self.left_out))


Key = TypeVar("Key")


def resample(parts: Mapping[Key, Floats], *, seed: int, resamples: int = RESAMPLES) -> dict[Key, Sums]:
    """Draw blocks with repetition, the same ones for every entry, so that numbers can be compared.

    Args:
        parts: sums of each block, [blocks, k]; every entry over the same blocks.
        seed: of the draws.
        resamples: how many draws.
    """
    if not parts:
        return {}
    blocks = len(next(iter(parts.values())))
    draws: dict[Key, list[Floats]] = {key: [] for key in parts}
    for weights in _weights(blocks, resamples, seed):
        for key, part in parts.items():
            draws[key].append(weights @ part)
    return {
        key: Sums(part.sum(axis=0, keepdims=True), np.concatenate(draws[key]), _left_out(part))
        for key, part in parts.items()
    }


def _weights(blocks: int, resamples: int, seed: int) -> Iterator[Floats]:
    generator = np.random.default_rng(seed)
    for start in range(0, resamples, _CHUNK):
        size = min(_CHUNK, resamples - start)
        drawn = generator.integers(0, blocks, (size, blocks)) + np.arange(size)[:, None] * blocks
        counts = np.bincount(drawn.reshape(-1), minlength=size * blocks)
        yield counts.reshape(size, blocks).astype(np.float64)


def _left_out(part: Floats) -> Floats:
    groups = min(len(part), _JACKKNIFE_GROUPS)
    # Strided groups, since neighbouring rows may be alike.
    grouped = np.stack([part[start::groups].sum(axis=0) for start in range(groups)])
    left: Floats = part.sum(axis=0) - grouped
    return left
