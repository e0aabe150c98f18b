from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

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
        list(callers.map(lambda _: server.post("/predict", ROWS), range(40)))
    samples = scrape(server)
    served = samples[("mlx_traffic_served_total",)]
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
    assert server.get("/readyz").json == {"ready": True}
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
