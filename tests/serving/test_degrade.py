"""A server whose device fails: what answers then, and how clients and operators see it."""

import threading

import onnx
import orjson
import pytest
from simulated_gpu import VARIABLE, Gpus

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package, seal
from mlx_platform.serving.devices.standby import check_fallback, parse_rule
from mlx_platform.traffic.log import read_log

ROW = {"a": 1, "b": 2, "c": 3, "d": 4}
ROWS = {"rows": [ROW]}
X = {"x": {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}}


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    gpus = Gpus(tmp_path / "gpus")
    monkeypatch.setenv(VARIABLE, str(gpus.path))
    return gpus


@pytest.fixture(scope="session")
def light(packages, tmp_path_factory):
    """The table network with other weights: what a smaller model of the same task is."""
    folder = tmp_path_factory.mktemp("light") / "light"
    folder.mkdir()
    for file in packages["table"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    network = onnx.load(folder / "model.onnx")
    for tensor in network.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(tensor), "w"))
    onnx.save(network, folder / "model.onnx")
    seal(folder)
    return folder


def metric(server, name, **labels):
    for line in server.get("/metrics").body.decode().splitlines():
        named, _, value = line.rpartition(" ")
        if named.partition("{")[0] == name and all(f'{k}="{v}"' in named for k, v in labels.items()):
            return float(value)
    raise AssertionError(name)


def test_a_lost_device_is_replaced_without_a_failed_request_and_everybody_is_told(serve, gpus):
    server = serve("table", device="cuda")
    assert server.addresses["device"] == "cuda"
    whole = server.post("/predict", ROWS)
    assert "x-mlx-degraded" not in whole.headers
    assert "degraded" not in whole.json
    gpus.set(cuda="lost")
    reply = server.post("/predict", ROWS)
    assert reply.status == 200
    assert reply.json["predictions"] == whole.json["predictions"]
    assert (reply.headers["x-mlx-degraded"], reply.json["degraded"]) == ("cpu", "cpu")
    tensors = server.infer(X)
    assert tensors.json["parameters"] == {"degraded": "cpu"}
    assert metric(server, "mlx_degraded") == 1
    assert metric(server, "mlx_device_active", device="cpu") == 1
    assert server.get("/readyz").status == 200
    assert server.get("/debug/config").json["device"] == "cpu"


def test_a_device_that_comes_back_is_taken_again(serve, gpus):
    server = serve("table", device="cuda", degrade={"probe_s": 0.05})
    gpus.set(cuda="lost")
    assert server.post("/predict", ROWS).headers["x-mlx-degraded"] == "cpu"
    gpus.set()
    back = threading.Event()
    for _ in range(400):
        if "x-mlx-degraded" not in server.post("/predict", ROWS).headers:
            break
        back.wait(0.05)
    assert metric(server, "mlx_degraded") == 0
    assert metric(server, "mlx_device_moves_total", device="cuda") == 1


def test_without_anything_else_the_server_says_503_and_is_not_ready(serve, gpus):
    server = serve("table", device="cuda", degrade={"devices": []})
    gpus.set(cuda="lost")
    reply = server.post("/predict", ROWS)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert server.get("/readyz").status == 503
    assert server.get("/v2/health/ready").status == 503
    assert server.get("/v2/health/live").status == 200


def test_a_lighter_version_answers_under_its_own_name(serve, gpus, light, tmp_path):
    folder = tmp_path / "log"
    server = serve("table", device="cuda", light=str(light), degrade={"devices": []}, traffic=folder)
    whole = server.post("/predict", ROWS)
    gpus.set(cuda="lost")
    reply = server.post("/predict", ROWS)
    assert reply.status == 200
    assert reply.json["predictions"] != whole.json["predictions"]
    told = {key: reply.json[key] for key in ("model", "version", "arm", "degraded")}
    assert told == {"model": "light", "version": "1", "arm": "fallback", "degraded": "fallback"}
    assert reply.headers["x-mlx-digest"] == reply.json["digest"] == open_package(light).digest
    tensors = server.infer(X)
    assert (tensors.status, tensors.json["model_name"]) == (200, "light")
    assert server.get("/readyz").status == 200
    assert metric(server, "mlx_degraded_answers_total", by="fallback") == 2
    assert server.post("/predict", {"rows": [{"a": 1}]}).status == 400
    assert server.stop() == 0
    records, _ = read_log(folder)
    arms = [(record.arm, record.model, record.status) for record in sorted(records, key=lambda r: r.seq)]
    assert arms[:3] == [("production", "table", 200), ("fallback", "light", 200), ("fallback", "light", 200)]


def test_a_rule_answers_last_and_is_not_logged_as_the_model(serve, gpus, tmp_path):
    folder = tmp_path / "log"
    rule = {"label": "mid", "confidence": 0.0, "probabilities": [0, 1, 0]}
    server = serve("table", device="cuda", degrade={"devices": [], "answer": rule}, traffic=folder)
    gpus.set(cuda="lost")
    reply = server.post("/predict", {"rows": [ROW, ROW]})
    assert reply.status == 200
    assert reply.json["predictions"] == [rule, rule]
    assert (reply.json["degraded"], reply.json["arm"], reply.headers["x-mlx-degraded"]) == (
        "rule",
        "rule",
        "rule",
    )
    assert server.infer(X).status == 503
    assert server.get("/readyz").status == 200
    assert server.stop() == 0
    first, second = sorted(read_log(folder)[0], key=lambda record: record.seq)
    assert (first.arm, first.outputs, first.rows) == ("rule", {}, 2)
    assert second.status == 503


def test_memory_that_is_full_costs_no_answer(serve, gpus):
    server = serve("table", device="cuda", max_queue_delay_ms=20)
    gpus.set(cuda="full")
    replies = []
    callers = [
        threading.Thread(target=lambda: replies.append(server.post("/predict", ROWS).status))
        for _ in range(16)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert replies == [200] * 16
    assert metric(server, "mlx_degraded") == 0


def test_a_row_that_never_fits_is_413_and_costs_nobody_else_anything(serve, gpus):
    server = serve("table", device="cuda", degrade={"devices": ["cpu"]})
    gpus.set(cuda="small")
    for _ in range(4):
        reply = server.post("/predict", {"rows": [dict(ROW, a=7)]})
        assert (reply.status, "retry-after" in reply.headers) == (413, False)
        assert "more memory" in reply.json["error"]
        reply = server.post("/predict", ROWS)
        assert (reply.status, "x-mlx-degraded" in reply.headers) == (200, False)
    assert metric(server, "mlx_device_failures_total", device="cuda") == 0
    assert metric(server, "mlx_out_of_memory_total") == 8  # each was tried once more on its own
    assert server.get("/readyz").status == 200


def test_a_gpu_that_comes_up_as_the_cpu_is_shown(serve, gpus):
    gpus.set(cuda="absent")
    server = serve("table", device="auto")
    document = server.get("/debug/config").json
    assert (document["device"], document["fell_back"]) == ("cpu", "cuda")
    assert server.get("/v2/models/table").json["parameters"]["device"] == "cpu"


def test_a_rule_holds_what_json_can_carry():
    assert parse_rule({}) is None
    columns = parse_rule({"label": "x", "value": 1.5, "probabilities": [0.5, 0.5]}).columns(2)
    assert orjson.dumps({k: v.tolist() for k, v in columns.items()}) == (
        b'{"label":["x","x"],"value":[1.5,1.5],"probabilities":[[0.5,0.5],[0.5,0.5]]}'
    )
    for wrong in ({"a": {}}, {"a": []}, {"a": float("nan")}, {"a": None}):
        with pytest.raises(UsageError, match="no usable value"):
            parse_rule(wrong)


def test_a_version_that_takes_or_gives_something_else_is_no_fallback(packages, light):
    def model(folder):
        return Model.load(open_package(folder), name=folder.name, device="cpu", threads=1)

    check_fallback(model(packages["table"]), model(light))
    with pytest.raises(UsageError, match="in its task, columns, labels, inputs"):
        check_fallback(model(packages["table"]), model(packages["affine"]))
    with pytest.raises(UsageError, match="is the version that is served"):
        check_fallback(model(packages["table"]), model(packages["table"]))
