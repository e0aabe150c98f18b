"""Spans on their way to an OpenTelemetry collector: OTLP over HTTP, from a thread, in nobody's way."""

import http.client
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import first_line
from mlx_platform.core.version import VERSION
from mlx_platform.serving.metrics import STAGES, Sample
from mlx_platform.serving.trace import Trace

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_PERIOD = 1.0  # seconds between exports
_MOST = 1024  # traces that wait: more of them in a period are dropped, so that exporting stays cheap
_TIMEOUT = 5.0
_SERVER, _INTERNAL, _ERROR = 2, 1, 2  # numbers of SpanKind and StatusCode in the protocol
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """A request that is over: `seconds` by stage in the order in which they were passed, and in total."""

    trace: Trace
    name: str
    time: datetime
    seconds: Mapping[str, float]
    total: float
    status: int
    attributes: Mapping[str, str | int]


class SpanExporter:
    """Sends spans once a second; what cannot be sent is dropped and counted.

    Args:
        endpoint: base URL of a collector, such as `http://127.0.0.1:4318`.
        resource: what the spans are about, as attributes of the service.

    Raises:
        UsageError: the endpoint is no URL of a server.
    """

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        self.exported = 0
        self.dropped: Counter[str] = Counter({"queue": 0, "unreachable": 0, "refused": 0})
        self._url = _server_of(endpoint)
        self._headers = {"Content-Type": "application/x-protobuf"} | _foreign_headers()
        service = os.environ.get("OTEL_SERVICE_NAME") or "mlx"
        self._resource = {"service.name": service, "service.version": VERSION, **resource}
        self._waiting: deque[RequestSpan] = deque()
        self._closing = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="mlx-spans", daemon=True)
        self._thread.start()

    def offer(self, span: RequestSpan) -> None:
        """Take a span, or count it as dropped. Never waits."""
        if len(self._waiting) < _MOST:
            self._waiting.append(span)
        else:
            self.dropped["queue"] += 1

    def samples(self) -> Iterator[Sample]:
        """What became of the traces."""
        yield Sample("mlx_traces_exported", "Traces sent to the collector.", self.exported)
        for reason, lost in dict(self.dropped).items():
            labels = (("reason", reason),)
            yield Sample("mlx_traces_dropped", "Traces that did not reach the collector.", lost, labels)

    def close(self, timeout: float = _TIMEOUT) -> None:
        """Send what waits, and end."""
        self._closing.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._closing.wait(_PERIOD)
            spans = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if spans:
                self._send(spans)

    def _send(self, spans: Sequence[RequestSpan]) -> None:
        try:
            status = self._post(_message(spans, self._resource).SerializeToString())
        except (OSError, http.client.HTTPException) as error:
            self._drop("unreachable", len(spans), first_line(error))
        except Exception as error:  # noqa: BLE001 - a fault in here must not end the thread
            self._drop("refused", len(spans), first_line(error))
        else:
            if status != 200:
                self._drop("refused", len(spans), f"HTTP status {status}")
                return
            self.exported += len(spans)
            if self._trouble:
                _logger.warning("Traces are sent again.")
            self._trouble = ""

    def _drop(self, reason: str, count: int, trouble: str) -> None:
        self.dropped[reason] += count
        if not self._trouble:
            _logger.warning("Traces are being dropped: %s.", trouble)
        self._trouble = trouble

    def _post(self, body: bytes) -> int:
        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=_TIMEOUT)
        try:
            connection.request("POST", f"{self._url.path.rstrip('/')}/v1/traces", body, self._headers)
            return connection.getresponse().status
        finally:
            connection.close()


def _server_of(endpoint: str) -> SplitResult:
    try:
        url = urlsplit(endpoint)
        known = bool(url.hostname) and url.port != 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(
            "trace_endpoint is no URL of a collector.", hint="Write it like http://127.0.0.1:4318"
        )
    return url


def _foreign_headers() -> dict[str, str]:
    """Headers such as an API key, from the variable that OpenTelemetry has for them."""
    pairs = [pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")]
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}


def _message(spans: Sequence[RequestSpan], resource: Mapping[str, str]) -> "ExportTraceServiceRequest":
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    part = message.resource_spans.add()
    _set_attributes(part.resource.attributes, resource)
    scope = part.scope_spans.add()
    scope.scope.name, scope.scope.version = "mlx", VERSION
    for span in spans:
        _add_request(scope.spans, span)
    return message


def _add_request(spans: Any, request: RequestSpan) -> None:
    """A span for the request and one below it for each stage; stages follow each other without gaps.

    The gaps that there are, changes of threads and turns of the loop, show as the rest of the request's span.
    """
    trace = request.trace
    began = int(request.time.timestamp() * 1e9)
    root = _add_span(spans, trace, trace.span_id, trace.parent_id, request.name, began, request.total)
    root.kind = _SERVER
    if request.status >= 500:
        root.status.code = _ERROR
    _set_attributes(root.attributes, {"http.response.status_code": request.status, **request.attributes})
    numbers = count(1)
    for stage in STAGES:
        if stage not in request.seconds:
            continue
        child = _add_below(spans, root, stage, began, request.seconds[stage], next(numbers))
        # The steps of a stage, named like `pre-tokenize`, follow each other as stages do.
        for step, seconds in request.seconds.items():
            if step.startswith(f"{stage}-"):
                inner = _add_below(spans, child, step, began, seconds, next(numbers))
                began = inner.end_time_unix_nano
        began = child.end_time_unix_nano


def _add_below(spans: Any, parent: Any, name: str, began: int, seconds: float, number: int) -> Any:
    """A span below another one. Its identity is derived, so that nobody needs one before it is asked for."""
    span_id = int.from_bytes(parent.span_id, "big") ^ number
    trace = Trace(parent.trace_id.hex(), f"{span_id:016x}")
    child = _add_span(spans, trace, trace.span_id, parent.span_id.hex(), name, began, seconds)
    child.kind = _INTERNAL
    return child


def _add_span(
    spans: Any, trace: Trace, span_id: str, parent_id: str, name: str, began: int, seconds: float
) -> Any:
    span = spans.add()
    span.trace_id, span.span_id = bytes.fromhex(trace.trace_id), bytes.fromhex(span_id)
    span.parent_span_id = bytes.fromhex(parent_id)
    span.name = name
    span.start_time_unix_nano, span.end_time_unix_nano = began, began + int(seconds * 1e9)
    return span


def _set_attributes(attributes: Any, values: Mapping[str, str | int]) -> None:
    for key, value in values.items():
        attribute = attributes.add()
        attribute.key = key
        if isinstance(value, int):
            attribute.value.int_value = value
        else:
            attribute.value.string_value = value
