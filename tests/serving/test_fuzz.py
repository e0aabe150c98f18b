"""Requests that are nearly right, hundreds of ways: never a fault of the server, and always an answer."""

import itertools
import random
import socket

import orjson
import pytest

from mlx_platform.serving.routes import ROUTES

METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")
TAILS = ("", "/", "?a=b", "/..", "%00", "//", ";x=1", "#f", "/%2e%2e/%2e%2e/etc/passwd", "\u00e4")
INFER = "/v2/models/table/infer"
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODIES = [
    orjson.dumps({"id": "a", "inputs": [TENSOR], "outputs": [{"name": "probabilities"}]}),
    orjson.dumps({"rows": [{"a": 1, "b": 2, "c": 3, "d": 4}], "id": "q"}),
]
PIECES = (
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b'"\\ud800"',
    b"18446744073709551616",
    b"true",
    b'""',
    b"[[1],[2,3]]",
)


def exchange(port, data, *, leave=False):
    """The statuses of the answers to what is sent on one connection; `leave` waits for no more of them."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        if leave:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def post(path, body, *headers):
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def mutated(body, chance):
    """A body with something replaced, doubled, cut or flipped."""
    content = bytearray(body)
    for _ in range(chance.randint(1, 3)):
        if not content:
            break
        start = chance.randrange(len(content))
        end = min(len(content), start + chance.randint(1, 12))
        way = chance.randrange(4)
        if way == 0:
            content[start:end] = chance.choice(PIECES)
        elif way == 1:
            content[start:start] = content[start:end]
        elif way == 2:
            del content[start:end]
        else:
            content[start] ^= 1 << chance.randrange(8)
    return bytes(content)


def test_every_path_answers_every_method(shared):
    server = shared("table")
    for template, method, tail in itertools.product(ROUTES, METHODS, TAILS):
        path = template.format(model="table", version="3") + tail
        data = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        statuses = exchange(server.port, data)
        assert len(statuses) == 1, data
        assert statuses[0] < 500, data
        assert statuses[0] != 200 or tail in {"", "/", "?a=b", "#f"}, data
    assert server.get("/v2/health/ready").status == 200


@pytest.mark.parametrize("seed", range(4))
def test_mutated_bodies_are_answered_without_a_fault(shared, seed):
    server = shared("table")
    chance = random.Random(seed)  # noqa: S311 - repeatable, no secret
    for _ in range(150):
        path, body = chance.choice([(INFER, BODIES[0]), ("/predict", BODIES[1])])
        content = mutated(body, chance)
        statuses = exchange(server.port, post(path, content))
        assert len(statuses) == 1, content
        assert statuses[0] < 500, content
    assert server.post("/predict", BODIES[1]).status == 200


@pytest.mark.parametrize("seed", range(2))
def test_mutated_binary_requests_are_answered_without_a_fault(shared, seed):
    server = shared("table")
    chance = random.Random(seed)  # noqa: S311 - repeatable, no secret
    raw = TENSOR | {"parameters": {"binary_data_size": 16}}
    del raw["data"]
    header = orjson.dumps({"inputs": [raw], "parameters": {"binary_data_output": True}})
    body = header + bytes(16)
    for _ in range(150):
        length = chance.choice(
            [len(header)] * 3 + [0, -1, len(body), len(body) + 1, 2**63, "1e3", "", " 5", "+5"]
        )
        content = mutated(body, chance) if chance.random() < 0.7 else body
        statuses = exchange(server.port, post(INFER, content, f"Inference-Header-Content-Length: {length}"))
        assert len(statuses) == 1, (length, content)
        assert statuses[0] < 500, (length, content)
    assert server.post(INFER, BODIES[0]).status == 200


@pytest.mark.parametrize("seed", range(2))
def test_mutated_heads_are_answered_or_cut_without_a_fault(shared, seed):
    server = shared("table")
    chance = random.Random(seed)  # noqa: S311 - repeatable, no secret
    good = post(INFER, BODIES[0], "Content-Type: application/json", "X-Request-Timeout-Ms: 900")
    end = good.index(b"\r\n\r\n")
    for _ in range(150):
        data = mutated(good[:end], chance) + good[end:]
        statuses = exchange(server.port, data, leave=True)
        assert all(status < 500 for status in statuses), data
    assert server.post(INFER, BODIES[0]).status == 200
