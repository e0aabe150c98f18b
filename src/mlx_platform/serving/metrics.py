"""Counts and histograms of one server, written on its event loop and read by a scrape.

Plain lists rather than the client library's metrics: those take a lock per bucket, and a request touches ten.
"""

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
REQUEST_SECONDS = SECONDS[5:]
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
STAGES = ("ingress", "queue", "pre", "inference", "post", "egress")


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


class Metrics:
    """What a server measures. Labels come from closed sets: route templates, status classes, stages."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], Histogram] = {}
        self.stages = {stage: Histogram(SECONDS) for stage in STAGES}
        self.queue_wait = Histogram(SECONDS)
        self.batch_rows = Histogram(ROWS)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        key = (route, f"{status // 100}xx")
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
