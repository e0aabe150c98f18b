"""Distances between two rows of counts over the same bins, and the tests that belong to them.

Shares are smoothed, p = (a + s) / (n + s K) with s = 1/2 (Krichevsky and Trofimov, IEEE Trans. Inf. Theory
27, 1981): both sides sum to 1, and what an empty bin costs shrinks as counts grow. Logarithms are natural.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.statistics import chi2_quantile, chi2_tail

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SMOOTHING = 0.5


def shares(baseline: Counts, window: Counts, smoothing: float = SMOOTHING) -> tuple[Floats, Floats]:
    """Smoothed shares of the bins that hold anything on either side.

    Args:
        baseline: counts [K], not negative.
        window: counts [K].
        smoothing: added to each bin; 0 gives the raw shares.

    Returns:
        Two arrays [k], k <= K, that each sum to 1.

    Raises:
        UndecidedError: a side is empty, or without smoothing a bin is empty on one side only, where
            the distances have no finite value.
    """
    used = (baseline > 0) | (window > 0)
    a, b = baseline[used], window[used]
    if a.sum() == 0 or b.sum() == 0:
        raise UndecidedError("One side of a comparison holds no rows.")
    if smoothing == 0 and ((a == 0) | (b == 0)).any():
        raise UndecidedError(
            "A bin is empty on one side only, so the score without smoothing is not finite.",
            hint="Keep the smoothing of 0.5.",
        )
    bins = len(a)
    return (a + smoothing) / (a.sum() + smoothing * bins), (b + smoothing) / (b.sum() + smoothing * bins)


def contributions(p: Floats, q: Floats) -> Floats:
    """What each bin adds to PSI: (p - q) ln(p / q), never negative."""
    return (p - q) * np.log(p / q)


def psi(p: Floats, q: Floats) -> float:
    """The population stability index, sum (p - q) ln(p / q) (Lewis, Introduction to Credit Scoring, 1994)."""
    return float(contributions(p, q).sum())


def kl(p: Floats, q: Floats) -> float:
    """The divergence of Kullback and Leibler from p to q, sum p ln(p / q), in nats."""
    return float(np.sum(p * np.log(p / q)))


def js_distance(p: Floats, q: Floats) -> float:
    """The square root of the Jensen-Shannon divergence in nats (Endres and Schindelin, 2003)."""
    middle = (p + q) / 2
    divergence = (xlogy_sum(p, p / middle) + xlogy_sum(q, q / middle)) / 2
    return math.sqrt(max(0.0, divergence))


def xlogy_sum(weights: Floats, ratios: Floats) -> float:
    """Sum of w ln(r), where a weight of zero adds nothing."""
    held = weights > 0
    return float(np.sum(weights[held] * np.log(ratios[held])))


def noise(n: int, m: int) -> float:
    """C = 1/n + 1/m: without drift, PSI follows c times chi-square with K - 1 degrees (Yurdakul, 2018)."""
    return 1 / n + 1 / m


def psi_limit(n: int, m: int, bins: int, confidence: float) -> float:
    """What PSI stays below with the given probability when nothing has moved."""
    return noise(n, m) * chi2_quantile(confidence, max(1, bins - 1))


def psi_tail(score: float, n: int, m: int, bins: int) -> float:
    """The probability of a PSI at least this large when nothing has moved."""
    return chi2_tail(score / noise(n, m), max(1, bins - 1))


def ks_distance(baseline: Counts, window: Counts) -> float:
    """The largest gap between the two distribution functions over ordered bins; exact at their edges."""
    n, m = int(baseline.sum()), int(window.sum())
    if n == 0 or m == 0:
        raise UndecidedError("One side of a comparison holds no rows.")
    return float(np.abs(np.cumsum(baseline) / n - np.cumsum(window) / m).max())


def ks_tail(distance: float, n: float, m: float) -> float:
    """The probability of a gap at least this large when nothing has moved (Smirnov, 1948).

    The limit for many rows. A gap that is read off bins is no larger than that of the values, so that the
    probability is too large rather than too small.
    """
    from scipy.special import kolmogorov

    return float(kolmogorov(math.sqrt(n * m / (n + m)) * distance))


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's test of two rows of counts: statistic, degrees of freedom, probability without drift."""

    statistic: float
    degrees: int
    p_value: float


def chi_square(baseline: Counts, window: Counts) -> ChiSquare:
    """Pearson's two-sample test over the bins that hold anything, without Yates' correction.

    Both sides are samples. Taking the baseline's counts for exact, as a one-sample test does, alarms without
    drift: for 500 rows each and 10 bins in half of all cases.

    Args:
        baseline: counts [K].
        window: counts [K].

    Raises:
        UndecidedError: a side is empty.
    """
    used = (baseline > 0) | (window > 0)
    a, b = baseline[used].astype(np.float64), window[used].astype(np.float64)
    n, m = float(a.sum()), float(b.sum())
    if n == 0 or m == 0:
        raise UndecidedError("One side of a comparison holds no rows.")
    pooled = (a + b) / (n + m)
    statistic = float(np.sum((a - n * pooled) ** 2 / (n * pooled) + (b - m * pooled) ** 2 / (m * pooled)))
    degrees = len(a) - 1
    return ChiSquare(statistic, degrees, chi2_tail(statistic, degrees) if degrees else 1.0)


@dataclass(frozen=True, slots=True)
class Staircase:
    """A distribution function as knots: shares [k] at values [k], straight lines or steps between."""

    values: Floats
    cumulated: Floats
    steps: bool

    def at(self, where: Floats) -> Floats:
        if self.steps:
            padded = np.concatenate([[0.0], self.cumulated])
            return padded[np.searchsorted(self.values, where, side="right")]
        return np.interp(where, self.values, self.cumulated, left=0.0, right=1.0)


def wasserstein(one: Staircase, other: Staircase) -> float:
    """The area between two distribution functions (first Wasserstein distance), in the feature's unit."""
    knots = np.union1d(one.values, other.values)
    gap = one.at(knots) - other.at(knots)
    width = np.diff(knots)
    if one.steps:
        return float(np.sum(np.abs(gap[:-1]) * width))
    left, right = np.abs(gap[:-1]), np.abs(gap[1:])
    crossing = gap[:-1] * gap[1:] < 0
    total = np.where(left + right > 0, left + right, 1.0)
    # Where the lines cross, the area is two triangles.
    area = np.where(crossing, (left**2 + right**2) / (2 * total), (left + right) / 2)
    return float(np.sum(area * width))
