"""What is seen of single requests, beside counts and the traffic log: traces, timing headers, debug mode."""

from collections.abc import Iterator

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.serving.capture import Capture
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.http_exchange import Header
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.spans import RequestSpan, SpanExporter
from mlx_platform.serving.trace import Trace, begin_trace, join_trace, server_timing


class Observation:
    """Watches the requests of one version; costs next to nothing while nobody has asked for anything."""

    def __init__(self, model: Model, settings: ServingSettings, capture: Capture) -> None:
        self.capture = capture
        self._exporter: SpanExporter | None = None
        self._share = 0.0
        self._server_timing = settings.server_timing
        self._about = {"mlx.model": model.name, "mlx.version": model.version}
        if settings.trace_endpoint:
            self._share = settings.trace_sample
            resource = self._about | {"mlx.digest": model.digest}
            self._exporter = SpanExporter(settings.trace_endpoint, resource)

    def begin(self, traceparent: bytes | None) -> Trace | None:
        """The place of a new request in the trace that it names, or in one of its own, or in none."""
        trace = join_trace(traceparent) if traceparent is not None else None
        return trace or (begin_trace(self._share) if self._share else None)

    def headers(self, exchange: Exchange, total: float) -> list[Header]:
        """What the client is told of its request beside the answer."""
        headers: list[Header] = []
        if exchange.trace is not None:
            headers.append((b"traceparent", exchange.trace.header))
        if self._server_timing:
            headers.append((b"server-timing", server_timing(exchange.seconds, exchange.step_seconds, total)))
        return headers

    def finish(self, exchange: Exchange, status: int, error: str, total: float) -> None:
        """Look at a request that is over."""
        if self.capture.on:
            self.capture.add(exchange, status, error, total)
        if exchange.trace is not None and exchange.trace.sampled and self._exporter is not None:
            self._exporter.offer(self._span(exchange, status, total))

    def samples(self) -> Iterator[Sample]:
        """The counters of the traces and the state of debug mode."""
        self.capture.expire()
        on = int(self.capture.on)
        yield Sample("mlx_debug_mode", "1 while requests are kept to be looked at.", on, kind="gauge")
        if self._exporter is not None:
            yield from self._exporter.samples()

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()

    def _span(self, exchange: Exchange, status: int, total: float) -> RequestSpan:
        assert exchange.trace is not None  # noqa: S101 - the caller has looked
        attributes: dict[str, str | int] = {
            "mlx.request_id": exchange.request_id,
            "mlx.rows": exchange.rows,
            "mlx.batch_rows": exchange.batch_rows,
            "mlx.cache": exchange.cache,
            **self._about,
        }
        name = f"{exchange.endpoint} {self._about['mlx.model']}"
        return RequestSpan(
            exchange.trace, name, exchange.time, dict(exchange.seconds), total, status, attributes
        )
