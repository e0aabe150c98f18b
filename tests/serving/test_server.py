"""A server's life: getting ready, being asked to stop in the middle of work, and what is left in its log."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import orjson
import pytest

from mlx_platform.core.errors import GateFailedError, UsageError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import decode_array, encode_array
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package, seal
from mlx_platform.serving.server import run
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.record import is_sampled

ROWS = {"rows": [{"a": 1, "b": 2, "c": 3, "d": 4}]}
X = {"x": {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}}


def slow(trips):
    return {"n": {"datatype": "INT64", "shape": [1, 1], "data": [trips]}}


def trips_for(server, seconds):
    """How often the countdown must loop to take so long on this machine."""
    trips = 10_000
    while True:
        began = time.monotonic()
        assert server.infer(slow(trips)).status == 200
        took = time.monotonic() - began
        if took > 0.1:
            return int(trips * seconds / took)
        trips *= 4


class Load:
    """Callers that keep their connections and count what becomes of their requests."""

    def __init__(self, server, callers):
        self.server = server
        self.outcomes = Counter()
        self.lost = []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._call) for _ in range(callers)]
        for thread in self.threads:
            thread.start()

    def _call(self):
        body = orjson.dumps(ROWS)
        connection = None
        while not self.stopping.is_set():
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
                    connection.connect()
            except OSError:
                return  # nobody listens any more: nothing was accepted, nothing is lost
            try:
                connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                self.outcomes[answer.status] += 1
                if answer.getheader("connection") == "close":
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                return

    def join(self):
        for thread in self.threads:
            thread.join(30)


def wait_until(condition, seconds=15):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_stopping_server_loses_no_request_that_it_accepted(serve, tmp_path):
    server = serve("table", traffic=tmp_path / "log")
    load = Load(server, callers=8)
    wait_until(lambda: load.outcomes[200] > 200)
    assert server.stop() == 0
    load.join()
    assert load.lost == []
    assert set(load.outcomes) <= {200, 503}
    records, stats = read_log(tmp_path / "log")
    assert sum(record.status == 200 for record in records) == load.outcomes[200]
    assert (stats.torn, stats.gaps) == (0, 0)
    assert not list((tmp_path / "log").rglob("*.open"))


def test_a_stopping_server_is_not_ready_first_and_answers_during_the_delay(serve):
    server = serve("table", drain_delay_s=1.0)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.get("/v2/health/ready").status == 503)
    assert server.get("/readyz").status == 503
    assert server.get("/healthz").status == 200
    assert server.get("/v2/health/live").status == 200
    reply = server.post("/predict", ROWS)
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert server.process.wait(15) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_running_is_finished_and_what_comes_later_is_not_accepted(serve, number):
    server = serve("countdown", request_timeout_ms=30_000)
    trips = trips_for(server, 1.0)
    replies = []
    caller = threading.Thread(target=lambda: replies.append(server.infer(slow(trips))))
    caller.start()
    wait_until(lambda: server.metric("mlx_in_flight") == 1)
    server.process.send_signal(number)
    wait_until(lambda: refused(server))
    assert server.process.wait(20) == 0
    caller.join(10)
    assert replies[0].status == 200


def refused(server):
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5):
            return False
    except ConnectionRefusedError:
        return True


def test_who_still_waits_when_the_patience_is_over_gets_503(serve):
    server = serve("countdown", request_timeout_ms=2_000, drain_timeout_s=0.3)
    replies = []
    caller = threading.Thread(target=lambda: replies.append(server.infer(slow(2**40))))
    caller.start()
    wait_until(lambda: server.metric("mlx_in_flight") == 1)
    assert server.stop() == 0
    caller.join(10)
    assert (replies[0].status, replies[0].headers["retry-after"]) == (503, "1")


def test_a_second_signal_cuts_the_drain_short(serve):
    server = serve("table", drain_delay_s=60.0)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.get("/readyz").status == 503)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 10


def test_a_second_signal_ends_the_run_that_goes_on(serve):
    server = serve("countdown", request_timeout_ms=60_000)
    replies = []
    caller = threading.Thread(target=lambda: replies.append(server.infer(slow(2**40))))
    caller.start()
    wait_until(lambda: server.metric("mlx_in_flight") == 1)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: refused(server))
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 10
    caller.join(10)
    assert replies[0].status == 503


def test_a_run_whose_client_has_gone_is_ended(serve):
    server = serve("countdown", request_timeout_ms=60_000)
    body = orjson.dumps({"inputs": [{"name": "n", **slow(2**40)["n"]}]})
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as gone:
        gone.sendall(b"POST /v2/models/countdown/infer HTTP/1.1\r\nHost: x\r\n")
        gone.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        wait_until(lambda: server.metric("mlx_in_flight") == 1)
    wait_until(lambda: server.metric("mlx_in_flight") == 0)
    assert server.infer(slow(3)).status == 200
    assert server.metric("mlx_stopped_batches_total") == 1


def test_an_idle_connection_does_not_hold_up_the_end(serve):
    server = serve("table")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as idle:
        idle.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10


def test_work_for_a_client_that_has_gone_is_dropped(serve, tmp_path):
    server = serve("countdown", max_batch_size=1, request_timeout_ms=30_000, traffic=tmp_path / "log")
    trips = trips_for(server, 0.4)
    body = orjson.dumps({"inputs": [{"name": "n", **slow(trips)["n"]}]})
    message = b"POST /v2/models/countdown/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for _ in range(12):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(message + body)
    wait_until(lambda: server.metric("mlx_queue_rows") == 0)
    assert server.metric("mlx_abandoned_total") >= 8
    wait_until(lambda: server.metric("mlx_in_flight") == 0)
    assert server.metric("mlx_failures_total", reason="abandoned") >= 8
    assert server.metric("mlx_predictions_total") == server.metric("mlx_traffic_served_total")
    assert server.stop() == 0
    records, _ = read_log(tmp_path / "log")
    left = [record for record in records if record.status == 499]
    assert len(left) >= 8
    assert all(record.error.startswith("The client left") and record.inputs for record in left)


def test_the_log_holds_what_was_asked_and_answered(serve, tmp_path, load):
    server = serve("table", traffic=tmp_path / "log")
    server.post("/predict", ROWS, {"X-Request-Id": "first"})
    server.infer(X, id="second")
    server.infer({"x": X["x"] | {"data": [1, 2, 3]}})
    assert server.post("/predict", {"rows": [ROWS["rows"][0]] * 33}).status == 200
    assert server.stop() == 0
    records, stats = read_log(tmp_path / "log")
    predict, infer, malformed, long = sorted(records, key=lambda record: record.seq)
    assert stats.records == 4
    assert (malformed.status, malformed.rows, malformed.inputs, malformed.hashes) == (400, 0, {}, {})
    assert malformed.error.startswith("Input x")
    model = load("table")
    assert (predict.request_id, predict.endpoint, predict.status, predict.rows) == (
        "first",
        "predict",
        200,
        1,
    )
    assert (predict.model, predict.version, predict.digest) == ("table", "3", model.digest)
    raw = {name: decode_array(value) for name, value in predict.inputs.items()}
    assert {name: column.tolist() for name, column in raw.items()} == {"a": [1], "b": [2], "c": [3], "d": [4]}
    answers = model.predict(raw)
    for name, column in answers.columns.items():
        assert decode_array(predict.outputs[name]).tolist() == column.tolist()
    assert predict.hashes == {
        "raw": stage_hash(raw),
        "tensor": stage_hash(model.encode(raw)),
        "logits": stage_hash(answers.tensors),
        "output": stage_hash(answers.columns),
    }
    assert set(predict.timings_ms) == {"ingress", "queue", "pre", "inference", "post", "egress", "total"}
    assert infer.endpoint == "infer"
    np.testing.assert_array_equal(decode_array(infer.inputs["x"]), np.array([[1, 2, 3, 4]], np.float32))
    assert decode_array(infer.outputs["probabilities"]).dtype == np.float32
    assert (long.rows, long.batch_rows) == (33, 32)
    assert long.digest == infer.digest == predict.digest


def test_tensors_of_a_share_of_the_requests_are_logged_as_well(serve, tmp_path):
    server = serve("table", traffic=tmp_path / "log", traffic_stages=0.3)
    for number in range(60):
        server.post("/predict", ROWS, {"X-Request-Id": f"r-{number}"})
    server.infer(X)
    server.stop()
    records, _ = read_log(tmp_path / "log")
    chosen = {record.request_id: record for record in records if record.stages}
    assert set(chosen) == {f"r-{number}" for number in range(60) if is_sampled(f"r-{number}", 0.3)}
    for record in chosen.values():
        hashes = {
            stage: stage_hash({name: decode_array(one) for name, one in arrays.items()})
            for stage, arrays in record.stages.items()
        }
        assert hashes == {stage: record.hashes[stage] for stage in ("tensor", "logits")}
        assert record.runtime.startswith("mlx/")
        assert record.runtime.endswith(" cpu")


def test_a_request_that_the_model_refuses_is_logged_with_its_inputs(serve, tmp_path):
    server = serve("lookup", traffic=tmp_path / "log")
    server.infer({"i": {"datatype": "INT64", "shape": [1, 1], "data": [99]}})
    server.stop()
    (record,), _ = read_log(tmp_path / "log")
    assert (record.status, record.rows, record.outputs) == (400, 1, {})
    assert "cannot run" in record.error
    assert decode_array(record.inputs["i"]).tolist() == [[99]]


def test_a_request_too_large_for_the_log_is_logged_without_its_numbers(serve, tmp_path):
    server = serve("kinds", traffic=tmp_path / "log")
    wide = np.ones((2, 70_000), "<f4")
    tensors = {"t": b"\0\0\0\0" * 2, "f": wide.tobytes(), "i": bytes(16), "u": bytes(2), "b": bytes(2)}
    tensors |= {"d": bytes(16), "h": bytes(4)}
    kinds = {"t": "BYTES", "f": "FP32", "i": "INT64", "u": "UINT8", "b": "BOOL", "d": "FP64", "h": "FP16"}
    shapes = {"t": [2, 1], "f": [2, 70_000]}
    document = orjson.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": kinds[name],
                    "shape": shapes.get(name, [2]),
                    "parameters": {"binary_data_size": len(raw)},
                }
                for name, raw in tensors.items()
            ],
            "parameters": {"binary_data_output": True},
        }
    )
    length = {"Inference-Header-Content-Length": str(len(document))}
    reply = server.request("POST", "/v2/models/kinds/infer", document + b"".join(tensors.values()), length)
    assert reply.status == 200
    server.stop()
    (record,), _ = read_log(tmp_path / "log")
    assert (record.truncated, record.inputs, record.rows) == (True, {}, 2)
    assert set(record.hashes) == {"tensor", "logits"}


@pytest.mark.parametrize("flag", ["port", "admin_port"])
def test_a_port_that_is_taken_is_a_usage_error_that_names_it(load, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)) as caught:
            run(load("table"), ServingSettings(**{flag: port}), None, on_ready=lambda _: None)
    assert flag.replace("_", "-") in caught.value.hint


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_that_is_not_ours_is_a_usage_error(load, host):
    with pytest.raises(UsageError, match="Cannot listen"):
        run(load("table"), ServingSettings(host=host), None, on_ready=lambda _: None)


def test_the_admin_listener_stays_on_this_machine(load):
    with pytest.raises(UsageError, match="admin listener"):
        run(load("table"), ServingSettings(admin_host="0.0.0.0"), None, on_ready=lambda _: None)  # noqa: S104


def test_a_model_that_does_not_answer_as_registered_never_gets_ready(tmp_path, packages):
    x = np.zeros((1, 4), np.float32)
    wrong = {"inputs": {"x": encode_array(x)}, "outputs": {"probabilities": encode_array(np.ones((1, 3)))}}
    folder = tmp_path / "package"
    folder.mkdir()
    for file in packages["affine"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "golden.jsonl").write_bytes(orjson.dumps(wrong) + b"\n")
    seal(folder)
    model = Model.load(open_package(folder), name="m", version="1", device="cpu")
    ready = []
    with pytest.raises(GateFailedError, match="m/1 does not answer"):
        run(model, ServingSettings(), None, on_ready=ready.append)
    assert ready == []


def test_a_small_server_imports_no_library_that_it_does_not_need(packages):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from mlx_platform.core.settings import ServingSettings\n"
        "from mlx_platform.inference.model import Model\n"
        "from mlx_platform.inference.package import open_package\n"
        "from mlx_platform.serving.server import run\n"
        "import os, signal\n"
        "model = Model.load(open_package(Path(sys.argv[1])), name='m', version='1', device='cpu')\n"
        "run(model, ServingSettings(), None, on_ready=lambda _: os.kill(os.getpid(), signal.SIGTERM))\n"
        "heavy = 'mlflow onnx pandas pyarrow sklearn scipy cv2 tokenizers jinja2 starlette rich typer'\n"
        "print(*sorted(set(heavy.split()) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(packages["table"])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
