"""Online against offline: does a metric on live traffic differ from what the version was released with?

The rows are other ones, so nothing is paired: both sides bring an interval of their own, and the interval of
the difference is recovered from the two (Newcombe, Statistics in Medicine 17, 1998, method 10 for rates; Zou
and Donner, Statistics in Medicine 27, 2008, for any two estimates):

    lower = d - sqrt((a - a_lower)^2 + (b_upper - b)^2)
    upper = d + sqrt((a_upper - a)^2 + (b - b_lower)^2)        where d = a - b
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from mlx_platform.core.statistics import Interval
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.compare import Margin
from mlx_platform.evaluation.judge import number, signed
from mlx_platform.evaluation.measure import Measurement

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its two-sided interval at a level."""

    value: float
    lower: float
    upper: float
    confidence: float = 0.95

    @classmethod
    def of(cls, measured: Measurement, confidence: float) -> "Estimate":
        return cls(measured.value, measured.lower, measured.upper, confidence)

    @classmethod
    def read(cls, numbers: Mapping[str, Any], metric: str, confidence: float) -> "Estimate | None":
        """A metric out of the numbers of an evaluation's evidence; None when they do not hold it."""
        held = numbers.get(metric)
        if isinstance(held, Mapping):
            found = [held.get(key) for key in ("value", "lower", "upper")]
        else:  # a summary with many numbers keeps them by dotted names
            found = [numbers.get(key) for key in (metric, f"{metric}.lower", f"{metric}.upper")]
        value, lower, upper = (
            float(one) if isinstance(one, int | float) and not isinstance(one, bool) else math.nan
            for one in found
        )
        return None if math.isnan(value) else cls(value, lower, upper, confidence)

    def at(self, confidence: float) -> "Estimate":
        """The interval at another level, its ends moved as those of a normal estimate are."""
        if confidence == self.confidence:
            return self
        scale = _z(confidence) / _z(self.confidence)
        return Estimate(
            self.value,
            self.value - scale * (self.value - self.lower),
            self.value + scale * (self.upper - self.value),
            confidence,
        )

    def document(self) -> dict[str, Any]:
        values = {"value": self.value, "lower": self.lower, "upper": self.upper}
        shown = {name: None if math.isnan(value) else value for name, value in values.items()}
        return shown | {"confidence": self.confidence}


def _z(confidence: float) -> float:
    return _NORMAL.inv_cdf(0.5 + confidence / 2)


def difference(online: Estimate, offline: Estimate) -> Interval:
    """The two-sided interval of online less offline, at the level of both; NaN where one is missing."""
    gap = online.value - offline.value
    below = math.hypot(online.value - online.lower, offline.upper - offline.value)
    above = math.hypot(online.upper - online.value, offline.value - offline.lower)
    return Interval(gap - below, gap + above)


@dataclass(frozen=True, slots=True)
class Gap:
    """What can be said about the difference of a metric.

    `labels_needed` is how many labels would probably decide what is open; 0 where no number would.
    """

    verdict: Verdict
    online: Estimate
    offline: Estimate
    value: float
    lower: float
    upper: float
    margin: float
    message: str = ""
    labels_needed: int = 0

    @property
    def offline_is_small(self) -> bool:
        """Whether no number of labels would show agreement, because the offline rows are too few."""
        return self.verdict is Verdict.UNDECIDED and not self.labels_needed and abs(self.value) < self.margin

    @property
    def shown(self) -> str:
        return f"{signed(self.value)} [{signed(self.lower)}, {signed(self.upper)}]"

    def document(self) -> dict[str, Any]:
        values = {"value": self.value, "lower": self.lower, "upper": self.upper}
        return {
            "verdict": str(self.verdict),
            **{name: None if math.isnan(value) else value for name, value in values.items()},
            "margin": self.margin,
            "offline": self.offline.document(),
            "message": self.message,
            "labels_needed": self.labels_needed or None,
        }


def judge_gap(online: Estimate, offline: Estimate, margin: Margin, labels: float) -> Gap:
    """Whether a metric differs by more than a margin, either way.

    It fails when the whole interval of the difference lies beyond the margin, passes when all of it lies
    within, and is undecided in between: neither a difference nor agreement is shown.

    Args:
        online: measured on live traffic.
        offline: measured when the version was evaluated; brought to the level of the other.
        margin: the difference that is tolerated, a share of the offline value where it is relative.
        labels: how many the online side has, weighted ones by what they are worth.
    """
    offline = offline.at(online.confidence)
    interval, allowed = difference(online, offline), margin.of(abs(offline.value))
    gap = online.value - offline.value

    def found(verdict: Verdict, message: str = "", needed: int = 0) -> Gap:
        return Gap(verdict, online, offline, gap, interval.lower, interval.upper, allowed, message, needed)

    if math.isnan(interval.lower) or math.isnan(interval.upper):
        return found(Verdict.UNDECIDED, "one side has no interval")
    if interval.lower > allowed or interval.upper < -allowed:
        return found(Verdict.FAIL, f"online {number(online.value)}, offline {number(offline.value)}")
    if -allowed <= interval.lower and interval.upper <= allowed:
        return found(Verdict.PASS)
    needed = _labels_needed(online, offline, allowed - abs(gap), labels)
    message = "the difference is too near to what is tolerated to tell"
    if needed:
        message = f"too few labels to tell; {plural(needed, 'label')} probably would"
    elif abs(gap) < allowed:
        message = "the offline evaluation has too few rows to tell, however many labels there are"
    return found(Verdict.UNDECIDED, message, needed)


def _labels_needed(online: Estimate, offline: Estimate, room: float, labels: float) -> int:
    """How many labels make the interval fit between the value and the margin; it shrinks with their root."""
    own = max(online.value - online.lower, online.upper - online.value)
    other = max(offline.value - offline.lower, offline.upper - offline.value)
    left = room * room - other * other
    return math.ceil(labels * own * own / left) if left > 0 else 0
