import socket
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_servers import prometheus, vector

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.serving.rollout.prometheus import ask_prometheus


def test_a_vector_of_one_is_its_value():
    with prometheus(200, vector("0.25")) as (address, asked):
        assert ask_prometheus(f"{address}/prom/", 'sum(rate(x{a="b c"}[1m]))', timeout=5) == 0.25
    path = urlsplit(asked[0])
    assert path.path == "/prom/api/v1/query"
    assert parse_qs(path.query) == {"query": ['sum(rate(x{a="b c"}[1m]))']}


def test_a_scalar_is_its_value():
    body = b'{"status":"success","data":{"resultType":"scalar","result":[1700000000.1,"-3"]}}'
    with prometheus(200, body) as (address, _):
        assert ask_prometheus(address, "-3", timeout=5) == -3


@pytest.mark.parametrize("body", [vector(), vector("NaN")])
def test_nothing_and_no_number_are_no_data(body):
    with prometheus(200, body) as (address, _):
        assert ask_prometheus(address, "x", timeout=5) is None


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, vector("1", "2"), "2 values"),
        (200, vector("one"), "something else"),
        (200, b"<html>", "no JSON"),
        (200, b"[]", "something else"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "matrix"),
        (400, b'{"status":"error","errorType":"bad_data","error":"parse error"}', "parse error"),
        (502, b"bad gateway", "502"),
    ],
)
def test_an_answer_that_is_none_is_an_error(status, body, said):
    with prometheus(status, body) as (address, _), pytest.raises(UnavailableError, match=said):
        ask_prometheus(address, "x", timeout=5)


def test_a_server_that_hangs_is_given_up():
    with (
        prometheus(200, vector("1"), delay=0.6) as (address, _),
        pytest.raises(UnavailableError, match=r"within 0\.2 s"),
    ):
        ask_prometheus(address, "x", timeout=0.2)


def test_nobody_there_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnavailableError, match="cannot be asked"):
        ask_prometheus(f"http://127.0.0.1:{port}", "x", timeout=5)


def test_an_address_that_is_none_is_said():
    with pytest.raises(UsageError):
        ask_prometheus("prometheus:9090", "x", timeout=5)
