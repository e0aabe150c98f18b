"""Intervals, exact tests and corrections that several rooms share; plain numbers in, plain numbers out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval unless its maker says otherwise."""

    lower: float
    upper: float


def wilson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """The score interval of a rate (Wilson, JASA 22, 1927). Zero trials give [0, 1]."""
    if trials <= 0:
        return Interval(0.0, 1.0)
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    rate = successes / trials
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    middle = rate + z * z / (2 * trials)
    return Interval(max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def clopper_pearson_lower(successes: int, trials: int, confidence: float = 0.95) -> float:
    """The exact one-sided lower bound of a rate (Clopper and Pearson, Biometrika 26, 1934)."""
    if successes == 0 or trials == 0:
        return 0.0
    if successes == trials:
        return float((1 - confidence) ** (1 / trials))
    from scipy.special import betaincinv

    return float(betaincinv(successes, trials - successes + 1, 1 - confidence))


def tango_z(won: int, lost: int, rows: int, margin: float) -> float:
    """The score statistic of H0: gain = -margin for paired rates (Tango, Statistics in Medicine 17, 1998).

    Args:
        won: rows that only the challenger has right.
        lost: rows that only the champion has right.
        rows: all rows.
        margin: the tolerated loss as a share, e.g. 0.01 for one percentage point.

    Returns:
        z; at a one-sided level of 5 % the challenger is not inferior when z > 1.645.
    """
    if rows <= 0:
        return math.nan
    difference = -margin
    a = 2.0 * rows
    b = -(won + lost) + (2 * rows - won + lost) * difference
    c = -lost * difference * (1 - difference)
    root = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = rows * (2 * root + difference * (1 - difference))
    excess = won - lost - rows * difference
    if variance <= 0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


def tango_interval(won: int, lost: int, rows: int, confidence: float = 0.95) -> Interval:
    """The two-sided interval of the gain (won - lost) / rows that the score test of `tango_z` inverts to."""
    if rows <= 0:
        return Interval(-1.0, 1.0)
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    gain = (won - lost) / rows
    lower = _bisect(lambda d: tango_z(won, lost, rows, -d) - z, -1.0, gain)
    upper = _bisect(lambda d: tango_z(won, lost, rows, -d) + z, gain, 1.0)
    return Interval(lower, upper)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """The root of a falling function; an end of the bracket when it has none inside."""
    if function(low) <= 0:
        return low
    if function(high) >= 0:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        if function(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


_EXACT_FLIPS = 500  # beyond it whole-number binomials are slow, and the incomplete beta function is as good


def mcnemar_exact(won: int, lost: int) -> float:
    """The two-sided exact p-value that won and lost rows are equally likely (McNemar, 1947)."""
    flips = won + lost
    if flips == 0:
        return 1.0
    if flips > _EXACT_FLIPS:
        from scipy.special import bdtr

        return float(min(1.0, 2 * bdtr(min(won, lost), flips, 0.5)))
    tail = sum(math.comb(flips, k) for k in range(min(won, lost) + 1))
    return float(min(1.0, 2 * tail / 2**flips))


def chi2_quantile(probability: float, degrees: float) -> float:
    """The quantile of the chi-square distribution."""
    from scipy.special import chdtri

    return float(chdtri(degrees, 1 - probability))


def chi2_tail(statistic: float, degrees: float) -> float:
    """P(X >= statistic) for chi-square with `degrees` degrees of freedom."""
    from scipy.special import chdtrc

    return float(chdtrc(degrees, statistic))


def benjamini_hochberg(p_values: Sequence[float], rate: float) -> list[bool]:
    """Which hypotheses the step-up procedure rejects at a false discovery rate (JRSS B 57, 1995)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    passed = 0
    for rank, index in enumerate(order, start=1):
        if p_values[index] <= rate * rank / len(order):
            passed = rank
    rejected = set(order[:passed])
    return [index in rejected for index in range(len(p_values))]


def bootstrap(
    statistic: Callable[[npt.NDArray[np.intp]], float],
    rows: int,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The bias-corrected and accelerated interval of a statistic of rows (Efron, JASA 82, 1987).

    Args:
        statistic: from row indices [rows], with repetition, to a number; NaN where it is not defined.
        rows: how many rows there are.
        resamples: how often to draw.
        confidence: two-sided.
        seed: of the draws, so that a report can be repeated.

    Returns:
        The interval; NaN ends when more than a twentieth of the resamples are undefined.
    """
    generator = np.random.default_rng(seed)
    if rows < 2:
        return Interval(math.nan, math.nan)
    point = statistic(np.arange(rows))
    draws = np.array([statistic(generator.integers(0, rows, rows)) for _ in range(resamples)])
    return bca_interval(point, draws, _leave_groups_out(statistic, rows), confidence)


def bca_interval(
    point: float, draws: npt.NDArray[np.float64], left_out: npt.NDArray[np.float64], confidence: float = 0.95
) -> Interval:
    """The bias-corrected and accelerated interval from resamples that are already drawn (Efron, 1987).

    Args:
        point: the statistic of all rows.
        draws: its values on the resamples; NaN where it is not defined.
        left_out: its values with one row, or one of many equal groups of rows, left out.
        confidence: two-sided.

    Returns:
        The interval; NaN ends when more than a twentieth of the resamples are undefined.
    """
    finite = draws[np.isfinite(draws)]
    if not math.isfinite(point) or len(finite) == 0 or len(finite) < 0.95 * len(draws):
        return Interval(math.nan, math.nan)
    below = (np.sum(finite < point) + 0.5 * np.sum(finite == point)) / len(finite)
    if not 0 < below < 1:
        return Interval(float(finite.min()), float(finite.max()))
    bias = _NORMAL.inv_cdf(float(below))
    acceleration = _acceleration(left_out)
    ends = []
    for tail in ((1 - confidence) / 2, (1 + confidence) / 2):
        z = bias + _NORMAL.inv_cdf(tail)
        ends.append(_NORMAL.cdf(bias + z / (1 - acceleration * z)))
    lower, upper = np.quantile(finite, ends)
    return Interval(float(lower), float(upper))


def bca_confidence(
    point: float, draws: npt.NDArray[np.float64], left_out: npt.NDArray[np.float64], below: float
) -> float:
    """The confidence with which a statistic lies below a number: what the ends of `bca_interval` invert to.

    One less it is the one-sided p-value of lying at or above the number. Beyond all resamples, whose count
    limits what they can tell, it is the normal tail with their standard error.

    Args:
        point: the statistic of all rows.
        draws: its values on the resamples; NaN where it is not defined.
        left_out: its values with one row, or one of many equal groups of rows, left out.
        below: the number.

    Returns:
        From 0 to 1; NaN when more than a twentieth of the resamples are undefined.
    """
    finite = draws[np.isfinite(draws)]
    if not math.isfinite(point) or len(finite) == 0 or len(finite) < 0.95 * len(draws):
        return math.nan
    error = float(finite.std())
    if error == 0:
        return 1.0 if point < below else 0.0
    normal = _NORMAL.cdf((below - point) / error)
    share = float(np.mean(finite < below))
    under = float((np.sum(finite < point) + 0.5 * np.sum(finite == point)) / len(finite))
    if not 0 < under < 1:
        return normal
    if not 0 < share < 1:
        least = 1 / (len(finite) + 1)
        return min(normal, least) if share == 0 else max(normal, 1 - least)
    bias = _NORMAL.inv_cdf(under)
    distance = _NORMAL.inv_cdf(share) - bias
    stretch = 1 + _acceleration(left_out) * distance
    return _NORMAL.cdf(distance / stretch - bias) if stretch > 0 else share


def percentile_interval(draws: npt.NDArray[np.float64], units: int, confidence: float = 0.95) -> Interval:
    """The percentile interval from resamples, as much wider as Student's t is than the normal.

    Few units vary less in their resamples than they should (Hesterberg, The American Statistician 69, 2015).

    Args:
        draws: the statistic on the resamples; NaN where it is not defined.
        units: how many independent pieces were drawn.
        confidence: two-sided.

    Returns:
        The interval; NaN ends when more than a twentieth of the resamples are undefined.
    """
    from scipy.special import stdtrit

    finite = draws[np.isfinite(draws)]
    if units < 2 or len(finite) == 0 or len(finite) < 0.95 * len(draws):
        return Interval(math.nan, math.nan)
    width = float(stdtrit(units - 1, 0.5 + confidence / 2)) * math.sqrt(units / (units - 1))
    lower, upper = np.quantile(finite, [_NORMAL.cdf(-width), _NORMAL.cdf(width)])
    return Interval(float(lower), float(upper))


def percentile_confidence(point: float, draws: npt.NDArray[np.float64], units: int, below: float) -> float:
    """The confidence with which a statistic lies below a number: what `percentile_interval` inverts to.

    Args:
        point: the statistic of all rows.
        draws: its values on the resamples; NaN where it is not defined.
        units: how many independent pieces were drawn.
        below: the number.

    Returns:
        From 0 to 1; NaN when more than a twentieth of the resamples are undefined.
    """
    from scipy.special import stdtr

    finite = draws[np.isfinite(draws)]
    if units < 2 or not math.isfinite(point) or len(finite) == 0 or len(finite) < 0.95 * len(draws):
        return math.nan
    error = float(finite.std())
    if error == 0:
        return 1.0 if point < below else 0.0
    share = float(np.mean(finite < below))
    least = 1 / (len(finite) + 1)
    if share == 0:  # beyond all resamples it is the normal tail
        share = min(_NORMAL.cdf((below - point) / error), least)
    elif share == 1:
        share = max(_NORMAL.cdf((below - point) / error), 1 - least)
    if not 0 < share < 1:
        return share
    return float(stdtr(units - 1, _NORMAL.inv_cdf(share) * math.sqrt((units - 1) / units)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of the step-down procedure (Holm, Scand. J. Statistics 6, 1979); NaN stays NaN.

    Rejecting those at or below a level keeps the chance of any false rejection below it, whatever depends on
    what.
    """
    known = [index for index, value in enumerate(p_values) if not math.isnan(value)]
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(known, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(known) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


_JACKKNIFE_GROUPS = 100


def _leave_groups_out(
    statistic: Callable[[npt.NDArray[np.intp]], float], rows: int
) -> npt.NDArray[np.float64]:
    """A delete-group jackknife: at most 100 groups, so that its cost does not grow with the rows."""
    groups = np.array_split(np.arange(rows), min(rows, _JACKKNIFE_GROUPS))
    every = np.arange(rows)
    return np.array([statistic(np.delete(every, group)) for group in groups])


def _acceleration(left_out: npt.NDArray[np.float64]) -> float:
    values = left_out[np.isfinite(left_out)]
    if len(values) < 2:
        return 0.0
    deviations = values.mean() - values
    square = float(np.sum(deviations**2))
    return float(np.sum(deviations**3)) / (6 * square**1.5) if square > 0 else 0.0


def ks_two_sample(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The largest distance of two empirical distributions, and its asymptotic p-value (Smirnov, 1948).

    Args:
        first: finite numbers [n].
        second: finite numbers [m].

    Returns:
        The distance and the p-value, which is too large rather than too small where values repeat; NaN
        without numbers.
    """
    if not len(first) or not len(second):
        return math.nan, math.nan
    from scipy.special import kolmogorov

    a, b = np.sort(first), np.sort(second)
    every = np.concatenate([a, b])
    shares = (np.searchsorted(side, every, side="right") / len(side) for side in (a, b))
    distance = float(np.abs(np.subtract(*shares)).max())
    size = len(a) * len(b) / (len(a) + len(b))
    return distance, float(kolmogorov(math.sqrt(size) * distance))
