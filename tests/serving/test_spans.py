from datetime import UTC, datetime
from itertools import pairwise

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.serving.spans import RequestSpan, SpanExporter
from mlx_platform.serving.trace import Trace

MOMENT = datetime(2026, 3, 8, 6, 59, 58, 123456, tzinfo=UTC)
TRACE = Trace("4bf92f3577b34da6a3ce929d0e0e4736", "ffffffffffffffff", "00f067aa0ba902b7")


def request(status=200, trace=TRACE, **seconds):
    seconds = seconds or {"ingress": 0.001, "queue": 0.002, "inference": 0.25, "egress": 0.0}
    return RequestSpan(trace, "infer m", MOMENT, seconds, 0.3, status, {"mlx.rows": 2, "mlx.model": "m"})


def export(url, *spans):
    exporter = SpanExporter(url, {"mlx.version": "3"})
    for span in spans:
        exporter.offer(span)
    exporter.close()
    return exporter


def counts(exporter):
    return {
        (sample.name, *(value for _, value in sample.labels)): sample.value for sample in exporter.samples()
    }


def attributes(values):
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in values}


def test_a_request_becomes_a_span_with_one_below_it_for_each_stage(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, x-other=1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "digits")
    exporter = export(f"{collector.url}/base/", request())
    assert counts(exporter)[("mlx_traces_exported",)] == 1
    assert collector.paths == ["/base/v1/traces"]
    (headers,) = collector.headers
    assert (headers["x-key"], headers["x-other"]) == ("a b", "1")
    assert headers["Content-Type"] == "application/x-protobuf"
    resource = attributes(collector.messages[0].resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["mlx.version"]) == ("digits", "3")
    root, *stages = collector.spans
    assert (root.trace_id.hex(), root.span_id.hex()) == (TRACE.trace_id, TRACE.span_id)
    assert (root.parent_span_id.hex(), root.name, root.kind) == (TRACE.parent_id, "infer m", 2)
    assert root.start_time_unix_nano // 1000 == int(MOMENT.timestamp() * 1_000_000)
    assert root.end_time_unix_nano - root.start_time_unix_nano == 300_000_000
    assert attributes(root.attributes) == {"http.response.status_code": 200, "mlx.rows": 2, "mlx.model": "m"}
    assert [span.name for span in stages] == ["ingress", "queue", "inference", "egress"]
    assert {span.parent_span_id for span in stages} == {root.span_id}
    assert {span.trace_id for span in stages} == {root.trace_id}
    assert len({span.span_id for span in collector.spans}) == 5
    assert b"\0" * 8 not in {span.span_id for span in collector.spans}
    for before, after in pairwise(stages):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert stages[2].end_time_unix_nano - stages[2].start_time_unix_nano == 250_000_000


def test_the_steps_of_a_stage_lie_within_it(collector):
    export(collector.url, request(**{"pre": 0.3, "pre-clean": 0.1, "pre-tokenize": 0.15, "egress": 0.1}))
    root, pre, clean, tokenize, egress = collector.spans
    assert [span.name for span in collector.spans[1:]] == ["pre", "pre-clean", "pre-tokenize", "egress"]
    assert clean.parent_span_id == tokenize.parent_span_id == pre.span_id
    assert egress.parent_span_id == pre.parent_span_id == root.span_id
    assert clean.start_time_unix_nano == pre.start_time_unix_nano
    assert tokenize.start_time_unix_nano == clean.end_time_unix_nano
    assert egress.start_time_unix_nano == pre.end_time_unix_nano
    assert len({span.span_id for span in collector.spans}) == 5


@pytest.mark.parametrize(("status", "code"), [(200, 0), (404, 0), (503, 2)])
def test_only_what_the_server_failed_at_is_an_error(collector, status, code):
    export(collector.url, request(status))
    assert collector.spans[0].status.code == code


def test_a_trace_that_begins_here_has_no_parent(collector):
    export(collector.url, request(trace=Trace("1" * 32, "2" * 16)))
    assert collector.spans[0].parent_span_id == b""


def test_what_a_collector_refuses_or_nobody_takes_is_counted(collector, caplog):
    collector.status = 503
    exporter = export(collector.url, request(), request())
    assert counts(exporter)[("mlx_traces_dropped", "refused")] == 2
    assert "Traces are being dropped: HTTP status 503." in caplog.text
    gone = export("http://127.0.0.1:9", request())
    assert counts(gone)[("mlx_traces_dropped", "unreachable")] == 1
    assert counts(gone)[("mlx_traces_exported",)] == 0


def test_a_burst_is_dropped_rather_than_kept_without_end(collector):
    exporter = export(collector.url, *[request(ingress=0.1)] * 5000)
    found = counts(exporter)
    assert found[("mlx_traces_dropped", "queue")] > 0
    assert found[("mlx_traces_dropped", "queue")] + found[("mlx_traces_exported",)] == 5000


@pytest.mark.parametrize(
    "endpoint", ["http://", "http://host:port", "http://host:0", "http://[x", "http://:4318"]
)
def test_an_endpoint_that_is_no_server_is_refused_at_the_start(endpoint):
    with pytest.raises(UsageError, match="trace_endpoint"):
        SpanExporter(endpoint, {})
