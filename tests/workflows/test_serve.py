"""`mlx serve` as a user starts it: a process, an address, a signal."""

import http.client
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import onnx
import orjson
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.log import read_log
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.serve import serve


@pytest.fixture
def model_file(tmp_path):
    """y = 2 x."""
    two = numpy_helper.from_array(np.array([2], np.float32), "two")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [two],
    )
    path = tmp_path / "double.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@contextmanager
def serving(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_platform.cli", "serve", *map(str, arguments), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == b"}":
                break
        assert lines, process.stderr.read().decode()
        yield process, orjson.loads(b"".join(lines))["data"]
    finally:
        process.kill()
        process.communicate()


def test_a_file_is_served_under_its_stem_as_version_0_and_its_traffic_is_logged(tmp_path, model_file):
    with serving(model_file, "--traffic", tmp_path / "log") as (process, data):
        assert (data["model"], data["version"], data["pid"]) == ("double", "0", process.pid)
        connection = http.client.HTTPConnection(data["url"].removeprefix("http://"), timeout=20)
        connection.request("POST", "/predict", b'{"rows":[[21]]}')
        answer = orjson.loads(connection.getresponse().read())
        assert answer["predictions"] == [{"value": 42.0}]
        connection.request("GET", "/v2/models/double/versions/0")
        assert orjson.loads(connection.getresponse().read())["versions"] == ["0"]
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    (record,), _ = read_log(tmp_path / "log", model="double", version="0")
    assert (record.status, record.rows) == (200, 1)


def test_the_log_can_be_json_and_nothing_else(model_file):
    with serving(model_file, "--log-format", "json") as (process, data):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    lines = [orjson.loads(line) for line in errors.splitlines()]
    ready = next(line for line in lines if line["message"].startswith("Ready on "))
    assert (ready["fields"]["url"], ready["fields"]["digest"]) == (data["url"], data["digest"])
    assert {"time", "local_time", "level", "pid"} <= ready.keys()
    assert "stopped cleanly" in lines[-1]["message"]


def test_the_processes_of_a_server_write_lines_of_the_same_form(model_file, monkeypatch):
    monkeypatch.setenv("MLX_ADMIN_TOKEN", "a-token-of-a-test")
    with serving(model_file, "--log-format", "json", "--processes", "2") as (process, data):
        connection = http.client.HTTPConnection(data["admin_url"].removeprefix("http://"), timeout=20)
        connection.request("PUT", "/debug/capture", headers={"Authorization": "Bearer a-token-of-a-test"})
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    lines = [orjson.loads(line) for line in errors.splitlines()]
    started = [line for line in lines if line["message"].startswith("Debug mode is on")]
    assert len({line["pid"] for line in started} - {process.pid}) == 2


def test_what_cannot_be_served_is_said_in_one_sentence(mlx, model_file, tmp_path):
    outcome = mlx("serve", tmp_path / "nothing.onnx")
    assert outcome.code == 3
    assert "nothing.onnx" in outcome.err
    outcome = mlx("serve", model_file, "--host", "203.0.113.7")
    assert outcome.code == 2
    assert "Cannot listen" in outcome.err
    outcome = mlx("serve", model_file, "--log-format", "yaml")
    assert outcome.code == 2
    assert "--log-format: log_format = 'yaml' is not possible: it is one of text, json." in outcome.err


def test_an_alias_that_mlflow_has_elsewhere_is_said_at_the_start_and_in_the_result(project, caplog):
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    project.catalog._backend.store.set_alias("digits", "production", 1)

    ready = []
    result = serve(
        project.context,
        "digits@production",
        device="cpu",
        port=0,
        on_ready=lambda addresses: (ready.append(addresses), os.kill(os.getpid(), signal.SIGTERM)),
    )

    (warning,) = result.warnings
    assert (result.data["version"], ready[0].version) == ("2", "2")
    assert "digits@production is 1, the journal says 2" in warning
    assert warning in caplog.messages


def test_several_processes_serve_as_one(tmp_path, model_file):
    with serving(model_file, "--processes", "2", "--grpc-port", "-1", "--traffic", tmp_path / "log") as (
        process,
        data,
    ):
        connection = http.client.HTTPConnection(data["url"].removeprefix("http://"), timeout=20)
        connection.request("POST", "/predict", b'{"rows":[[21]]}')
        assert orjson.loads(connection.getresponse().read())["predictions"] == [{"value": 42.0}]
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    (record,), _ = read_log(tmp_path / "log", model="double", version="0")
    assert (record.status, record.rows) == (200, 1)


def test_what_killed_workers_counted_is_said_to_be_missing(model_file):
    with serving(model_file, "--processes", "2", "--grpc-port", "-1") as (process, data):
        workers = readiness(data)["workers"]
        os.kill(workers[0]["pid"], signal.SIGKILL)
        for _ in range(1200):
            if [worker["starts"] for worker in readiness(data)["workers"] if worker["ready"]] == [2, 1]:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert b"warning: 1 worker ended early: what it counted is not in these numbers." in said


def readiness(data):
    connection = http.client.HTTPConnection(data["admin_url"].removeprefix("http://"), timeout=20)
    with closing(connection):
        connection.request("GET", "/readyz")
        return orjson.loads(connection.getresponse().read())


def test_a_fallback_that_is_the_version_itself_is_refused(project):
    settings = project.settings
    degrade = replace(settings.serving.degrade, fallback="digits/1")
    serving_settings = replace(settings.serving, degrade=degrade)
    context = make_context(replace(settings, serving=serving_settings))

    with pytest.raises(UsageError, match="fallback digits/1 is the version that is served"):
        serve(context, "digits/1", device="cpu", port=0, on_ready=lambda _: None)
