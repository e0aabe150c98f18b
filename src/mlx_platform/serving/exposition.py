"""A server's metrics in the Prometheus format, from a registry of its own."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from mlx_platform.serving.exchange import PRODUCTION
from mlx_platform.serving.gpus import Gpus
from mlx_platform.serving.metrics import Histogram, Sample
from mlx_platform.serving.pulse import Pulse
from mlx_platform.serving.router import Router
from mlx_platform.serving.served import Served
from mlx_platform.traffic.writer import DROP_REASONS

_Labels = TypeVar("_Labels", bound=tuple[str, ...])

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import HistogramMetricFamily, Metric


class Collector:
    """Turns a server's counts into metric families whenever somebody asks, on whatever thread that is."""

    def __init__(self, router: Router, pulse: Pulse, gpus: Gpus) -> None:
        self._router = router
        self._gpus = gpus
        self._pulse = pulse

    def collect(self) -> Iterator["Metric"]:
        families: dict[str, Metric] = {}
        for served in self._router.loaded:
            for family in _OneVersion(served).families():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from families.values()
        yield from self._about_the_server()
        yield from self._about_gpus()

    def _about_the_server(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "mlx_ready", "1 while new requests should be sent here.", value=int(self._router.ready)
        )
        yield GaugeMetricFamily(
            "mlx_event_loop_lag_seconds",
            "Seconds by which the loop that answers is late.",
            value=self._pulse.lag,
        )
        for source in tuple(self._router.sources):
            yield from _families(source(), ())

    def _about_gpus(self) -> Iterator["Metric"]:
        """All GPUs of the machine, whoever uses them: so these carry no labels of a version."""
        yield from _families(self._gpus.samples(), ())


class _OneVersion:
    """The families of one of the versions."""

    def __init__(self, served: Served) -> None:
        engine = self._engine = served.engine
        route = "stable" if served.arm == PRODUCTION else served.arm
        self._model = {"model": engine.model.name, "version": engine.model.version, "route": route}

    def families(self) -> Iterator["Metric"]:
        yield from self._about_the_model()
        yield from self._about_requests()
        yield from self._about_the_batcher()
        yield from self._about_the_log()
        for source in tuple(self._engine.metrics.sources):
            yield from self._families(source())

    def _about_the_model(self) -> Iterator["Metric"]:
        from prometheus_client.core import InfoMetricFamily

        model = self._engine.model
        facts = {
            "digest": model.digest,
            "device": model.session.device,
            "provider": model.session.providers[0],
        }
        yield InfoMetricFamily("mlx_model", "A version that is served.", value=self._model | facts)
        if self._engine.ready_since:
            yield self._gauge(
                "mlx_ready_time_seconds", "Unix time at which it was first ready.", self._engine.ready_since
            )

    def _about_requests(self) -> Iterator["Metric"]:
        metrics = self._engine.metrics
        yield self._histograms(
            "mlx_request_duration_seconds",
            "Seconds from a request's arrival to its answer.",
            ("endpoint", "status"),
            dict(metrics.requests),
        )
        yield self._counter("mlx_predictions", "Requests for a prediction.", metrics.predictions)
        failures = (
            Sample("mlx_failures", "Requests for a prediction that got none.", count, (("reason", reason),))
            for reason, count in dict(metrics.failures).items()
        )
        yield from self._families(failures)
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
        writer = self._engine.writer
        if writer is None:
            return
        counters = writer.counters
        yield self._counter("mlx_traffic_served", "Records handed to the traffic log.", counters.served)
        yield self._counter("mlx_traffic_logged", "Records written.", counters.logged)
        yield self._counter("mlx_traffic_sampled_out", "Records not in the sample.", counters.sampled_out)
        dropped = (
            Sample("mlx_traffic_dropped", "Records lost, by reason.", count, (("reason", reason),))
            for reason, count in (dict.fromkeys(DROP_REASONS, 0) | dict(counters.dropped)).items()
        )
        yield from self._families(dropped)
        yield self._counter(
            "mlx_traffic_deleted_segments", "Segments deleted to stay in bounds.", counters.deleted_segments
        )
        yield self._counter("mlx_traffic_sync_errors", "Failed flushes to disk.", counters.sync_errors)
        yield self._gauge(
            "mlx_traffic_unsynced", "Records written that are not durable yet.", counters.unsynced
        )
        yield self._gauge("mlx_traffic_pending", "Records not written yet.", counters.pending)

    def _gauge(self, name: str, help_text: str, value: float) -> "Metric":
        return next(self._families((Sample(name, help_text, value, kind="gauge"),)))

    def _counter(self, name: str, help_text: str, value: float) -> "Metric":
        return next(self._families((Sample(name, help_text, value),)))

    def _families(self, samples: Iterable[Sample]) -> Iterator["Metric"]:
        return _families(samples, tuple(self._model.items()))

    def _histograms(
        self, name: str, help_text: str, labels: tuple[str, ...], found: Mapping[_Labels, Histogram]
    ) -> "HistogramMetricFamily":
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(name, help_text, labels=(*self._model, *labels))
        for values, histogram in found.items():
            family.add_metric((*self._model.values(), *values), histogram.cumulative(), histogram.total)
        return family


def _families(samples: Iterable[Sample], labels: tuple[tuple[str, str], ...]) -> Iterator["Metric"]:
    """A family for each name among the samples, in the order in which they first come.

    Args:
        samples: numbers as they stand now.
        labels: that all of them get, before their own.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for sample in samples:
        every = dict((*labels, *sample.labels))
        family = families.get(sample.name)
        if family is None:
            kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
            family = families[sample.name] = kind(sample.name, sample.help, labels=tuple(every))
        family.add_metric(tuple(every.values()), sample.value)
    yield from families.values()


def make_registry(router: Router, pulse: Pulse, gpus: Gpus | None = None) -> "CollectorRegistry":
    """A registry that no other server in this process shares."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(router, pulse, Gpus() if gpus is None else gpus))
    ProcessCollector(registry=registry)
    return registry


def expose(registry: "CollectorRegistry") -> bytes:
    """The text that a Prometheus server scrapes."""
    from prometheus_client import generate_latest

    return generate_latest(registry)
