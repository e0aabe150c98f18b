"""A server's metrics in the Prometheus format, from a registry of its own."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from mlx_platform.serving.engine import Engine
from mlx_platform.serving.metrics import Histogram

_Labels = TypeVar("_Labels", bound=tuple[str, ...])

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import HistogramMetricFamily, Metric


class Collector:
    """Turns an engine's counts into metric families whenever somebody asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._model = {"model": engine.model.name, "version": engine.model.version}

    def collect(self) -> Iterator["Metric"]:
        yield from self._about_the_model()
        yield from self._about_requests()
        yield from self._about_the_batcher()
        yield from self._about_the_log()

    def _about_the_model(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        model = self._engine.model
        facts = {
            "digest": model.digest,
            "device": model.session.device,
            "provider": model.session.providers[0],
        }
        yield InfoMetricFamily("mlx_model", "The version that is served.", value=self._model | facts)
        yield GaugeMetricFamily(
            "mlx_ready", "1 while new requests should be sent here.", value=int(self._engine.ready)
        )

    def _about_requests(self) -> Iterator["Metric"]:
        metrics = self._engine.metrics
        yield self._histograms(
            "mlx_request_duration_seconds",
            "Seconds from a request's arrival to its answer.",
            ("route", "status"),
            metrics.requests,
        )
        stages = {(stage,): histogram for stage, histogram in metrics.stages.items()}
        yield self._histograms(
            "mlx_stage_seconds", "Seconds that predictions spent in a stage.", ("stage",), stages
        )
        yield self._histograms(
            "mlx_queue_wait_seconds", "Seconds that predictions waited.", (), {(): metrics.queue_wait}
        )
        yield self._histograms("mlx_batch_rows", "Rows of a run.", (), {(): metrics.batch_rows})

    def _about_the_batcher(self) -> Iterator["Metric"]:
        batcher = self._engine.batcher
        if batcher is None:
            return
        yield self._gauge("mlx_queue_rows", "Rows that wait.", batcher.queued_rows)
        yield self._gauge(
            "mlx_in_flight", "Requests, and parts of long ones, wait or run.", batcher.in_flight
        )
        yield self._counter("mlx_expired", "Requests whose deadline passed.", batcher.expired)
        yield self._counter("mlx_abandoned", "Requests whose client left early.", batcher.abandoned)
        yield self._counter("mlx_split_batches", "Runs that failed and were split.", batcher.split_batches)
        yield self._counter("mlx_batcher_restarts", "Faults that the batcher survived.", batcher.restarts)

    def _about_the_log(self) -> Iterator["Metric"]:
        """The counters that always add up: served = logged + dropped + sampled out + pending."""
        from prometheus_client.core import CounterMetricFamily

        writer = self._engine.writer
        if writer is None:
            return
        counters = writer.counters
        yield self._counter("mlx_traffic_served", "Records handed to the traffic log.", counters.served)
        yield self._counter("mlx_traffic_logged", "Records written.", counters.logged)
        yield self._counter("mlx_traffic_sampled_out", "Records not in the sample.", counters.sampled_out)
        dropped = CounterMetricFamily(
            "mlx_traffic_dropped", "Records lost, by reason.", labels=(*self._model, "reason")
        )
        for reason, count in counters.dropped.items():
            dropped.add_metric((*self._model.values(), reason), count)
        yield dropped
        yield self._counter(
            "mlx_traffic_deleted_segments", "Segments deleted to stay in bounds.", counters.deleted_segments
        )
        yield self._counter("mlx_traffic_sync_errors", "Failed flushes to disk.", counters.sync_errors)
        yield self._gauge("mlx_traffic_pending", "Records not written yet.", counters.pending)

    def _gauge(self, name: str, help_text: str, value: float) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(name, help_text, labels=tuple(self._model))
        family.add_metric(tuple(self._model.values()), value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(name, help_text, labels=tuple(self._model))
        family.add_metric(tuple(self._model.values()), value)
        return family

    def _histograms(
        self, name: str, help_text: str, labels: tuple[str, ...], found: Mapping[_Labels, Histogram]
    ) -> "HistogramMetricFamily":
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(name, help_text, labels=(*self._model, *labels))
        for values, histogram in found.items():
            family.add_metric((*self._model.values(), *values), histogram.cumulative(), histogram.total)
        return family


def make_registry(engine: Engine) -> "CollectorRegistry":
    """A registry that no other server in this process shares."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(engine))
    ProcessCollector(registry=registry)
    return registry


def expose(registry: "CollectorRegistry") -> bytes:
    """The text that a Prometheus server scrapes."""
    from prometheus_client import generate_latest

    return generate_latest(registry)
