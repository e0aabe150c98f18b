"""What is counted of each arm of a rollout: numbers that add up over servers, and are small to publish.

Latencies fall into buckets that grow by the fourth root of 1.2. So a quantile is known to 2.3 %, and a
version that may be 1.2 times as slow is compared by moving its buckets by exactly four.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

Arm = Literal["stable", "canary", "shadow"]
ARMS: tuple[Arm, ...] = ("stable", "canary", "shadow")

SHIFT = 4  # buckets that are a factor of 1.2
PER_E = SHIFT / math.log(1.2)
LEAST_S = 1e-5
BUCKETS = 410  # up to 1,300 seconds
_NORMAL = NormalDist()
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class LatencyHistogram:
    """How many requests took how long."""

    __slots__ = ("buckets", "total")

    def __init__(self, buckets: Mapping[int, int] | None = None) -> None:
        self.buckets = dict(buckets or {})
        self.total = sum(self.buckets.values())

    def observe(self, seconds: float) -> None:
        """Count one request."""
        index = int(math.log(seconds / LEAST_S) * PER_E) if seconds > LEAST_S else 0
        if index >= BUCKETS:
            index = BUCKETS - 1
        self.buckets[index] = self.buckets.get(index, 0) + 1
        self.total += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatencyHistogram) and other.buckets == self.buckets

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, other: "LatencyHistogram") -> None:
        """Count the requests of another histogram as well."""
        for index, count in other.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + count
        self.total += other.total

    def quantile(self, share: float) -> float:
        """The time in seconds that a share of the requests stays within, to 2.3 %; NaN for none."""
        if not self.total:
            return math.nan
        rank, below = share * self.total, 0
        for index in sorted(self.buckets):
            count = self.buckets[index]
            if below + count >= rank:
                part = min(1.0, max(0.0, (rank - below) / count))
                return LEAST_S * math.exp((index + part) / PER_E)
            below += count
        return LEAST_S * math.exp((max(self.buckets) + 1) / PER_E)

    def encode(self) -> str:
        """Short text: the first bucket, then the counts in base 36, `~n` for n empty ones."""
        if not self.total:
            return ""
        first, last = min(self.buckets), max(self.buckets)
        parts, empty = [str(first)], 0
        for index in range(first, last + 1):
            count = self.buckets.get(index, 0)
            if not count:
                empty += 1
                continue
            if empty:
                parts.append(f"~{empty}")
                empty = 0
            parts.append(_base36(count))
        return ".".join(parts)

    @classmethod
    def decode(cls, text: str) -> "LatencyHistogram":
        """Read back what `encode` wrote.

        Raises:
            ValueError: the text is none of it.
        """
        buckets: dict[int, int] = {}
        first, *parts = text.split(".") if text else ["0"]
        index = int(first)
        for part in parts:
            if part.startswith("~"):
                index += int(part[1:])
                continue
            buckets[index] = int(part, 36)
            index += 1
        if any(not 0 <= place < BUCKETS or not 0 < count < 1 << 53 for place, count in buckets.items()):
            raise ValueError("no histogram")
        return cls(buckets)


def slower_p(candidate: LatencyHistogram, stable: LatencyHistogram, shift: int = SHIFT) -> float:
    """The one-sided p-value of Mann and Whitney (1947) that the candidate's times are not above the stable's.

    The candidate's times are first divided by the factor that `shift` buckets are; ties, of which buckets
    make many, narrow the variance as usual. 1 where an arm is empty.
    """
    n, m = candidate.total, stable.total
    if not n or not m:
        return 1.0
    moved = {index - shift: count for index, count in candidate.buckets.items()}
    above, below, ties = 0.0, 0, 0.0
    for index in sorted({*moved, *stable.buckets}):
        ours, theirs = moved.get(index, 0), stable.buckets.get(index, 0)
        above += ours * (below + theirs / 2)
        below += theirs
        both = ours + theirs
        ties += float(both) ** 3 - both
    every = n + m
    variance = n * m / 12 * (every + 1 - ties / (every * (every - 1)))
    if variance <= 0:
        return 1.0
    return 1.0 - _NORMAL.cdf((above - n * m / 2 - 0.5) / math.sqrt(variance))


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared deviations of an outcome; `binary` while it was only ever 0 or 1."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    binary: bool = True

    def observe(self, value: float) -> None:
        """Count one outcome; true and false are 1 and 0."""
        self.count += 1
        difference = value - self.mean
        self.mean += difference / self.count
        self.squares += difference * (value - self.mean)
        self.binary = self.binary and value in {0, 1}

    def add(self, other: "Moments") -> None:
        """Count the outcomes of another server as well (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        if not count:
            return
        difference = other.mean - self.mean
        self.squares += other.squares + difference * difference * self.count * other.count / count
        self.mean += difference * other.count / count
        self.count = count
        self.binary = self.binary and other.binary

    @property
    def variance(self) -> float:
        """The unbiased variance; 0 for fewer than two."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0

    @property
    def successes(self) -> int:
        """How many were 1, for a binary outcome."""
        return round(self.mean * self.count)


@dataclass(slots=True)
class ArmCounts:
    """One arm of one window: everything after its warm-up.

    Attributes:
        requests: that were answered, well or not.
        errors: of them.
        latency: of all of them.
        compared: copies whose answer was compared with the stable version's.
        disagreed: of them.
        by_output: of them, by the output that differed.
        outcomes: what `mlx feedback` told about the requests, by metric.
    """

    requests: int = 0
    errors: int = 0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    compared: int = 0
    disagreed: int = 0
    by_output: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, Moments] = field(default_factory=dict)

    def observe(self, seconds: float, *, failed: bool) -> None:
        """Count one request."""
        self.requests += 1
        self.errors += failed
        self.latency.observe(seconds)

    def compare(self, differing: Iterable[str]) -> None:
        """Count one comparison of a copy, with the outputs that differed."""
        self.compared += 1
        any_differs = False
        for output in differing:
            any_differs = True
            self.by_output[output] = self.by_output.get(output, 0) + 1
        self.disagreed += any_differs

    def outcome(self, metric: str, value: float) -> None:
        """Count what became of a request."""
        self.outcomes.setdefault(metric, Moments()).observe(value)

    def add(self, other: "ArmCounts") -> None:
        """Count what another server, or another boot of it, has counted as well."""
        self.requests += other.requests
        self.errors += other.errors
        self.latency.add(other.latency)
        self.compared += other.compared
        self.disagreed += other.disagreed
        for output, count in other.by_output.items():
            self.by_output[output] = self.by_output.get(output, 0) + count
        for metric, moments in other.outcomes.items():
            self.outcomes.setdefault(metric, Moments()).add(moments)

    def document(self) -> dict[str, Any]:
        """JSON-ready and short; what is zero is left out."""
        found: dict[str, Any] = {}
        numbers = {"n": self.requests, "e": self.errors, "c": self.compared, "d": self.disagreed}
        found.update({key: value for key, value in numbers.items() if value})
        if self.latency.total:
            found["l"] = self.latency.encode()
        if self.by_output:
            found["o"] = dict(self.by_output)
        if self.outcomes:
            found["f"] = {
                metric: [m.count, float(f"{m.mean:.12g}"), float(f"{m.squares:.12g}"), int(m.binary)]
                for metric, m in self.outcomes.items()
            }
        return found

    @classmethod
    def from_document(cls, document: Any) -> "ArmCounts":
        """Read back what `document` wrote, which anybody can have changed.

        Raises:
            ValueError: it is none of it.
        """
        if not isinstance(document, Mapping):
            raise ValueError("the counts of an arm are a table")  # noqa: TRY004 - one error for all
        try:
            found = cls(
                requests=_count(document.get("n", 0)),
                errors=_count(document.get("e", 0)),
                latency=LatencyHistogram.decode(document.get("l", "")),
                compared=_count(document.get("c", 0)),
                disagreed=_count(document.get("d", 0)),
                by_output={str(name): _count(count) for name, count in document.get("o", {}).items()},
                outcomes={str(name): _moments(entry) for name, entry in document.get("f", {}).items()},
            )
        except (AttributeError, TypeError, OverflowError) as error:
            raise ValueError("the counts of an arm cannot be read") from error
        if found.errors > found.requests or found.disagreed > found.compared:
            raise ValueError("the counts of an arm contradict each other")
        return found


@dataclass(slots=True)
class Window:
    """What all servers have counted since a window of a rollout began."""

    number: int
    arms: dict[Arm, ArmCounts] = field(default_factory=dict)

    def arm(self, name: Arm) -> ArmCounts:
        """The counts of an arm; made where there are none."""
        return self.arms.setdefault(name, ArmCounts())

    def add(self, other: "Window") -> None:
        """Add what another server counted in the same window.

        Raises:
            ValueError: it is another window.
        """
        if other.number != self.number:
            raise ValueError("counts of two windows do not add up")
        for name, counts in other.arms.items():
            self.arm(name).add(counts)

    def document(self) -> dict[str, Any]:
        """The arms, JSON-ready and short."""
        return {name: counts.document() for name, counts in self.arms.items() if counts != ArmCounts()}

    @classmethod
    def from_document(cls, number: int, document: Any) -> "Window":
        """Read back the arms that `document` wrote.

        Raises:
            ValueError: they are none of it.
        """
        if not isinstance(document, Mapping):
            raise ValueError("arms are a table")  # noqa: TRY004 - one error for all
        known = {name: document[name] for name in ARMS if name in document}
        return cls(number, {name: ArmCounts.from_document(counts) for name, counts in known.items()})


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
    return digits


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise ValueError("no count")
    return value


def _moments(entry: Any) -> Moments:
    count, mean, squares, binary = entry
    found = Moments(_count(count), float(mean), float(squares), bool(binary))
    if not math.isfinite(found.mean) or not 0 <= found.squares < math.inf:
        raise ValueError("no moments")
    return found
