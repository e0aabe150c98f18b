"""What became of the requests to one version, as the statistics extension of the protocol tells it.

https://github.com/triton-inference-server/server `docs/protocol/extension_statistics.md`: how often something
happened and how many nanoseconds that took, never a rate.
"""

from datetime import datetime
from typing import Any

from mlx_platform.serving.exchange import Exchange

# The protocol's words, each for one or two stages of an exchange.
_STAGES = (
    ("queue", "queue", ""),
    ("compute_input", "ingress", "pre"),
    ("compute_infer", "inference", ""),
    ("compute_output", "egress", "post"),
)
_PARTS = tuple(name for name, _, _ in _STAGES[1:])
_CACHED = frozenset(("hit", "semantic", "miss"))
DURATIONS = ("success", "fail", *(name for name, _, _ in _STAGES), "cache_hit", "cache_miss")
"""Names in the order of the protocol's message, whose field numbers count them from 1."""


class RunTimes:
    """How often runs had so many rows, and what they took; written on the event loop, once for each run."""

    def __init__(self) -> None:
        # By rows, of which a run has no more than a request or a batch may: count, and seconds of the parts.
        self._runs: dict[int, list[float]] = {}

    def observe(self, rows: int, seconds: tuple[float, float, float]) -> None:
        """Count a run of so many rows, and the seconds of its parts; see `Batch.seconds`."""
        times = self._runs.get(rows)
        if times is None:
            times = self._runs[rows] = [0, 0.0, 0.0, 0.0]
        times[0] += 1
        times[1] += seconds[0]
        times[2] += seconds[1]
        times[3] += seconds[2]

    def document(self) -> list[dict[str, Any]]:
        """The protocol's list, smallest batch first."""
        return [
            {"batch_size": rows}
            | {
                name: {"count": round(count), "ns": round(seconds * 1e9)}
                for name, seconds in zip(_PARTS, parts, strict=True)
            }
            for rows, (count, *parts) in sorted(self._runs.items())
        ]


class Statistics:
    """Counts of one version; written on the event loop."""

    def __init__(self) -> None:
        self.inferences = 0  # rows that were answered
        self._last: datetime | None = None
        self._counts = dict.fromkeys(DURATIONS, 0)
        self._seconds = dict.fromkeys(DURATIONS, 0.0)

    def observe(self, exchange: Exchange, seconds: float, *, succeeded: bool) -> None:
        """Count an exchange that took so many seconds."""
        self._last = exchange.time
        if not succeeded:
            self._add("fail", seconds)
            return
        self.inferences += exchange.rows
        self._add("success", seconds)
        taken = exchange.seconds
        if exchange.cache in _CACHED:
            self._add("cache_miss" if exchange.cache == "miss" else "cache_hit", taken.get("cache", 0.0))
        for name, first, second in _STAGES:
            if first in taken:  # an answer from a cache was never in a queue, nor computed
                self._add(name, taken[first] + taken[second] if second in taken else taken[first])
            elif second in taken:
                self._add(name, taken[second])

    @property
    def last_inference(self) -> int:
        """When the last request came, in milliseconds since 1970; 0 before any."""
        return int(self._last.timestamp() * 1000) if self._last is not None else 0

    def _add(self, name: str, seconds: float) -> None:
        self._counts[name] += 1
        self._seconds[name] += seconds

    def durations(self) -> dict[str, dict[str, int]]:
        """Count and nanoseconds by name."""
        return {
            name: {"count": self._counts[name], "ns": round(self._seconds[name] * 1e9)} for name in DURATIONS
        }

    def document(
        self, name: str, version: str, executions: int, batches: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The protocol's object about a version, which was run so many times, in such batches."""
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.inferences,
            "execution_count": executions,
            "inference_stats": self.durations(),
            "batch_stats": batches,
        }
