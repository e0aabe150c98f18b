"""A/B tests: how many samples they need, and what a difference of two arms says.

An outcome is a yes or no, or a number. The samples are planned before anybody looks, and the test is asked
once, when they are there: stopping as soon as it looks good is what makes A/B tests lie.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from mlx_platform.core.errors import UsageError

_NORMAL = NormalDist()
_MOST = 10**12

Winner = Literal["candidate", "stable", "none"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One arm: how many outcomes, their mean and unbiased variance; `binary` for a yes or no."""

    count: int
    mean: float
    variance: float
    binary: bool

    @property
    def successes(self) -> int:
        return round(self.mean * self.count)


@dataclass(frozen=True, slots=True)
class Difference:
    """Candidate minus stable, with its interval.

    Attributes:
        value: in the outcome's own unit.
        lower: of the interval at the confidence that was asked for.
        upper: likewise.
        p: two-sided, that there is no difference.
        method: the test.
    """

    value: float
    lower: float
    upper: float
    p: float
    method: str

    def winner(self, alpha: float, *, higher_is_better: bool) -> Winner:
        """Who is better at a two-sided level; none where the difference may be luck."""
        if not self.p < alpha:
            return "none"
        return "candidate" if (self.value > 0) == higher_is_better else "stable"


def required_samples(
    *,
    base: float,
    effect: float,
    deviation: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
    share: float = 0.5,
) -> tuple[int, int]:
    """How many outcomes (stable, candidate) find a difference of `effect` with probability `power`.

    The normal approximation for two independent samples in the proportion of the split (Fleiss, Levin and
    Paik, Statistical Methods for Rates and Proportions, 3rd edition, 4.3, without continuity correction). A
    share is planned for the direction in which it varies more.

    Args:
        base: mean of the stable version; its share of yes where `deviation` is 0.
        effect: the smallest difference that matters, above 0, in the outcome's own unit.
        deviation: standard deviation of a number; 0 for a yes or no.
        alpha: two-sided level.
        power: chance to find the difference where it is.
        share: of requests that the candidate answers, between 0 and 1.

    Raises:
        UsageError: the difference leads to no share between 0 and 1, or takes more than anybody can ask.
    """
    ratio = (1.0 - share) / share  # stable outcomes for each of the candidate's
    at_null, at_effect = _NORMAL.inv_cdf(1.0 - alpha / 2), _NORMAL.inv_cdf(power)
    if deviation:
        candidate = (1.0 + 1.0 / ratio) * ((at_null + at_effect) * deviation / effect) ** 2
    else:
        others = [other for other in (base - effect, base + effect) if 0.0 <= other <= 1.0]
        if not others or not 0.0 < base < 1.0:
            raise UsageError(
                f"From a share of {base:g}, a difference of {effect:g} leads to none between 0 and 1.",
                hint="Both are fractions: 0.12 and 0.01 for 12 % and one percentage point.",
            )
        candidate = max(_share_samples(base, other, at_null, at_effect, ratio) for other in others)
    if not candidate < _MOST:
        raise UsageError("The difference is so small that no number of requests finds it.")
    return max(2, math.ceil(candidate * ratio - 1e-9)), max(2, math.ceil(candidate - 1e-9))


def _share_samples(base: float, other: float, at_null: float, at_effect: float, ratio: float) -> float:
    pooled = (other + ratio * base) / (1.0 + ratio)
    under_null = at_null * math.sqrt((1.0 + 1.0 / ratio) * pooled * (1.0 - pooled))
    under_effect = at_effect * math.sqrt(other * (1.0 - other) + base * (1.0 - base) / ratio)
    return ((under_null + under_effect) / (other - base)) ** 2


def difference(stable: Sample, candidate: Sample, confidence: float = 0.95) -> Difference:
    """Candidate minus stable, with interval and two-sided p-value.

    Shares: the pooled score test, and the hybrid score interval of Newcombe (Statistics in Medicine 17, 1998,
    method 10). Numbers: Welch's test and interval with Student's t (Biometrika 34, 1947).

    Returns:
        NaN everywhere but in `value` where an arm has fewer than two outcomes.
    """
    value = candidate.mean - stable.mean
    if min(stable.count, candidate.count) < 2:
        return Difference(value, math.nan, math.nan, math.nan, "")
    if stable.binary and candidate.binary:
        return _shares(stable, candidate, confidence, value)
    return _means(stable, candidate, confidence, value)


def _shares(stable: Sample, candidate: Sample, confidence: float, value: float) -> Difference:
    every = stable.count + candidate.count
    pooled = (stable.successes + candidate.successes) / every
    error = math.sqrt(pooled * (1.0 - pooled) * (1.0 / stable.count + 1.0 / candidate.count))
    p = 1.0 if error == 0 else 2.0 * _NORMAL.cdf(-abs(value) / error)
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    ours, theirs = _score_interval(candidate, z), _score_interval(stable, z)
    below = math.hypot(candidate.mean - ours[0], theirs[1] - stable.mean)
    above = math.hypot(ours[1] - candidate.mean, stable.mean - theirs[0])
    return Difference(value, value - below, value + above, p, "score test, Newcombe interval")


def _score_interval(sample: Sample, z: float) -> tuple[float, float]:
    n, rate = sample.count, sample.mean
    scale = 1.0 + z * z / n
    middle = rate + z * z / (2.0 * n)
    spread = z * math.sqrt(max(0.0, rate * (1.0 - rate)) / n + z * z / (4.0 * n * n))
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def _means(stable: Sample, candidate: Sample, confidence: float, value: float) -> Difference:
    ours, theirs = candidate.variance / candidate.count, stable.variance / stable.count
    error = math.sqrt(ours + theirs)
    if error == 0:  # constants: there is no luck in them, and nothing to learn about it either
        p = 1.0 if value == 0 else 0.0
        return Difference(value, value, value, p, "constants")
    degrees = (ours + theirs) ** 2 / (ours**2 / (candidate.count - 1) + theirs**2 / (stable.count - 1))
    t = student_quantile(0.5 + confidence / 2, degrees)
    p = 2.0 * student_tail(abs(value) / error, degrees)
    return Difference(value, value - t * error, value + t * error, min(1.0, p), "Welch's t-test")


def student_tail(statistic: float, degrees: float) -> float:
    """P(T > statistic) for Student's t, statistic >= 0; through the incomplete beta function."""
    x = degrees / (degrees + statistic * statistic)
    return _incomplete_beta(degrees / 2, 0.5, x) / 2


def student_quantile(probability: float, degrees: float) -> float:
    """The quantile of Student's t for a probability from 0.5 on."""
    low, high = 0.0, 2.0
    while student_tail(high, degrees) > 1.0 - probability and high < 1e9:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > 1.0 - probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x >= (a + 1) / (a + b + 2):
        return 1.0 - front * _fraction(b, a, 1.0 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1) or tiny)
    found = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1.0 + numerator * d or tiny)
            c = 1.0 + numerator / c or tiny
            found *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return found
