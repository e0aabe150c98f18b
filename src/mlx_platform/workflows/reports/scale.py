"""From numbers to places on paper: round ticks, and a scale between two ends."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Tick:
    position: float
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` laid from `start` to `end`, in SVG units."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value; one that lies beyond the ends is put at the nearer of them."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> tuple[Tick, ...]:
        """At most so many round values within the ends."""
        step = _step((self.high - self.low) / max(1, most - 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(
            Tick(self(index * step), tick_text(index * step, step)) for index in range(first, last + 1)
        )


def scale_of(
    values: Iterable[float], start: float, end: float, *, round_ends: bool = False, margin: float = 0.04
) -> Scale:
    """A scale that holds every finite value, with some room around; round ends are multiples of a tick."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    room = (high - low) * margin if high > low else abs(low) * 0.1 or 0.5
    low, high = low - room, high + room
    if round_ends:
        step = _step((high - low) / 8)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(low, high, start, end)


def tick_text(value: float, step: float) -> str:
    """A tick with as many decimals as its step needs."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
        decimals += 1  # 0.25 needs one more than its size says
    return f"{value + 0.0:,.{decimals}f}"


def _step(rough: float) -> float:
    """The round number at or above a rough step."""
    magnitude = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(magnitude * step for step in _STEPS if magnitude * step >= rough * 0.999999)
