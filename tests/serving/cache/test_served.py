"""A real server with a cache: what it answers, what it says about it, and what it counts and logs."""

from collections.abc import Callable

import pytest
from grpc_client import Client, request

from mlx_platform.traffic.log import read_log

SIX = [1, 2, 3, 4, 5, 6]


@pytest.fixture(scope="module")
def cached(start_lasting_server) -> Callable:
    """Servers with a cache in memory, one per network."""
    running = {}

    def get(network):
        if network not in running:
            running[network] = start_lasting_server(
                network, cache={"backend": "memory", "tolerance": 1e-3, "prepared_bytes": 2**20}
            )
        return running[network]

    return get


def tensor(shape, data):
    return {"datatype": "FP32", "shape": shape, "data": data}


def metrics(server, name):
    """Values of a metric by its labels, without those that say which version it is."""
    found = {}
    for line in server.get("/metrics").body.decode().splitlines():
        if line.startswith(f"{name}{{"):
            labels, _, value = line.removeprefix(f"{name}{{").rpartition("} ")
            own = [
                label
                for label in labels.split(",")
                if label.split("=")[0] not in {"model", "version", "route"}
            ]
            found[",".join(own)] = float(value)
    return found


def test_no_two_questions_of_this_table_share_an_answer(cached):
    # The same bytes in other shapes, other outputs, other parameters: a cache keyed by bytes is wrong in six.
    server = cached("shape_and_sums")
    sums = {"outputs": [{"name": "sums"}]}
    shape = {"outputs": [{"name": "shape"}]}
    table = [
        ([2, 3], SIX, {}, "miss", {"shape": [2, 3], "sums": [5, 7, 9]}),
        ([2, 3], SIX, {}, "hit", {"shape": [2, 3], "sums": [5, 7, 9]}),
        ([3, 2], SIX, {}, "miss", {"shape": [3, 2], "sums": [9, 12]}),
        ([1, 6], SIX, {}, "miss", {"shape": [1, 6], "sums": SIX}),
        ([2, 2], SIX[:4], shape, "miss", {"shape": [2, 2]}),
        ([2, 2], SIX[:4], sums, "miss", {"sums": [4, 6]}),
        ([2, 2], SIX[:4], {}, "miss", {"shape": [2, 2], "sums": [4, 6]}),
        ([2, 2], SIX[:4], shape, "hit", {"shape": [2, 2]}),
        ([2, 3], SIX, {"parameters": {"k": 1}}, "miss", {"shape": [2, 3], "sums": [5, 7, 9]}),
        ([2, 3], SIX, {"parameters": {"k": 2}}, "miss", {"shape": [2, 3], "sums": [5, 7, 9]}),
        (
            [2, 3],
            SIX,
            {"parameters": {"k": 2, "timeout": 900000}},
            "hit",
            {"shape": [2, 3], "sums": [5, 7, 9]},
        ),
        ([2, 3], [1, 2, 3, 4, 5, 6.0002], {}, "hit", {"shape": [2, 3], "sums": [5, 7, 9]}),
        ([2, 3], [1, 2, 3, 4, 5, 6.01], {}, "miss", {"shape": [2, 3], "sums": [5, 7, pytest.approx(9.01)]}),
    ]
    before = metrics(server, "mlx_cache_requests_total")
    for dims, data, members, outcome, expected in table:
        reply = server.infer({"x": tensor(dims, data)}, **members)
        assert reply.status == 200, reply.body
        assert {output["name"]: output["data"] for output in reply.json["outputs"]} == expected
        assert reply.headers["x-cache"] == outcome
    after = metrics(server, "mlx_cache_requests_total")
    assert {outcome: after[outcome] - before[outcome] for outcome in after} == {
        'outcome="hit"': 4,
        'outcome="semantic"': 0,
        'outcome="miss"': 9,
        'outcome="bypass"': 0,
    }


def test_who_asks_may_differ_in_everything_that_does_not_matter(cached):
    server = cached("affine")
    feeds = {"x": tensor([1, 4], [1, 2, 3, 4])}
    path = f"/v2/models/{server.addresses['model']}/infer"
    assert server.infer(feeds).headers["x-cache"] == "miss"
    nested = {"x": tensor([1, 4], [[1, 2, 3, 4]])}
    assert server.infer(nested, id="seven").headers["x-cache"] == "hit"
    assert server.infer(nested, id="seven").json["id"] == "seven"
    rows = server.post("/predict", {"rows": [[1, 2, 3, 4]]})
    assert (rows.status, rows.headers["x-cache"]) == (200, "hit")
    document = {"inputs": [{"name": "x", **feeds["x"]}]}
    for header, outcome in (
        ({"Cache-Control": "no-cache"}, "bypass"),
        ({"Cache-Control": "max-age=0, no-store"}, "bypass"),
        ({"Cache-Control": "max-age=60"}, "hit"),
        ({"X-Tenant-Id": "a"}, "miss"),
        ({"X-Tenant-Id": "a"}, "hit"),
        ({"X-Tenant-Id": "b"}, "miss"),
    ):
        assert server.post(path, document, header).headers["x-cache"] == outcome


def test_what_is_refused_was_never_asked_of_the_cache(cached):
    server = cached("affine")
    before = metrics(server, "mlx_cache_requests_total")
    reply = server.infer({"x": tensor([1, 4], [1, 2, 3])})
    assert reply.status == 400
    assert "x-cache" not in reply.headers
    assert metrics(server, "mlx_cache_requests_total") == before


def test_answers_without_a_number_are_computed_each_time(cached):
    server = cached("logarithm")
    for _ in range(2):
        reply = server.infer({"x": tensor([1, 1], [-1])}, outputs=[{"name": "y"}])
        assert (reply.status, reply.headers["x-cache"]) == (422, "miss")


def test_a_model_of_a_fixed_number_of_rows_is_asked_once_for_each_question(cached):
    server = cached("double_pair")
    rows = {"rows": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}
    first, second = server.post("/predict", rows), server.post("/predict", rows)
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert first.json["predictions"] == second.json["predictions"]
    assert len(first.json["predictions"]) == 3


def test_without_a_cache_nothing_is_said_about_one(shared):
    server = shared("affine")
    reply = server.infer({"x": tensor([1, 4], [1, 2, 3, 4])})
    assert "x-cache" not in reply.headers
    assert metrics(server, "mlx_cache_requests_total") == {}


def test_the_log_says_which_answers_were_remembered(start_server, packages, tmp_path):
    server = start_server(packages["affine"], traffic=tmp_path / "log", cache={"backend": "memory"})
    for value in (1, 1, 2):
        server.infer({"x": tensor([1, 4], [value] * 4)})
    assert server.stop() == 0
    records, stats = read_log(tmp_path / "log", model="affine", version="3")
    records = sorted(records, key=lambda record: record.seq)
    assert [record.cache for record in records] == ["miss", "hit", "miss"]
    assert records[0].outputs == records[1].outputs
    assert records[1].batch_rows == 0
    assert stats.records == 3


def test_a_server_does_not_care_what_becomes_of_its_redis(start_server, packages, redis):
    cache = {"backend": "redis", "redis_url": redis.url, "redis_timeout_ms": 250.0, "min_hit_rate": 0.0}
    server = start_server(packages["affine"], cache=cache)
    asked = 0

    def outcomes(until, most=2000):
        """What the answers say until one says this."""
        nonlocal asked
        found = set()
        for number in range(most):
            reply = server.infer({"x": tensor([1, 4], [number % 3, 0, 0, 0])})
            assert reply.status == 200
            asked += 1
            found.add(reply.headers["x-cache"])
            if until in found:
                return found
        raise AssertionError(found)

    assert outcomes("hit") >= {"miss", "hit"}
    redis.stop()
    assert outcomes("bypass") <= {"miss", "bypass"}
    redis.start()
    assert outcomes("hit") >= {"miss", "hit"}
    counts = metrics(server, "mlx_cache_requests_total")
    assert sum(counts.values()) == asked
    assert metrics(server, "mlx_cache_redis_up") == {"": 1}
    assert metrics(server, "mlx_cache_errors_total")['reason="connection"'] >= 1
    assert server.stop() == 0
    assert "Traceback" not in server.errors.read_text()


def test_grpc_asks_the_same_cache(cached):
    server = cached("shape_and_sums")
    client = Client(server.addresses["grpc_url"])
    data = [7, 8, 9, 10]
    assert server.infer({"x": tensor([2, 2], data)}).headers["x-cache"] == "miss"

    def ask(metadata=(), **parameters):
        message = request("shape_and_sums", ("x", "FP32", [2, 2], ("fp32_contents", data)))
        for name, value in parameters.items():
            message.parameters[name].int64_param = value
        _, call = client.call("ModelInfer", message, metadata=metadata)
        return dict(call.trailing_metadata())["x-cache"]

    try:
        assert ask() == "hit"
        assert ask(timeout=900_000) == "hit"
        assert [ask(k=1), ask(k=1), ask(k=2)] == ["miss", "hit", "miss"]
        assert ask((("x-tenant-id", "a"),)) == "miss"
        assert ask((("cache-control", "no-cache"),)) == "bypass"
    finally:
        client.channel.close()
