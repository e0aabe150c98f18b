"""The registry behind an MLflow server, and behind servers that are none."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from projects import Project, copy_project, evidence_of
from support import clean_environment

from mlx_platform.core.errors import ConflictError, MlxError, NotFoundError, UnavailableError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage


@dataclass
class Server:
    """A tracking server in a process of its own, and a project that uses it."""

    uri: str
    process: subprocess.Popen[bytes]
    project: Project

    def catalog(self, timeout: float = 30) -> Catalog:
        overrides = {"registry.uri": self.uri, "registry.timeout": timeout}
        return Catalog(load_settings(start=self.project.folder, environment={}, overrides=overrides))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    project = copy_project(template, folder / "project")
    port = free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{project.database}", "--workers", "1"),
        *("--artifacts-destination", str(folder / "served")),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=clean_environment(
                MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"
            ),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    uri = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{uri}/health", process, folder / "log")
        yield Server(uri, process, project)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_everything_works_over_http(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    catalog = server.catalog()

    version, created = catalog.register(
        "letters", server.project.variant("http"), Lineage(params={"lr": "1"})
    )
    again, created_again = catalog.register("letters", server.project.package(1), Lineage())
    reused = catalog.register("letters", server.project.package(1), Lineage())

    assert (version.number, created, again.number, created_again) == (1, True, 2, True)
    assert reused[0].number == 2
    assert not reused[1]
    assert [found.number for found in catalog.versions("letters")] == [2, 1]
    assert {model.name for model in catalog.models()} == {"digits", "letters"}

    event = catalog.move("letters", "production", 1, expect=None, kind="promote", actor="ada")
    assert event is not None
    with pytest.raises(ConflictError):
        catalog.move("letters", "production", 2, expect=None, kind="promote", actor="bob")
    assert catalog.move("letters", "production", 2, expect=1, kind="promote", actor="bob") is not None
    assert [move.to_version for move in catalog.history("letters")] == [2, 1]
    assert catalog.resolve("letters@production").aliases == ("production",)
    assert catalog.resolve("letters@production~1").number == 1
    assert catalog.resolve(version.label).number == 1
    assert catalog.differences("letters") == ()

    catalog.record(version, evidence_of(version))
    assert catalog.evidence(version)["evaluation"].verdict == "pass"

    package = catalog.fetch(version)
    assert package.digest == version.digest
    assert package.model_path.read_bytes() == (server.project.folder / "model-1.onnx").read_bytes()
    assert capfd.readouterr() == ("", "")


def test_what_is_not_there_is_not_found_over_http(server: Server) -> None:
    catalog = server.catalog()

    for ref in ("digits/9", "nothing/1", "digits@staging", "digits-20200101-001", "nothing"):
        with pytest.raises(NotFoundError):
            catalog.resolve(ref)


def test_a_server_that_hangs_is_given_up_on(server: Server) -> None:
    catalog = server.catalog(timeout=2)
    started = time.monotonic()
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(UnavailableError):
            catalog.resolve("digits/1")
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)

    # MLflow's own patience is minutes.
    assert time.monotonic() - started < 60


@pytest.fixture
def imposter() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def answers(status: int, body: bytes) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<!doctype html><title>Welcome</title>"),
        (404, b"<!doctype html><title>Not found</title>"),
        (403, b"<!doctype html><title>Sign in</title>"),
        (500, b"oops"),
        (200, b'{"model_version": {"name": '),
        (200, b'{"model_versions": [{"name": "digits", "version": "zero"}], "registered_models": "none"}'),
        (200, b"[]"),
        (401, b'{"error_code": "UNAUTHENTICATED", "message": "who are you?"}'),
    ],
)
def test_a_server_that_is_no_registry_is_unavailable(
    imposter: http.server.ThreadingHTTPServer, tmp_path: Path, status: int, body: bytes
) -> None:
    imposter.RequestHandlerClass = answers(status, body)
    uri = f"http://127.0.0.1:{imposter.server_port}"
    catalog = Catalog(load_settings(start=tmp_path, environment={}, overrides={"registry.uri": uri}))

    for ask in (catalog.models, lambda: catalog.resolve("digits/1")):
        with pytest.raises(MlxError) as caught:
            ask()
        assert caught.value.exit_code in {9, 10}
        assert "\n" not in caught.value.message


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}", "postgresql://ada:secret@127.0.0.1:{port}/mlx"])
def test_where_nobody_listens_the_registry_is_unavailable(tmp_path: Path, uri: str) -> None:
    overrides = {"registry.uri": uri.format(port=free_port())}
    catalog = Catalog(load_settings(start=tmp_path, environment={}, overrides=overrides))

    with pytest.raises(UnavailableError) as caught:
        catalog.resolve("digits/1")

    assert "secret" not in caught.value.message
