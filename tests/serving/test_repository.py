import pytest

GOOD = {"x": {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}}
REPOSITORY = "/v2/repository"


def test_the_index_lists_what_is_served(shared):
    server = shared("table")
    want = [{"name": "table", "version": "3", "state": "READY", "reason": ""}]
    for body in (b"", b"{}", b'{"ready": true}', b' {"ready": false}'):
        assert server.request("POST", f"{REPOSITORY}/index", body).json == want


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"ready": 1}', b'{"ready": null}', b'{"a":1,"a":1}'])
def test_what_is_no_request_for_the_index_is_refused(shared, body):
    assert shared("table").post(f"{REPOSITORY}/index", body).status == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("table/load", b"", 200),
        ("t%61ble/load", b'{"parameters": {}}', 200),
        ("table/load", b'{"parameters": {"config": "{}"}}', 403),
        ("table/load", b'{"parameters": null}', 400),
        ("other/load", b"{}", 403),
        ("table/unload", b"{}", 403),
        ("other/unload", b"{}", 404),
    ],
)
def test_a_pinned_server_says_what_it_does_not_do(shared, path, body, status):
    server = shared("table")
    assert server.post(f"{REPOSITORY}/models/{path}", body).status == status
    assert server.infer(GOOD).status == 200


def test_a_server_that_ends_is_not_ready_in_the_index(serve):
    server = serve("affine", drain_delay_s=2.0)
    server.process.terminate()
    while server.get("/v2/health/ready").status == 200:
        pass
    (entry,) = server.request("POST", f"{REPOSITORY}/index", b"").json
    assert entry["state"] == "UNLOADING"
    assert server.post(f"{REPOSITORY}/index", {"ready": True}).json == []


def test_statistics_and_configuration_are_told_by_model_and_version(serve):
    server = serve("affine", max_batch_size=8)
    assert server.infer(GOOD).status == 200
    assert server.infer({"x": GOOD["x"] | {"shape": [1, 3]}}).status == 400
    stats = server.get("/v2/models/stats").json
    for path in ("/v2/models/affine/stats", "/v2/models/affine/versions/3/stats"):
        assert server.get(path).json == stats
    (entry,) = stats["model_stats"]
    assert (entry["name"], entry["version"], entry["inference_count"]) == ("affine", "3", 1)
    counts = {name: duration["count"] for name, duration in entry["inference_stats"].items()}
    assert counts == {
        "success": 1,
        "fail": 1,
        "queue": 1,
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
        "cache_hit": 0,
        "cache_miss": 0,
    }
    (batch,) = entry["batch_stats"]
    assert batch.pop("batch_size") == entry["execution_count"] == 1
    assert {name: duration["count"] for name, duration in batch.items()} == {
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
    }
    assert 0 < batch["compute_infer"]["ns"] <= entry["inference_stats"]["compute_infer"]["ns"]
    config = server.get("/v2/models/affine/config").json
    assert (config["name"], config["max_batch_size"], config["backend"]) == ("affine", 8, "onnxruntime")
    assert server.get("/v2/models/other/stats").status == 404
    assert server.get("/v2/models/affine/versions/4/config").status == 404
