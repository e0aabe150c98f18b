"""The limits of a connection, spoken to in raw bytes: what a well-behaved client library would never send."""

import socket
import time
from contextlib import suppress

import orjson
import pytest

BODY = orjson.dumps({"rows": [[1, 2, 3, 4]]})
LIMITS = {"max_body_bytes": 2048, "max_header_bytes": 1024, "receive_timeout_s": 1.0, "max_connections": 8}


@pytest.fixture(scope="module")
def server(start_lasting_server):
    return start_lasting_server("affine", **LIMITS)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def head(extra=b"", length=None):
    length = len(BODY) if length is None else length
    return b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % length + extra + b"\r\n"


def read_all(connection):
    """Everything until the server closes."""
    chunks = []
    while chunk := connection.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def read_answer(connection):
    """One response: its status and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        assert chunk, data
        data += chunk
    front, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in front.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        body += connection.recv(65536)
    return int(front.split()[1]), body


def refused(data):
    """The status of the last answer before the server closed, which is a JSON error."""
    front, _, body = data.rpartition(b"\r\n\r\n")
    assert list(orjson.loads(body)) == ["error"]
    assert b"connection: close" in front
    return int(front.rpartition(b"HTTP/1.1 ")[2][:3])


def still_works(server):
    with connect(server) as connection:
        connection.sendall(head() + BODY)
        return read_answer(connection)[0] == 200


def test_a_body_is_taken_up_to_the_limit_and_refused_one_byte_beyond(server):
    for length, status in ((2048, 200), (2049, 413)):
        body = BODY + b" " * (length - len(BODY))
        with connect(server) as connection:
            connection.sendall(head(length=length) + body)
            answered, _ = read_answer(connection)
        assert answered == status
    assert still_works(server)


def test_a_chunked_body_is_counted_as_it_comes(server):
    chunked = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(server) as connection:
        whole = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
        connection.sendall(chunked + whole + b"0\r\n\r\n")
        assert read_answer(connection)[0] == 200
    with connect(server) as connection:
        connection.sendall(chunked + b"1\r\n \r\n" * 2049)
        assert refused(read_all(connection)) == 413
    assert still_works(server)


def test_a_large_body_is_refused_by_its_announcement_and_the_client_gets_to_read_why(server):
    with connect(server) as connection:
        connection.sendall(head(length=50_000_000))
        for _ in range(20):
            connection.sendall(b" " * 65536)
        assert refused(read_all(connection)) == 413
    with connect(server) as connection:
        connection.sendall(head(b"Expect: 100-continue\r\n", length=50_000_000))
        assert refused(read_all(connection)) == 413


def test_a_client_that_asks_first_is_told_to_go_on(server):
    with connect(server) as connection:
        connection.sendall(head(b"Expect: 100-continue\r\n"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(BODY)
        assert read_answer(connection)[0] == 200


def test_a_head_is_taken_up_to_the_limit_and_refused_one_byte_beyond(server):
    fixed = len(b"/predict") + len(b"Hostx") + 4 + len(b"Content-Length%d" % len(BODY)) + 4 + len(b"X") + 4
    for extra, status in ((1024 - fixed, 200), (1025 - fixed, 431)):
        with connect(server) as connection:
            connection.sendall(head(b"X: " + b"a" * extra + b"\r\n") + BODY)
            assert read_answer(connection)[0] == status


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"a" * 5000,
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 65 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 10_000,
    ],
)
def test_a_head_that_never_ends_is_refused(server, data):
    with connect(server) as connection:
        connection.sendall(data)
        assert refused(read_all(connection)) == 431
    assert still_works(server)


def test_as_many_headers_as_the_limit_says_are_taken(server):
    with connect(server) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\n" + b"X: a\r\n" * 64 + b"\r\n")
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x00\xa5",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\nA:\x00b\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_nothing_is_logged(server, data):
    with connect(server) as connection:
        connection.sendall(data)
        assert refused(read_all(connection)) in {400, 404, 405}
    assert still_works(server)
    assert server.errors.read_text() == ""


@pytest.mark.parametrize("part", [b"", b"POST /pre", head(), head() + BODY[:5], b"\r\n\r\n"])
def test_a_request_that_does_not_arrive_in_time_is_closed(server, part):
    began = time.monotonic()
    with connect(server) as connection:
        connection.sendall(part)
        rest = read_all(connection)
    assert 0.5 < time.monotonic() - began < 8
    assert refused(rest) == 408 if part.strip() else rest == b""


def test_a_trickle_does_not_extend_the_deadline(server):
    began = time.monotonic()
    with connect(server) as connection:
        connection.settimeout(0.1)
        answer = b""
        for byte in head() * 2:
            connection.sendall(bytes([byte]))
            with suppress(TimeoutError):
                answer = connection.recv(4096)
                break
    assert refused(answer) == 408
    assert time.monotonic() - began < 8


def test_half_open_connections_keep_nobody_else_out_for_long(server):
    stuck = [connect(server) for _ in range(LIMITS["max_connections"])]
    for connection in stuck:
        connection.sendall(b"POST /predict HTTP/1.1\r\n")
    with connect(server) as connection:
        data = read_all(connection)
        assert refused(data) == 503
        assert b"retry-after: 1" in data
    assert server.get("/healthz").status == 200
    for connection in stuck:
        assert refused(read_all(connection)) == 408
        connection.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if still_works(server):
                return
        except (AssertionError, OSError):
            time.sleep(0.1)
    pytest.fail("The server never took a connection again.")


def test_requests_that_come_in_one_piece_are_answered_in_order(server):
    other = orjson.dumps({"rows": [[0, 0, 0, 0]]})
    with connect(server) as connection:
        connection.sendall(head() + BODY + head(length=len(other)) + other + head(length=2049))
        first, second = read_answer_pair(connection)
        assert first[0] == second[0] == 200
        assert first[1] != second[1]


def read_answer_pair(connection):
    """Two responses, then the end: what follows a refused request cannot be told apart."""
    data = read_all(connection)
    answers = []
    while data:
        front, _, rest = data.partition(b"\r\n\r\n")
        length = int(front.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answers.append((int(front.split()[1]), rest[:length]))
        data = rest[length:]
    assert len(answers) in {2, 3}
    return answers[0], answers[1]


def test_a_connection_is_kept_and_closed_when_the_client_asks(server):
    with connect(server) as connection:
        for _ in range(3):
            connection.sendall(head() + BODY)
            assert read_answer(connection)[0] == 200
        connection.sendall(head(b"Connection: close\r\n") + BODY)
        data = read_all(connection)
        assert data.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in data
    with connect(server) as connection:
        connection.sendall(b"GET /v2 HTTP/1.0\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_a_request_to_switch_protocols_is_answered_as_if_it_had_not_asked(server):
    with connect(server) as connection:
        for offer in (b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", b"UPgrade: websocket\r\n"):
            connection.sendall(head(offer) + BODY)
            assert read_answer(connection)[0] == 200
    with connect(server) as connection:  # an offer that comes in two pieces is not understood, and not obeyed
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgr")
        time.sleep(0.1)
        connection.sendall(b"ade: h2c\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        assert read_all(connection)[9:12] in {b"200", b"400"}
    assert still_works(server)


def test_control_characters_in_a_path_are_not_reflected(server):
    with connect(server) as connection:
        connection.sendall(b"GET /%0d%0aX-Evil:%201%1b[31m HTTP/1.1\r\nHost: x\r\n\r\n")
        status, body = read_answer(connection)
        assert status == 404
        assert b"Evil" not in body
