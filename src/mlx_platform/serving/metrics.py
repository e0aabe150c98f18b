"""Counts and histograms of one server, written on its event loop and read by a scrape.

Plain lists rather than the client library's metrics: those take a lock per bucket, and a request touches ten.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

SECONDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
REQUEST_SECONDS = SECONDS[5:]
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
STAGES = ("ingress", "pre", "cache", "queue", "inference", "post", "egress")
ABANDONED = 499
"""The status under which a request is counted whose client left before the answer."""

_REASONS = {
    400: "malformed",
    413: "malformed",
    415: "malformed",
    422: "answer",
    429: "queue_full",
    ABANDONED: "abandoned",
    500: "fault",
    503: "unavailable",
    504: "deadline",
}
_CLASSES = tuple(f"{hundreds}xx" for hundreds in range(10))


class Histogram:
    """Observations by upper bound, the last bucket without one, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Bounds with how many observations were not above each, as the exposition format wants them."""
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            buckets.append((str(float(bound)), running))
        return [*buckets, ("+Inf", sum(self.counts))]


@dataclass(frozen=True, slots=True)
class Sample:
    """A number that some part of the server keeps itself, as it stands when a scrape asks for it.

    `name` is without the `_total` of counters. Label values come from closed sets; the labels that say which
    version it is about are added to them. All samples of a name have the same help, kind and label names.
    """

    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    kind: Literal["counter", "gauge"] = "counter"


Source = Callable[[], Iterable[Sample]]


class Metrics:
    """What is measured of one version. Labels come from closed sets: route templates, status classes, stages.

    `predictions` counts requests for one however they ended, `failures` those that failed by reason.
    `sources` are asked for what other parts of the server count, on the thread of the scrape.
    """

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.predictions = 0
        self.failures: Counter[str] = Counter(dict.fromkeys(_REASONS.values(), 0))
        self.requests: dict[tuple[str, str], Histogram] = {}
        self.stages = {stage: Histogram(SECONDS) for stage in STAGES}
        self.queue_wait = Histogram(SECONDS)
        self.batch_rows = Histogram(ROWS)

    def count_prediction(self, status: int) -> None:
        """Count a request for a prediction that is over, whatever became of it."""
        self.predictions += 1
        if status >= 400:
            self.failures[_REASONS.get(status, "malformed")] += 1

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        key = (route, _CLASSES[status // 100])
        histogram = self.requests.get(key)
        if histogram is None:
            histogram = self.requests[key] = Histogram(REQUEST_SECONDS)
        histogram.observe(seconds)

    def requests_by_status(self) -> dict[str, int]:
        """How many requests ended in each class of status."""
        counts: dict[str, int] = {}
        for (_route, status), histogram in sorted(self.requests.items()):
            counts[status] = counts.get(status, 0) + sum(histogram.counts)
        return counts
