"""Real servers that follow an alias, under load, while it moves."""

import http.client
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlx_platform.core.settings import load_settings
from mlx_platform.inference.build import build_package
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage
from mlx_platform.traffic.log import read_log

BODY = orjson.dumps({"rows": [[1.0, 2.0, 3.0, 4.0]]})


class Server:
    """A `mlx serve digits@production --follow` process."""

    def __init__(self, process, addresses):
        self.process = process
        self.url, self.admin_url = (addresses[name].removeprefix("http://") for name in ("url", "admin_url"))

    def get(self, path):
        connection = http.client.HTTPConnection(self.admin_url, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def following(self):
        """How each process stands with the alias."""
        document = orjson.loads(self.get("/debug/config"))
        if "following" in document:
            return [document["following"]]
        return [each["answer"]["following"] for each in document["workers"]]

    def serve_all(self, version):
        return all(each["serves"] == version for each in self.following())

    def metric(self, name, **labels):
        families = text_string_to_metric_families(self.get("/metrics").decode())
        samples = [sample for family in families for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


class Client(threading.Thread):
    """Asks again and again; counts the answers by status and version."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.answers = Counter()
        self.failed = []
        self.by_version = {}
        self._server = server
        self._ended = threading.Event()

    def run(self):
        connection = http.client.HTTPConnection(self._server.url, timeout=60)
        while not self._ended.is_set():
            try:
                connection.request("POST", "/predict", BODY, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                document = orjson.loads(answer.read())
            except OSError as error:
                self.failed.append(repr(error))
                connection.close()
                continue
            version = answer.headers["X-Mlx-Version"]
            self.answers[answer.status, version] += 1
            if answer.status == 200:
                said = (document["version"], orjson.dumps(document["predictions"]))
                self.by_version.setdefault(version, set()).add(said)
            time.sleep(0.002)
        connection.close()

    def stop(self):
        self._ended.set()
        self.join(60)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def serving(project, *options, ref="digits@production", **environment):
    command = [sys.executable, "-m", "mlx_platform.cli", "serve", ref, "--follow"]
    log = (project.folder / "server.err").open("wb")
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--json", *options],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=log,
        env=dict(os.environ) | {"MLX_SERVING_INTRA_OP_THREADS": "1"} | environment,
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == b"}":
                break
        assert lines, (project.folder / "server.err").read_text()
        yield Server(process, orjson.loads(b"".join(lines))["data"])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        log.close()


@pytest.mark.parametrize("processes", [0, 2])
def test_no_request_fails_while_the_alias_moves(project, processes):
    traffic = project.folder / "traffic"
    with serving(project, "--processes", str(processes), "--traffic", str(traffic)) as server:
        clients = [Client(server) for _ in range(2)]
        for client in clients:
            client.start()
        for version in ("2", "1", "3", "1"):
            project.catalog.move("digits", "production", int(version), kind="promote", actor="ada")
            wait_until(lambda version=version: server.serve_all(version))
            asked = [sum(client.answers.values()) for client in clients]
            wait_until(
                lambda asked=asked: all(
                    sum(client.answers.values()) > before + 3
                    for client, before in zip(clients, asked, strict=True)
                )
            )
        for client in clients:
            client.stop()
        answers = sum((client.answers for client in clients), Counter())
        assert [client.failed for client in clients] == [[], []]
        assert {status for status, _ in answers} == {200}
        assert {version for _, version in answers} == {"1", "2", "3"}
        for client in clients:
            for version, said in client.by_version.items():
                assert {number for number, _ in said} == {version}
                assert len(said) == 1  # the same answer of one version, whenever it was asked
        assert server.metric("mlx_reloads_total") == 4 * max(1, processes)
        assert server.metric("mlx_reload_failures_total") == 0
        assert server.metric("mlx_ready") == max(1, processes)
        assert server.metric("mlx_model_info", version="1", route="stable") == max(1, processes)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    logged = Counter(record.version for record in read_log(traffic)[0])
    answered = Counter()
    for (_, version), count in answers.items():
        answered[version] += count
    assert logged == answered


def test_a_worker_that_is_started_anew_serves_what_the_alias_means(project):
    with serving(project, "--processes", "1") as server:
        project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
        wait_until(lambda: server.serve_all("2"))
        (worker,) = orjson.loads(server.get("/readyz"))["workers"]
        cache = os.environ["MLX_CACHE_DIR"]
        wait_until(lambda: any(b'"number": 2' in note.read_bytes() for note in notes(cache)))
        project.database.rename(project.database.with_suffix(".away"))
        os.kill(worker["pid"], signal.SIGKILL)
        wait_until(lambda: orjson.loads(server.get("/readyz"))["workers"][0]["starts"] == 2)
        wait_until(lambda: orjson.loads(server.get("/readyz"))["ready"])
        (following,) = server.following()
        assert following["serves"] == "2"
        assert following["registry"] != "ok"


def notes(cache):
    from pathlib import Path

    return Path(cache).rglob("*.json")


def test_the_memory_of_what_was_replaced_is_given_back(project):
    first, second = (large_version(project, scale) for scale in (1.0, 2.0))
    project.catalog.move("digits", "production", first, kind="promote", actor="ada")
    with serving(project, MLX_SERVING_KEEP_WARM_S="0") as server:
        before = server.metric("process_resident_memory_bytes")
        for number in (second, first) * 3:
            project.catalog.move("digits", "production", number, kind="promote", actor="ada")
            wait_until(lambda number=number: server.serve_all(str(number)))
        wait_until(lambda: server.metric("mlx_loaded_versions") == 1)
        # Of five versions that were replaced meanwhile.
        wait_until(lambda: server.metric("process_resident_memory_bytes") < before + 2 * WEIGHTS)


WEIGHTS = 24 * 1024**2


def large_version(project, scale):
    """Register a version with so many bytes of weights."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    width = int((WEIGHTS / 4) ** 0.5)  # of a square: what a row takes while it runs is small beside it
    shapes = ((4, width), (width, width), (width, 3))
    inner = [np.full(shape, scale / width, np.float32) for shape in shapes]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h"]),
            helper.make_node("MatMul", ["h", "w1"], ["i"]),
            helper.make_node("MatMul", ["i", "w2"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"]),
        ],
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(values, f"w{number}") for number, values in enumerate(inner)],
    )
    path = project.folder / f"large-{scale}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    package = build_package(path, project.folder / "packages" / path.stem).package
    lineage = Lineage(dataset_version="d", dataset_fingerprint="", git_commit="0" * 40, params={}, metrics={})
    return project.catalog.register("digits", package, lineage)[0].number


def test_a_registry_that_is_locked_costs_no_request_and_is_followed_afterwards(project):
    with serving(project, MLX_REGISTRY_TIMEOUT="0.2") as server:
        client = Client(server)
        client.start()
        wait_until(lambda: server.metric("mlx_registry_up") == 1)
        with closing(sqlite3.connect(project.database, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            goes_on_without_a_registry(server, client)
            holder.execute("ROLLBACK")
        follows_again(server, client, project.catalog, "digits")


class Relay(ThreadingHTTPServer):
    """Between a server and its registry: passes everything on, or answers as it is told to.

    `mode` is "pass"; "silent", which answers nothing; "gone", which hangs up; or the body of every answer.
    """

    daemon_threads = True

    def __init__(self, registry):
        super().__init__(("127.0.0.1", 0), RelayHandler)
        self.registry = registry.removeprefix("http://")
        self.mode = "pass"
        self.spoken = threading.Event()
        self.asked = 0
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"

    def turn(self, mode):
        self.spoken.set()
        self.spoken = threading.Event()
        self.mode = mode


class RelayHandler(BaseHTTPRequestHandler):
    def relay(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        mode, spoken = self.server.mode, self.server.spoken
        self.server.asked += 1
        self.close_connection = True
        if mode == "silent":
            spoken.wait(60)
        elif mode == "pass":
            connection = http.client.HTTPConnection(self.server.registry, timeout=60)
            headers = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            self.answer(answer.status, answer.headers.get("Content-Type") or "", answer.read())
            connection.close()
        elif mode != "gone":
            self.answer(200, "application/json", mode.encode())

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = relay  # noqa: N815

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ODD = (
    "silent",
    "gone",
    "<html><body>Sign in</body></html>",
    '{"registered_model": {"name": "foll',
    "null",
)
EMPTY = '{"model_versions": [{"name": "followed", "version": "0", "source": "/etc"}]}'


def test_whatever_a_registry_answers_costs_no_request_and_it_is_followed_afterwards(project, mlflow_server):
    overrides = {"registry.uri": mlflow_server, "registry.timeout": 30}
    catalog = Catalog(load_settings(start=project.folder, environment={}, overrides=overrides))
    for number in (1, 2):
        catalog.register("followed", project.package(number), Lineage())
    catalog.move("followed", "production", 1, kind="promote", actor="ada")
    relay = Relay(mlflow_server)
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    with serving(
        project, ref="followed@production", MLX_REGISTRY=relay.uri, MLX_REGISTRY_TIMEOUT="1"
    ) as server:
        client = Client(server)
        client.start()
        for mode in ODD:
            wait_until(lambda: server.metric("mlx_registry_up") == 1)
            relay.turn(mode)
            goes_on_without_a_registry(server, client)
            relay.turn("pass")
        relay.turn(EMPTY)  # in proper form: nobody holds the alias any more
        wait_until(lambda: server.following()[0]["target"] is None)
        assert server.following()[0]["serves"] == "1"
        relay.turn("pass")
        follows_again(server, client, catalog, "followed")
    relay.turn("gone")
    relay.shutdown()
    relay.server_close()


def goes_on_without_a_registry(server, client):
    """The server notices, says why and since when, and answers as before."""
    wait_until(lambda: server.metric("mlx_registry_up") == 0)
    before = sum(client.answers.values())
    wait_until(lambda: sum(client.answers.values()) > before + 20)
    (following,) = server.following()
    assert following["registry"] != "ok"
    assert (following["serves"], following["heard_s_ago"] > 0) == ("1", True)
    assert server.metric("mlx_ready") == 1


def follows_again(server, client, catalog, name):
    catalog.move(name, "production", 2, kind="promote", actor="ada")
    wait_until(lambda: server.serve_all("2"))
    client.stop()
    assert client.failed == []
    assert {status for status, _ in client.answers} == {200}
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


@pytest.mark.parametrize("ref", ["digits/1", "digits", "digits@production~1", "./model.onnx"])
def test_only_an_alias_can_be_followed(mlx, project, monkeypatch, ref):
    monkeypatch.chdir(project.folder)
    outcome = mlx("serve", ref, "--follow")
    assert outcome.code == 2
    assert "cannot be followed" in outcome.err
    assert "@production --follow" in outcome.err
