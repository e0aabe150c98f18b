"""What became of the requests to one version, as the statistics extension of the protocol tells it.

https://github.com/triton-inference-server/server `docs/protocol/extension_statistics.md`: how often something
happened and how many nanoseconds that took, never a rate.
"""

from typing import Any

from mlx_platform.serving.exchange import Exchange

# The stages of an exchange in the protocol's words.
_STAGES = {
    "queue": ("queue",),
    "compute_input": ("ingress", "pre"),
    "compute_infer": ("inference",),
    "compute_output": ("post", "egress"),
}
DURATIONS = ("success", "fail", *_STAGES, "cache_hit", "cache_miss")
"""Names in the order of the protocol's message, whose field numbers count them from 1."""


class Statistics:
    """Counts of one version; written on the event loop."""

    def __init__(self) -> None:
        self.inferences = 0  # rows that were answered
        self.last_inference = 0  # milliseconds since 1970
        self._counts = dict.fromkeys(DURATIONS, 0)
        self._seconds = dict.fromkeys(DURATIONS, 0.0)

    def observe(self, exchange: Exchange, seconds: float, *, succeeded: bool) -> None:
        """Count an exchange that took so many seconds."""
        self.last_inference = int(exchange.time.timestamp() * 1000)
        if not succeeded:
            self._add("fail", seconds)
            return
        self.inferences += exchange.rows
        self._add("success", seconds)
        taken = exchange.seconds
        if exchange.cache in {"hit", "semantic", "miss"}:
            self._add("cache_miss" if exchange.cache == "miss" else "cache_hit", taken.get("cache", 0.0))
        for name, stages in _STAGES.items():
            spent = [taken[stage] for stage in stages if stage in taken]
            if spent:  # an answer from a cache was never in a queue, nor computed
                self._add(name, sum(spent))

    def _add(self, name: str, seconds: float) -> None:
        self._counts[name] += 1
        self._seconds[name] += seconds

    def durations(self) -> dict[str, dict[str, int]]:
        """Count and nanoseconds by name."""
        return {
            name: {"count": self._counts[name], "ns": round(self._seconds[name] * 1e9)} for name in DURATIONS
        }

    def document(self, name: str, version: str, executions: int) -> dict[str, Any]:
        """The protocol's object about a version, which was run so many times."""
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.inferences,
            "execution_count": executions,
            "inference_stats": self.durations(),
            "batch_stats": [],
        }
