"""Servers that hang, drip, close, flood and lie: an exchange ends in time, in an answer or in an error."""

import io
import os
import resource
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from peers import Talk, answer, peer, saying

from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError, UnavailableError, UsageError
from mlx_platform.registry.refusals import LostError
from mlx_platform.registry.rest_calls import ANSWER_CAP, Api
from mlx_platform.registry.rest_login import login


def api(uri: str, timeout: float = 5, **environment: str) -> Api:
    return Api(login(uri, environment), shown=uri, timeout=timeout)


def ask(uri: str, timeout: float = 5, **environment: str) -> object:
    return api(uri, timeout, **environment).read("runs/get", {"run_id": "1"}, "read the run 1")


def hang(_connection: socket.socket, _head: str, _body: bytes) -> None:
    """Say nothing."""


def drip(connection: socket.socket, _head: str, _body: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.01)


def drip_headers(connection: socket.socket, _head: str, _body: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.01)


def go_on(connection: socket.socket, _head: str, _body: bytes) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


@pytest.mark.parametrize("talk", [hang, drip, drip_headers, go_on])
def test_a_server_that_does_not_come_to_an_end_is_given_up_on(talk: Talk) -> None:
    with peer(talk) as server:
        started = time.monotonic()
        with pytest.raises(UnavailableError, match=r"no answer within 0\.3 s"):
            ask(server.uri, timeout=0.3)

        assert 0.25 < time.monotonic() - started < 30


def close(connection: socket.socket, _head: str, _body: bytes) -> bool:
    connection.sendall(b"")
    return False


def close_in_headers(connection: socket.socket, _head: str, _body: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-")
    return False


def close_in_body(connection: socket.socket, _head: str, _body: bytes) -> bool:
    connection.sendall(answer(200, b'{"run": {}}')[:-2])
    return False


def close_in_chunk(connection: socket.socket, _head: str, _body: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{")
    return False


def babble(connection: socket.socket, _head: str, _body: bytes) -> bool:
    connection.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
    return False


@pytest.mark.parametrize("talk", [close, close_in_body, close_in_chunk, babble])
def test_a_server_that_goes_away_is_asked_again_and_then_given_up_on(talk: Talk) -> None:
    with peer(talk) as server:
        with pytest.raises(UnavailableError) as caught:
            ask(server.uri, timeout=1)

        assert len(server.requests) > 1
        assert "\n" not in caught.value.message


def test_a_write_that_may_not_be_done_twice_is_done_once() -> None:
    with peer(close) as server:
        with pytest.raises(LostError):
            api(server.uri).write("runs/create", {}, "start a run")

        assert len(server.requests) == 1


def test_what_is_lost_or_busy_once_is_read_all_the_same() -> None:
    said = iter([None, answer(503, b"{}"), answer(200, b'{"run": {}}')])

    def talk(connection: socket.socket, _head: str, _body: bytes) -> bool:
        words = next(said)
        connection.sendall(words or b"")
        return words is not None

    with peer(talk) as server:
        assert ask(server.uri) == {"run": {}}
        assert len(server.requests) == 3


def test_one_connection_serves_until_it_is_closed() -> None:
    ports: set[int] = set()
    ended = threading.Event()

    def talk(connection: socket.socket, _head: str, _body: bytes) -> bool:
        ports.add(connection.getpeername()[1])
        connection.sendall(answer(200, b"{}"))
        if len(server.requests) != 2:
            return True
        connection.shutdown(socket.SHUT_WR)
        ended.set()
        return False

    with peer(talk) as server:
        client = api(server.uri)
        for _ in range(2):
            client.read("runs/get", {}, "read")
        assert len(ports) == 1
        # The second answer was the connection's last, which a write that is done once must survive as well.
        assert ended.wait(timeout=30)
        for _ in range(2):
            client.write("runs/create", {}, "start a run")

        assert len(ports) == 2


def test_an_answer_without_an_end_is_refused() -> None:
    def flood(connection: socket.socket, _head: str, _body: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(2 * ANSWER_CAP >> 20):
            connection.sendall(bytes(1 << 20))
        return False

    with peer(flood) as server, pytest.raises(IntegrityError, match="which no registry does"):
        ask(server.uri, timeout=60)


def test_an_answer_that_is_announced_as_too_large_is_not_even_read() -> None:
    def announce(connection: socket.socket, _head: str, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")

    with peer(announce) as server, pytest.raises(IntegrityError):
        ask(server.uri, timeout=60)


@pytest.mark.parametrize("announced", [True, False])
def test_a_refusal_of_any_size_is_a_refusal(announced: bool) -> None:
    def page(connection: socket.socket, _head: str, _body: bytes) -> bool:
        length = f"Content-Length: {64 << 20}\r\n" if announced else ""
        connection.sendall(f"HTTP/1.1 500 Oops\r\nContent-Type: text/html\r\n{length}\r\n".encode())
        connection.sendall(b"<p>" * (1 << 20))
        return False

    with peer(page) as server:
        with pytest.raises(UnavailableError, match="status 500") as caught:
            api(server.uri).write("runs/create", {}, "start a run")

        assert caught.value.exit_code == 9


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(UnavailableError, match="Connection refused"):
        ask(f"http://127.0.0.1:{port}")


def test_a_name_that_nobody_has_is_said_in_one_sentence() -> None:
    with pytest.raises(UnavailableError) as caught:
        ask("http://no-such-host.invalid", timeout=10)

    assert "\n" not in caught.value.message


# Files


def test_a_transfer_may_take_longer_than_an_answer_while_bytes_move() -> None:
    def slowly(connection: socket.socket, _head: str, _body: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n")
        for _ in range(8):
            connection.sendall(bytes(50_000))
            time.sleep(0.05)
        return False

    sink = io.BytesIO()
    with peer(slowly) as server:
        api(server.uri, timeout=0.2).fetch("1/x", sink, 400_000, "download")

    assert len(sink.getvalue()) == 400_000


def test_a_transfer_that_drips_is_given_up_on() -> None:
    with peer(drip) as server, pytest.raises(UnavailableError, match="no answer within"):
        api(server.uri, timeout=0.3).fetch("1/x", io.BytesIO(), 1 << 30, "download")


def test_a_file_of_more_than_it_may_have_is_refused() -> None:
    with peer(saying(200, bytes(11))) as server:
        with pytest.raises(IntegrityError, match="more than 10 bytes"):
            api(server.uri).fetch("1/x", io.BytesIO(), 10, "download")
        api(server.uri).fetch("1/x", io.BytesIO(), 11, "download")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "No such artifact"}'),
        (500, b'{"error_code": "INTERNAL_ERROR", "message": "While downloading:\\n[Errno 2] No such file"}'),
        (500, b'{"error_code": "INTERNAL_ERROR", "message": "An error occurred (404) in HeadObject"}'),
    ],
)
def test_a_file_that_is_not_there_is_not_found(status: int, body: bytes) -> None:
    with peer(saying(status, body)) as server, pytest.raises(NotFoundError):
        api(server.uri).fetch("1/x", io.BytesIO(), 10, "download")


def test_a_file_is_sent_as_it_is() -> None:
    content = bytes(range(256)) * 1000
    with peer(saying(200, b"{}")) as server:
        api(server.uri).upload("1/a b/ü.bin", io.BytesIO(content), len(content), "upload")

        ((head, body),) = server.requests
    assert head.startswith("PUT /api/2.0/mlflow-artifacts/artifacts/1/a%20b/%C3%BC.bin HTTP/1.1")
    assert body == content


# Who one is


@pytest.mark.parametrize(
    ("user", "environment", "header"),
    [
        ("", {}, None),
        ("ada:s%3Acret@", {"MLFLOW_TRACKING_TOKEN": "t"}, "Basic YWRhOnM6Y3JldA=="),
        ("", {"MLFLOW_TRACKING_USERNAME": "ada", "MLFLOW_TRACKING_PASSWORD": "x"}, "Basic YWRhOng="),
        ("", {"MLFLOW_TRACKING_TOKEN": "t0ken"}, "Bearer t0ken"),
    ],
)
def test_credentials_are_sent(user: str, environment: dict[str, str], header: str | None) -> None:
    with peer(saying(200, b"{}")) as server:
        ask(server.uri.replace("//", f"//{user}"), **environment)

        (head,) = server.heads
    sent = [line for line in head.splitlines() if line.startswith("Authorization: ")]
    assert sent == ([f"Authorization: {header}"] if header else [])


def test_a_path_before_the_api_and_a_workspace_are_sent() -> None:
    with peer(saying(200, b"{}")) as server:
        ask(f"{server.uri}/team/mlflow/", MLFLOW_WORKSPACE="blue")

        (head,) = server.heads
    assert head.startswith("GET /team/mlflow/api/2.0/mlflow/runs/get?run_id=1 HTTP/1.1\n")
    assert "X-MLFLOW-WORKSPACE: blue" in head


@pytest.mark.parametrize(
    ("uri", "environment"),
    [
        ("http://host:99999", {}),
        ("http://host", {"MLFLOW_TRACKING_TOKEN": "a\nb"}),
        ("http://host", {"http_proxy": "socks5://proxy:1"}),
        ("http://" + "a" * 300 + "é", {}),
    ],
)
def test_an_address_that_cannot_be_used_is_said(uri: str, environment: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        login(uri, environment)

    assert "\n" not in caught.value.message


def test_a_proxy_is_asked_for_what_lies_behind_it() -> None:
    with peer(saying(200, b"{}")) as proxy:
        through = proxy.uri.replace("//", "//me:pw@")
        ask("http://tracking.invalid:5000", http_proxy=through)
        with pytest.raises(UnavailableError):
            ask("http://tracking.invalid:5000", http_proxy=through, no_proxy="a.b, .invalid")

        (head,) = proxy.heads
    assert head.startswith("GET http://tracking.invalid:5000/api/2.0/mlflow/runs/get?run_id=1 HTTP/1.1\n")
    assert "\nHost: tracking.invalid:5000\n" in head
    assert "\nProxy-Authorization: Basic bWU6cHc=" in head


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key in one file, for 127.0.0.1."""
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    key = file.with_name("key.pem")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(key), "-out", str(file), "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + key.read_bytes())
    return file


@contextmanager
def tls_peer(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                try:
                    with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                        connection.recv(65536)
                        connection.sendall(answer(200, b"{}", "Connection: close"))
                except OSError:
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_certificate_counts_when_it_is_trusted(certificate: Path) -> None:
    with tls_peer(certificate) as uri:
        with pytest.raises(UnavailableError, match="certificate is not trusted") as caught:
            ask(uri)
        assert "MLFLOW_TRACKING_SERVER_CERT_PATH" in caught.value.hint
        assert ask(uri, MLFLOW_TRACKING_SERVER_CERT_PATH=str(certificate)) == {}
    with tls_peer(certificate) as uri:
        assert ask(uri, MLFLOW_TRACKING_INSECURE_TLS="true") == {}
    with pytest.raises(UsageError, match="holds no certificate"):
        ask(uri, MLFLOW_TRACKING_SERVER_CERT_PATH=str(certificate.parent / "missing.pem"))


def test_tls_goes_through_a_proxy(certificate: Path) -> None:
    def forward(connection: socket.socket, head: str, _body: bytes) -> bool:
        host, _, port = head.split()[1].partition(":")
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection((host, int(port))) as behind:
            there = threading.Thread(target=pump, args=(connection, behind), daemon=True)
            there.start()
            pump(behind, connection)
        return False

    with tls_peer(certificate) as uri, peer(forward) as proxy:
        trusted = {"MLFLOW_TRACKING_SERVER_CERT_PATH": str(certificate)}
        assert ask(uri, https_proxy=proxy.uri, **trusted) == {}
        assert proxy.heads[0].startswith(f"CONNECT {uri.removeprefix('https://')} HTTP/1.1")
    with peer(saying(407, b"", kind="text/html")) as proxy, pytest.raises(UnavailableError, match="407"):
        ask(uri, https_proxy=proxy.uri)


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(65536):
            target.sendall(chunk)
    except OSError:
        pass


# Answers that are none


@pytest.mark.parametrize(
    ("talk", "sentence"),
    [
        (saying(200, b"<!doctype html>", kind="text/html"), "no MLflow server"),
        (saying(200, b"[]"), "no MLflow server"),
        (saying(200, b'{"value": NaN}'), "no MLflow server"),
        (saying(200, b"[" * 100_000), "no MLflow server"),
        (saying(200, b'{"n": ' + b"9" * 5000 + b"}"), "no MLflow server"),
        (saying(200, b""), "no MLflow server"),
        (close_in_headers, "no MLflow server"),
        (saying(404, b"<!doctype html>", kind="text/html"), "does not know what it is asked"),
        (
            saying(302, b"", "Location: https://login.example/\x1b[1m"),
            r"redirects to https://login.example/\\u001b",
        ),
        (saying(401, b"who?", kind="text/plain"), "who you are: who"),
        (
            saying(403, b'{"error_code": "PERMISSION_DENIED", "message": "no\\nmore"}'),
            "does not allow it: no",
        ),
        (saying(403, b"Invalid Host header", kind="text/plain"), "allow it: Invalid Host header"),
        (saying(500, b"oops", kind="text/html"), "status 500"),
        (saying(500, b'{"error_code": "INTERNAL_ERROR", "message": "boom"}'), "boom"),
        (saying(400, b'{"error_code": [], "message": {}}'), "status 400"),
    ],
)
def test_what_is_no_answer_is_unavailable_in_one_sentence(talk: Talk, sentence: str) -> None:
    with peer(talk) as server, pytest.raises(UnavailableError, match=sentence) as caught:
        ask(server.uri)

    assert caught.value.exit_code == 9
    assert caught.value.message.isprintable()
    assert caught.value.hint


def test_a_database_that_is_locked_behind_the_server_is_waited_for() -> None:
    body = b'{"error_code": "TEMPORARILY_UNAVAILABLE", "message": "(sqlite3) database is locked"}'
    with peer(saying(503, body)) as server:
        with pytest.raises(UnavailableError, match="is locked by another program"):
            ask(server.uri, timeout=1)

        assert len(server.requests) > 1


@pytest.mark.parametrize(
    ("code", "message", "exit_code"),
    [
        ("RESOURCE_DOES_NOT_EXIST", "no such model", 3),
        ("INVALID_PARAMETER_VALUE", "alias x not found", 3),
        ("INVALID_PARAMETER_VALUE", "bad filter", 2),
        ("RESOURCE_ALREADY_EXISTS", "there", 4),
        ("BAD_REQUEST", "UNIQUE constraint failed", 4),
    ],
)
def test_a_refusal_is_an_error_of_ours(code: str, message: str, exit_code: int) -> None:
    body = f'{{"error_code": "{code}", "message": "{message}"}}'.encode()
    with peer(saying(400, body)) as server, pytest.raises(MlxError) as caught:
        ask(server.uri)

    assert caught.value.exit_code == exit_code
    assert caught.value.message == f"Could not read the run 1: {message}."


def test_a_path_of_any_characters_is_sent_in_ascii() -> None:
    with peer(saying(200, b"{}")) as server:
        ask(f"{server.uri}/b\xfc ro%20")

        assert server.heads[0].startswith("GET /b%C3%BC%20ro%20/api/2.0/mlflow/runs/get")


def test_a_connection_is_kept_in_a_process_of_many_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limits[1]), limits[1]))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while stack.enter_context(Path(os.devnull).open("rb")).fileno() < 1024:
            pass
        server = stack.enter_context(peer(saying(200, b"{}")))
        client = api(server.uri)
        for _ in range(2):
            client.read("runs/get", {"run_id": "1"}, "read the run 1")

        assert len(server.requests) == 2
