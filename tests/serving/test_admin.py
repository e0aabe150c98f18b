import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families
from services import debian_program

ROWS = {"rows": [{"a": 1, "b": 2, "c": 3, "d": 4}]}


def scrape(server):
    """Samples by name and the labels that are not the same everywhere."""
    samples = {}
    for family in text_string_to_metric_families(server.get("/metrics").body.decode()):
        for sample in family.samples:
            labels = {
                name: value
                for name, value in sample.labels.items()
                if name not in {"model", "version", "route"}
            }
            key = (sample.name, *sorted(labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return samples


def test_metrics_count_what_happened(serve, tmp_path):
    server = serve("table", traffic=tmp_path / "log")
    for _ in range(3):
        server.post("/predict", ROWS)
    server.post("/predict", {"rows": []})
    server.get("/some/path")
    samples = scrape(server)

    def count(name, **labels):
        return samples[(name, *sorted(labels.items()))]

    duration = "mlx_request_duration_seconds"
    assert count(f"{duration}_count", endpoint="/predict", status="2xx") == 3
    assert count(f"{duration}_count", endpoint="/predict", status="4xx") == 1
    assert count(f"{duration}_count", endpoint="other", status="4xx") == 1
    assert count(f"{duration}_bucket", endpoint="/predict", status="2xx", le="+Inf") == 3
    assert count(f"{duration}_sum", endpoint="/predict", status="2xx") > 0
    assert count("mlx_batch_rows_bucket", le="1.0") == count("mlx_batch_rows_count") == 3
    assert count("mlx_queue_wait_seconds_count") == 3
    for stage in ("ingress", "queue", "pre", "inference", "post", "egress"):
        assert count("mlx_stage_seconds_count", stage=stage) >= 3
    assert count("mlx_ready") == 1
    assert 0 < count("mlx_ready_time_seconds") - count("process_start_time_seconds") < 300
    assert count("mlx_predictions_total") == 4
    assert count("mlx_failures_total", reason="malformed") == 1
    assert count("mlx_failures_total", reason="deadline") == 0
    assert server.metric("mlx_predictions_total", model="table", version="3", route="stable") == 4
    assert count("mlx_queue_rows") == count("mlx_in_flight") == count("mlx_expired_total") == 0
    assert [key for key in samples if key[0] == "process_resident_memory_bytes"]
    info = next(key for key in samples if key[0] == "mlx_model_info")
    assert ("digest", server.addresses["digest"]) in info
    assert ("provider", "CPUExecutionProvider") in info


def test_the_counters_of_the_log_add_up(serve, tmp_path):
    server = serve("table", traffic=tmp_path / "log")
    with ThreadPoolExecutor(4) as callers:
        bodies = [ROWS, b"{", {"rows": []}, {"rows": [{"a": "x"}]}]
        list(callers.map(lambda number: server.post("/predict", bodies[number % 4]), range(40)))
    samples = scrape(server)
    served = samples[("mlx_traffic_served_total",)]
    assert served == samples[("mlx_predictions_total",)]
    logged, sampled_out = samples[("mlx_traffic_logged_total",)], samples[("mlx_traffic_sampled_out_total",)]
    dropped = sum(value for key, value in samples.items() if key[0] == "mlx_traffic_dropped_total")
    assert served == 40 == logged + dropped + sampled_out + samples[("mlx_traffic_pending",)]


def test_a_server_without_a_log_has_no_metrics_of_one(shared):
    assert b"mlx_traffic" not in shared("table").get("/metrics").body


def test_no_request_can_add_label_values(shared):
    server = shared("table")
    server.get("/warm/up")
    before = set(scrape(server))
    for index in range(30):
        server.get(f"/path/{index}")
        server.get(f"/v2/models/m{index}")
        server.request(f"M{index}", "/v2")
    new = {key for key in set(scrape(server)) - before if ("endpoint", "/v2/models/{model}") not in key}
    assert not new


def test_health_and_configuration_are_on_the_second_listener(shared):
    server = shared("table")
    assert server.get("/healthz").json == {"live": True}
    assert server.get("/readyz").json == {"ready": True, "degraded": ""}
    document = server.get("/debug/config").json
    assert document["settings"]["max_batch_size"] == 32
    assert set(document["milliseconds_by_rows"]) == {"1", "8", "32"}
    assert (document["device"], document["inline"]) == ("cpu", True)
    assert document["joins_requests"] is True


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9090", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_the_second_listener_answers_only_to_names_of_this_machine(shared, host, status):
    assert shared("table").get("/metrics", {"Host": host}).status == status


def test_the_second_listener_only_reads(shared):
    server = shared("table")
    assert server.request("POST", "/metrics", b"x").status == 405
    assert server.request("DELETE", "/debug/config").status == 405
    assert server.get("/debug/other").status == 404


def start_guarded(serve, monkeypatch, network, **settings):
    monkeypatch.setenv("MLX_ADMIN_TOKEN", "a-token-of-a-test")
    return serve(network, **settings), {"Authorization": "Bearer a-token-of-a-test"}


def test_debug_mode_shows_what_comes_in_with_personal_data_masked(serve, monkeypatch):
    server, token = start_guarded(serve, monkeypatch, "kinds")
    capture = "/debug/capture"
    assert server.request("GET", capture).status == server.request("PUT", capture).status == 401
    assert server.get(capture, token).json["on"] is False
    assert server.request("PUT", capture, b'{"minutes": 2}', token).json["on"] is True
    tensors = {
        "t": ("BYTES", [1, 1], ["jane@example.org"]),
        "f": ("FP32", [1, 1], [1.5]),
        "i": ("INT64", [1], [491711234567]),
        "u": ("UINT8", [1], [7]),
        "b": ("BOOL", [1], [True]),
        "d": ("FP64", [1], [0.25]),
    }
    inputs = {name: dict(zip(("datatype", "shape", "data"), t, strict=True)) for name, t in tensors.items()}
    assert server.infer(inputs).status == 400  # FP16 has no form in JSON
    server.infer({"i": inputs["i"]})
    assert server.metric("mlx_debug_mode") == 1
    first, second = reversed(server.get(capture, token).json["requests"])
    assert (first["status"], first["endpoint"], second["status"]) == (400, "infer", 400)
    assert server.request("DELETE", capture, None, token).json["on"] is False
    assert server.get(capture, token).json["requests"] == []
    assert server.metric("mlx_debug_mode") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"minutes": 0}',
        b'{"minutes": 61}',
        b'{"minutes": true}',
        b'{"share": 2}',
        b'{"more": 1}',
    ],
)
def test_debug_mode_takes_minutes_and_a_share_within_limits(guarded, body):
    server, token = guarded
    assert server.request("PUT", "/debug/capture", body, token).status == 400
    assert server.get("/debug/capture", token).json["on"] is False


@pytest.fixture(scope="module")
def guarded(start_lasting_server):
    with pytest.MonkeyPatch.context() as patch:
        yield start_guarded(start_lasting_server, patch, "table")


def test_debug_mode_keeps_answers_timings_and_the_batch(guarded):
    server, token = guarded
    server.request("PUT", "/debug/capture", b"", token)
    server.post("/predict", ROWS, {"X-Request-Id": "seen"})
    (request,) = server.get("/debug/capture", token).json["requests"]
    server.request("DELETE", "/debug/capture", b"", token)
    assert (request["request_id"], request["batch_rows"], request["status"]) == ("seen", 1, 200)
    assert request["inputs"]["a"]["data"] == [1]
    assert set(request["timings_ms"]) >= {"ingress", "queue", "pre", "inference", "post", "egress", "total"}
    assert len(request["outputs"]["probabilities"]["data"]) == 3


def test_without_a_token_debug_mode_cannot_be_used(shared):
    server = shared("table")
    for method in ("GET", "PUT", "DELETE"):
        reply = server.request(method, "/debug/capture")
        assert (reply.status, "MLX_ADMIN_TOKEN" in reply.json["error"]) == (403, True)


def test_from_elsewhere_everything_but_probes_takes_the_token(serve, monkeypatch):
    server, token = start_guarded(serve, monkeypatch, "table", admin_host="0.0.0.0")  # noqa: S104
    address = server.addresses["admin_url"]
    assert address.startswith("http://0.0.0.0:")
    elsewhere = {"Host": "metrics.example.org"}
    assert server.get("/healthz", elsewhere).status == server.get("/readyz", elsewhere).status == 200
    for path in ("/metrics", "/debug/config", "/debug/capture"):
        reply = server.get(path, elsewhere)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert server.get(path, elsewhere | token).status == 200


def test_a_trace_is_answered_with_the_span_of_the_request(shared):
    server = shared("table")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    reply = server.post("/predict", ROWS, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    version, trace_id, span_id, flags = reply.headers["traceparent"].split("-")
    assert (version, trace_id, flags) == ("00", trace, "01")
    assert span_id != "00f067aa0ba902b7"
    assert "traceparent" not in server.post("/predict", ROWS, {"traceparent": "garbage"}).headers
    assert "server-timing" not in reply.headers


def test_timings_and_traces_go_where_they_are_wanted(serve, collector):
    server = serve("table", server_timing=True, trace_endpoint=collector.url)
    reply = server.post("/predict", ROWS, {"X-Request-Id": "one"})
    told = {part.partition(";")[0] for part in reply.headers["server-timing"].split(", ")}
    assert told >= {"ingress", "queue", "pre", "inference", "post", "egress", "total"}
    failed = server.post("/predict", {"rows": []})
    assert failed.status == 400
    assert server.stop() == 0
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert [dict_of(span)["http.response.status_code"] for span in roots] == [200, 400]
    assert dict_of(roots[0])["mlx.request_id"] == "one"
    assert roots[0].trace_id.hex() == reply.headers["traceparent"].split("-")[1]
    stages = [span.name for span in collector.spans if span.parent_span_id == roots[0].span_id]
    assert stages == ["ingress", "pre", "queue", "inference", "post", "egress"]


def dict_of(span):
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


def test_the_metrics_are_as_prometheus_wants_them(shared):
    server = shared("table")
    server.post("/predict", ROWS)
    text = server.get("/metrics").body
    check = [debian_program("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(check, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_server_that_never_batches_although_others_wait_says_so(serve):
    server = serve("table", max_batch_size=1)
    assert server.post("/predict", {"rows": ROWS["rows"] * 300}).status == 200
    assert server.metric("mlx_batching_fault") == 1
    assert server.get("/debug/config").json["batching_fault"] == "max_batch_size is 1"
    assert "every run has one row: max_batch_size is 1." in server.errors.read_text()
