"""What happened between two looks at a server's metrics: rates, percentiles, shares."""

import math
from collections.abc import Mapping
from typing import Any

from mlx_platform.core.values import frozen
from mlx_platform.workflows.watching.scrape import Scrape

_MOVED = 5  # features that are named
_ORDER = ("ingress", "pre", "cache", "queue", "inference", "post", "egress")


@frozen
class Interval:
    """Two looks at the same server. A counter that fell was started anew: what it has now is new."""

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        return max(self.after.time - self.before.time, 1e-9)

    def grown(self, name: str, **labels: str) -> float:
        """By how much counters grew, each process by itself."""
        earlier = {tuple(sorted(found.items())): value for found, value in self.before.rows(name, **labels)}
        total = 0.0
        for found, value in self.after.rows(name, **labels):
            was = earlier.get(tuple(sorted(found.items())), 0.0)
            total += value - was if value >= was else value
        return total

    def rate(self, name: str, **labels: str) -> float:
        """The same for a second."""
        return self.grown(name, **labels) / self.seconds

    def quantile(self, share: float, name: str, **labels: str) -> float:
        """A percentile of a histogram, interpolated within its bucket; NaN where nothing was observed.

        As `histogram_quantile` of Prometheus has it:
        https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile
        """
        bounds = sorted({_bound(found["le"]) for found, _ in self.after.rows(f"{name}_bucket", **labels)})
        counts = [self._bucket(name, bound, labels) for bound in bounds]
        if not counts or not counts[-1]:
            return math.nan
        rank = share * counts[-1]
        index = next(index for index, count in enumerate(counts) if count >= rank)
        if math.isinf(bounds[index]):
            return bounds[index - 1] if index else math.nan
        lower, below = (bounds[index - 1], counts[index - 1]) if index else (0.0, 0.0)
        inside = counts[index] - below
        return lower + (bounds[index] - lower) * ((rank - below) / inside if inside else 1.0)

    def mean(self, name: str, **labels: str) -> float:
        """The mean of a histogram; NaN where nothing was observed."""
        count = self.grown(f"{name}_count", **labels)
        return self.grown(f"{name}_sum", **labels) / count if count else math.nan

    def _bucket(self, name: str, bound: float, labels: Mapping[str, str]) -> float:
        texts = {
            found["le"] for found, _ in self.after.rows(f"{name}_bucket") if _bound(found["le"]) == bound
        }
        return sum(self.grown(f"{name}_bucket", **labels, le=text) for text in texts)


def figures(interval: Interval) -> dict[str, Any]:
    """Everything that is shown, as numbers: seconds, bytes, shares and rates per second."""
    after = interval.after
    return {
        "seconds": interval.seconds,
        "ready": bool(after.samples.get("mlx_ready")) and all(value for _, value in after.rows("mlx_ready")),
        "processes": len({found.get("worker", "") for found, _ in after.rows("mlx_ready")}),
        "requests": _requests(interval),
        "predictions_per_second": interval.rate("mlx_predictions_total"),
        "failures": _grown_by("reason", interval, "mlx_failures_total"),
        "stages": _stages(interval),
        "batches": _batches(interval),
        "cache": _grown_by("outcome", interval, "mlx_cache_requests_total"),
        "traffic": _traffic(interval),
        "drift": _drift(after),
        "process": {
            "cores": interval.rate("process_cpu_seconds_total"),
            "resident_bytes": after.total("process_resident_memory_bytes"),
            "open_files": after.total("process_open_fds"),
            "loop_lag_seconds": max(
                (value for _, value in after.rows("mlx_event_loop_lag_seconds")), default=0.0
            ),
        },
        "gpus": _gpus(after),
        "degraded": after.total("mlx_degraded"),
        "batching_fault": after.total("mlx_batching_fault"),
        "debug_mode": after.total("mlx_debug_mode"),
    }


def _requests(interval: Interval) -> list[dict[str, Any]]:
    name = "mlx_request_duration_seconds"
    found = []
    for endpoint in sorted(interval.after.by("endpoint", f"{name}_count")):
        classes = _grown_by("status", interval, f"{name}_count", endpoint=endpoint)
        total = sum(classes.values())
        if not total:
            continue
        found.append(
            {
                "endpoint": endpoint,
                "per_second": total / interval.seconds,
                "share_4xx": classes.get("4xx", 0.0) / total,
                "share_5xx": classes.get("5xx", 0.0) / total,
                **{
                    f"p{int(share * 100)}_seconds": interval.quantile(share, name, endpoint=endpoint)
                    for share in (0.5, 0.9, 0.99)
                },
            }
        )
    return found


def _stages(interval: Interval) -> list[dict[str, Any]]:
    name = "mlx_stage_seconds"
    known = interval.after.by("stage", f"{name}_count")
    stages = [*(stage for stage in _ORDER if stage in known), *sorted(known.keys() - set(_ORDER))]
    spent = {stage: interval.grown(f"{name}_sum", stage=stage) for stage in stages}
    whole = sum(spent.values())
    return [
        {
            "stage": stage,
            "mean_seconds": interval.mean(name, stage=stage),
            "p99_seconds": interval.quantile(0.99, name, stage=stage),
            "share": spent[stage] / whole if whole else 0.0,
        }
        for stage in stages
        if interval.grown(f"{name}_count", stage=stage)
    ]


def _batches(interval: Interval) -> dict[str, float]:
    return {
        "runs_per_second": interval.rate("mlx_batch_rows_count"),
        "rows_per_second": interval.rate("mlx_batch_rows_sum"),
        "mean_rows": interval.mean("mlx_batch_rows"),
        "p50_wait_seconds": interval.quantile(0.5, "mlx_queue_wait_seconds"),
        "p99_wait_seconds": interval.quantile(0.99, "mlx_queue_wait_seconds"),
        "queue_rows": interval.after.total("mlx_queue_rows"),
        "in_flight": interval.after.total("mlx_in_flight"),
    }


def _traffic(interval: Interval) -> dict[str, float]:
    if "mlx_traffic_served_total" not in interval.after.samples:
        return {}
    return {
        "logged_per_second": interval.rate("mlx_traffic_logged_total"),
        "pending": interval.after.total("mlx_traffic_pending"),
        "dropped": interval.after.total("mlx_traffic_dropped_total"),
        "dropped_now": interval.grown("mlx_traffic_dropped_total"),
    }


def _gpus(after: Scrape) -> list[dict[str, Any]]:
    """By GPU; several processes see the same ones, and say the same of them."""
    gpus: dict[str, dict[str, Any]] = {}
    for key in ("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "temperature_celsius"):
        for found, value in after.rows(f"mlx_gpu_{key}"):
            gpu = gpus.setdefault(found["gpu"], {"gpu": found["gpu"], "name": found.get("name", "")})
            gpu[key] = value
    return [gpus[number] for number in sorted(gpus)]


def _grown_by(label: str, interval: Interval, name: str, **labels: str) -> dict[str, float]:
    values = interval.after.by(label, name, **labels)
    return {value: interval.grown(name, **labels, **{label: value}) for value in values}


def _bound(text: str) -> float:
    return math.inf if text == "+Inf" else float(text)


def _drift(after: Scrape) -> list[dict[str, Any]]:
    """The features of each version that are farthest from the baseline, beyond chance."""
    found: list[dict[str, Any]] = [
        {
            "version": labels.get("version", ""),
            "feature": labels.get("feature", ""),
            "worker": labels.get("worker", ""),
            "psi_adjusted": value,
        }
        for labels, value in after.rows("mlx_drift_psi_adjusted")
    ]
    return sorted(found, key=lambda each: -each["psi_adjusted"])[:_MOVED]
