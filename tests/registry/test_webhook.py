import base64
import datetime as dt
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from receivers import KEY, SECRET, receiving, reset, speaking, trickle

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import SinkSettings
from mlx_platform.registry.outbox import Answer, Message
from mlx_platform.registry.webhook import Webhook, retry_after

NOW = dt.datetime(2026, 3, 8, 7, tzinfo=dt.UTC)
MESSAGE = Message("msg-1", {"type": "mlx.test", "data": {"text": "größer"}})
ENVIRONMENT = {"SECRET": SECRET, "TOKEN": "Bearer abc"}

Talk = Callable[[socket.socket, threading.Event], None]


def send(url: str, *, timeout: float = 5.0, **values: object) -> Answer:
    sink = SinkSettings(name="ops", url=url, **values)  # type: ignore[arg-type]
    return Webhook(sink, ENVIRONMENT).send(MESSAGE, timeout=timeout, now=NOW)


def own_hmac_sha256(key: bytes, text: bytes) -> bytes:
    """RFC 2104, written down once more."""
    key = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + text).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()


@pytest.mark.parametrize(
    ("secret", "key"), [(SECRET, KEY), ("plain text", b"plain text"), ("k" * 99, b"k" * 99)]
)
def test_a_receiver_that_knows_the_secret_can_check_the_signature(secret: str, key: bytes) -> None:
    with receiving() as receiver:
        webhook = Webhook(receiver.sink(secret_env="S"), {"S": secret})  # noqa: S106 - a variable
        answer = webhook.send(MESSAGE, timeout=5, now=NOW)

    (request,) = receiver.requests
    stamp = request.headers["webhook-timestamp"]
    signed = own_hmac_sha256(key, f"msg-1.{stamp}.".encode() + request.body)
    assert answer == Answer(delivered=True, said="204 No Content")
    assert stamp == str(int(NOW.timestamp()))
    assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    assert request.headers["webhook-id"] == "msg-1"
    assert request.headers["content-type"] == "application/json"
    assert request.path == "/hook"


def test_without_a_secret_nothing_is_signed() -> None:
    with receiving() as receiver:
        assert send(receiver.url).delivered

    assert "webhook-signature" not in receiver.requests[0].headers


def test_further_headers_take_their_values_from_the_environment() -> None:
    with receiving() as receiver:
        assert send(f"{receiver.url}?a=b%20c", headers_env={"Authorization": "TOKEN"}).delivered

    assert receiver.requests[0].headers["authorization"] == "Bearer abc"
    assert receiver.requests[0].path == "/hook?a=b%20c"


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
def test_what_is_not_2xx_is_not_delivered(status: int) -> None:
    with receiving(status, body=b"no\x1b[2J way\n") as receiver:
        answer = send(receiver.url)

    assert (answer.delivered, answer.final) == (False, False)
    assert answer.said.startswith(str(status))
    assert answer.said.endswith(": no\\u001b[2J way")


def test_gone_is_final() -> None:
    with receiving(410) as receiver:
        assert send(receiver.url).final


def test_a_redirect_is_not_followed() -> None:
    with receiving() as elsewhere, receiving(302, headers={"Location": elsewhere.url}) as receiver:
        answer = send(receiver.url)

    assert not answer.delivered
    assert "redirects are not followed" in answer.said
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Sun, 08 Mar 2026 07:01:00 GMT", 60.0),
        ("Sun, 08 Mar 2026 06:00:00 GMT", 0.0),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("9" * 5000, None),
        ("Sun, 99 Mar 2026 07:01:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float | None) -> None:
    assert retry_after(text, NOW) == seconds


def test_the_time_that_a_busy_receiver_asks_for_is_reported() -> None:
    with receiving(429, headers={"Retry-After": "17"}) as receiver:
        assert send(receiver.url).retry_after == 17.0


def hang(_connection: socket.socket, over: threading.Event) -> None:
    over.wait(20)


@pytest.mark.parametrize(
    "talk",
    [
        hang,
        trickle([b"HTTP/1.1 100 Continue\r\n\r\n"]),
        trickle([b"H"]),
        trickle([b"HTTP/1.1 503 Busy\r\n", *[b"X-A: b\r\n"] * 3]),
    ],
    ids=["silent", "only continues", "no end of the status", "no end of the headers"],
)
def test_a_receiver_that_never_comes_to_an_end_is_given_up(talk: Talk) -> None:
    with speaking(talk) as url:
        answer = send(url, timeout=0.4)

    assert not answer.delivered


def test_an_endless_body_is_read_only_so_far() -> None:
    head = b"HTTP/1.1 500 Oh\r\nContent-Length: 99999999999\r\n\r\n"

    def talk(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.is_set():
            connection.sendall(b"x" * 65536)

    with speaking(talk) as url:
        answer = send(url)

    assert answer.said.startswith("500 Oh: xxx")
    assert len(answer.said) <= 200


def test_a_status_counts_even_when_the_connection_breaks_behind_it() -> None:
    def talk(connection: socket.socket, _over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        reset(connection)

    with speaking(talk) as url:
        assert send(url).delivered


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 20", b"<html>no</html>\r\n\r\n", b"HTTP/1.1 9999 x\r\n\r\n", b"\0" * 100_000]
)
def test_a_connection_that_breaks_before_a_status_is_a_failure(data: bytes) -> None:
    def talk(connection: socket.socket, _over: threading.Event) -> None:
        connection.sendall(data)
        reset(connection)

    with speaking(talk) as url:
        answer = send(url)

    assert not answer.delivered
    assert answer.said.isprintable()


def test_a_port_where_nobody_listens_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert "refused" in send(f"http://127.0.0.1:{port}/").said


def test_a_name_that_is_never_found_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def never(*_: object, **__: object) -> list[object]:
        over.wait(20)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", never)
    answer = send("https://somewhere.example/", timeout=0.1)
    over.set()

    assert answer == Answer(delivered=False, said="no answer within 0.1 s")


def write_certificate(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - dt.timedelta(days=1))
        .not_valid_after(today + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.mark.parametrize("trusted", [False, True])
def test_a_certificate_must_be_trusted(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as secured:
                    # Closing on a body that was not read would take the answer back.
                    with secured.makefile("rb") as request:
                        headers = dict(iter(lambda: request.readline().partition(b":")[::2], (b"\r\n", b"")))
                        request.read(int(headers[b"Content-Length"]))
                    secured.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            except OSError:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        answer = send(f"https://localhost:{server.getsockname()[1]}/", secret_env="SECRET")  # noqa: S106 - a variable
        thread.join()

    assert answer.delivered == trusted
    assert trusted or "CERTIFICATE_VERIFY_FAILED" in answer.said


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https:///hook",
        "https://example.com:99999/",
        "https://example.com/a b",
        "https://example.com/a\r\nX: y",
        "https://exämple.com/",
        "https://user:password@example.com/",
        "https://example.com/#x",
        "http://example.com/",
        "http://10.0.0.1/",
        "http://127.0.0.1.example.com/",
        "http://[::ffff:10.0.0.1]/",
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Webhook(SinkSettings(name="ops", url=url), {})

    assert "password" not in caught.value.message.replace("user or password", "")


@pytest.mark.parametrize(
    "url", ["http://localhost:1/", "http://[::1]:1/", "http://127.8.8.8/", "https://10.0.0.1/"]
)
def test_https_and_this_machine_are_allowed(url: str) -> None:
    Webhook(SinkSettings(name="ops", url=url), {})
    Webhook(SinkSettings(name="ops", url="http://10.0.0.1/", allow_http=True), {})


@pytest.mark.parametrize("value", [None, "", "whsec_", "whsec_!!!"])
def test_a_secret_that_is_not_there_is_said(value: str | None) -> None:
    environment = {} if value is None else {"MLX_WEBHOOK_SECRET": value}

    sink = SinkSettings(name="ops", url="https://a.b/", secret_env="MLX_WEBHOOK_SECRET")  # noqa: S106 - a variable

    with pytest.raises(UsageError, match="MLX_WEBHOOK_SECRET"):
        Webhook(sink, environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", "x"),
        ("webhook-ID", "x"),
        ("content-length", "1"),
        ("Transfer-Encoding", "chunked"),
        ("X Y", "x"),
        ("X\r\nY", "x"),
        ("", "x"),
        ("X", "a\r\nb: c"),
        ("X", "é"),
        ("X", ""),
    ],
)
def test_headers_that_could_break_the_request_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError):
        Webhook(SinkSettings(name="ops", url="https://a.b/", headers_env={name: "V"}), {"V": value})
