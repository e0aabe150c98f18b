"""How many times as large a number is as the baseline's, with its interval."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """Candidate over baseline of one number, such as a latency, with a two-sided interval.

    Attributes:
        value: candidate / baseline.
        lower: NaN where no interval can be given.
        upper: likewise.
        candidate: in the metric's own unit.
        baseline: likewise.
        samples: how many pairs of measurements it is from.
        reason: why there is none; empty for a ratio that was measured.
    """

    value: float
    lower: float
    upper: float
    candidate: float
    baseline: float
    samples: int = 0
    reason: str = ""
