"""A real server over gRPC: what it answers, compared with ONNX Runtime."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import onnxruntime
import pytest
from grpc import StatusCode
from grpc_client import CLASSES, request

from mlx_platform.inference.package import MODEL

X = np.array([[1, 2, 3, 4]], "<f4")
FOREVER = 2**40


def ask(value, model="countdown", **members):
    return request(model, ("n", "INT64", [1, 1], np.array([[value]]).tobytes()), **members)


def message(method, /, **members):
    return CLASSES[f"inference.{method}Request"](**members)


def samples(server, name):
    text = server.get("/metrics").body.decode()
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)]


def until(condition, patience=10):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def affine(shared, connect):
    return connect(shared("affine"))


def test_an_answer_is_what_onnxruntime_gives_and_names_who_gave_it(shared, connect, packages):
    server = shared("affine")
    session = onnxruntime.InferenceSession(
        str(packages["affine"] / MODEL), providers=["CPUExecutionProvider"]
    )
    rows = np.random.default_rng(3).standard_normal((5, 4)).astype("<f4")
    response, call = connect(server).call(
        "ModelInfer", request("affine", ("x", "FP32", [5, 4], rows.tobytes()), id="q7", model_version="3")
    )
    assert (response.model_name, response.model_version, response.id) == ("affine", "3", "q7")
    assert response.parameters["digest"].string_param == server.addresses["digest"]
    assert response.parameters["arm"].string_param == "production"
    trailer = dict(call.trailing_metadata())
    assert trailer["x-mlx-digest"] == server.addresses["digest"]
    assert (trailer["x-mlx-model"], trailer["x-mlx-version"], trailer["x-mlx-arm"]) == (
        "affine",
        "3",
        "production",
    )
    got = np.frombuffer(response.raw_output_contents[0], "<f4").reshape(5, 3)
    np.testing.assert_allclose(got, session.run(None, {"x": rows})[0], rtol=1e-5)


def test_metadata_readiness_and_configuration_are_told(affine):
    assert affine("ServerLive").live
    assert affine("ServerReady").ready
    assert affine("ModelReady", message("ModelReady", name="affine", version="3")).ready
    assert "binary_tensor_data" in affine("ServerMetadata").extensions
    metadata = affine("ModelMetadata", message("ModelMetadata", name="affine"))
    assert (metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("x", [-1, 4])
    config = affine("ModelConfig", message("ModelConfig", name="affine")).config
    assert (config.input[0].data_type, list(config.input[0].dims)) == (11, [4])
    (entry,) = affine("RepositoryIndex", message("RepositoryIndex", ready=True)).models
    assert (entry.name, entry.version, entry.state) == ("affine", "3", "READY")


@pytest.mark.parametrize(
    ("method", "members", "code"),
    [
        ("ModelReady", {"name": "other"}, StatusCode.NOT_FOUND),
        ("ModelMetadata", {"name": "affine", "version": "4"}, StatusCode.NOT_FOUND),
        ("ModelStatistics", {"name": "other"}, StatusCode.NOT_FOUND),
        ("ModelInfer", {"model_name": "other"}, StatusCode.NOT_FOUND),
        ("ModelInfer", {"model_name": "affine"}, StatusCode.INVALID_ARGUMENT),
        ("RepositoryModelLoad", {"model_name": "other"}, StatusCode.PERMISSION_DENIED),
        ("RepositoryModelUnload", {"model_name": "affine"}, StatusCode.PERMISSION_DENIED),
        ("RepositoryModelUnload", {"model_name": "other"}, StatusCode.NOT_FOUND),
    ],
)
def test_refusals_have_the_code_that_says_why(affine, method, members, code):
    error = affine.refused(method, message(method, **members))
    assert error.code() == code
    assert "x-mlx-model" in dict(error.trailing_metadata())


def test_loading_what_is_loaded_is_done_and_changing_it_is_not(affine):
    affine("RepositoryModelLoad", message("RepositoryModelLoad", model_name="affine"))
    wish = message("RepositoryModelLoad", model_name="affine")
    wish.parameters["config"].string_param = "{}"
    assert affine.refused("RepositoryModelLoad", wish).code() == StatusCode.PERMISSION_DENIED


def test_what_is_no_message_and_what_is_no_method_are_told(affine):
    assert affine.refused("ModelInfer", b"\xff\xff\xff").code() == StatusCode.INVALID_ARGUMENT
    stream = affine.channel.unary_unary("/inference.GRPCInferenceService/SystemSharedMemoryStatus")
    with pytest.raises(grpc.RpcError) as caught:
        stream(b"", timeout=20)
    assert caught.value.code() == StatusCode.UNIMPLEMENTED


def test_names_of_requests_and_traces_are_kept(affine):
    good = request("affine", ("x", "FP32", [1, 4], X.tobytes()))
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    _, call = affine.call("ModelInfer", good, metadata=(("x-request-id", "abc-1"), ("traceparent", trace)))
    told = dict(call.trailing_metadata())
    assert told["x-request-id"] == "abc-1"
    assert told["traceparent"].startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")


def test_a_message_may_be_as_long_as_a_body_and_no_longer(serve, connect):
    client = connect(serve("identity", max_body_bytes=100_000))

    def size(extra):
        values = np.zeros((1, 24_900), "<f4")
        filled = request("identity", ("x", "FP32", [1, 24_900], values.tobytes()), id="x" * 200)
        filled.id = "x" * (200 + 100_000 + extra - filled.ByteSize())
        assert filled.ByteSize() == 100_000 + extra
        return filled

    assert client("ModelInfer", size(0)).outputs[0].shape == [1, 24_900]
    assert client.refused("ModelInfer", size(1)).code() == StatusCode.RESOURCE_EXHAUSTED
    assert client("ServerLive").live


def test_a_compressed_message_may_not_grow_beyond_the_limit(serve, connect):
    client = connect(serve("identity", max_body_bytes=100_000))
    zeros = np.zeros((1, 200_000), "<f4")
    bomb = request("identity", ("x", "FP32", [1, 200_000], zeros.tobytes()))
    error = client.refused("ModelInfer", bomb, compression=grpc.Compression.Gzip)
    assert error.code() == StatusCode.RESOURCE_EXHAUSTED
    small = request("identity", ("x", "FP32", [1, 20_000], zeros[:, :20_000].tobytes()))
    response = client("ModelInfer", small, compression=grpc.Compression.Deflate)
    assert list(response.outputs[0].shape) == [1, 20_000]


def test_a_deadline_or_a_timeout_ends_a_call_and_the_server_goes_on(serve, connect):
    client = connect(serve("countdown", request_timeout_ms=800))
    began = time.monotonic()
    hurried = ask(FOREVER)
    hurried.parameters["timeout"].int64_param = 50_000
    for call, options in ((ask(FOREVER), {}), (hurried, {}), (ask(FOREVER), {"timeout": 0.1})):
        assert client.refused("ModelInfer", call, **options).code() == StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 15
    assert client("ModelInfer", ask(3)).raw_output_contents[0] == np.float32(3).tobytes()


def test_a_call_that_its_client_cancels_leaves_the_queue(serve, connect):
    server = serve("countdown", max_batch_size=1, request_timeout_ms=20_000)
    client = connect(server)
    call = client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    running = call.future(ask(FOREVER).SerializeToString())
    waiting = [call.future(ask(FOREVER).SerializeToString()) for _ in range(3)]
    until(lambda: samples(server, "mlx_in_flight{") == [4])
    for future in (*waiting, running):
        future.cancel()
    until(lambda: samples(server, "mlx_in_flight{") == [0])
    assert samples(server, "mlx_abandoned_total{") == [4]
    assert client("ModelInfer", ask(2)).raw_output_contents[0] == np.float32(2).tobytes()


def test_a_full_queue_is_told_with_when_to_come_back(serve, connect):
    client = connect(serve("countdown", max_queue_rows=1, max_batch_size=1, request_timeout_ms=1500))
    with ThreadPoolExecutor(8) as callers:
        errors = list(callers.map(lambda _: client.refused("ModelInfer", ask(FOREVER)), range(8)))
    assert {error.code() for error in errors} == {StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED}
    for error in errors:
        told = dict(error.trailing_metadata())
        assert ("grpc-retry-pushback-ms" in told) == (error.code() == StatusCode.RESOURCE_EXHAUSTED)


def test_calls_and_requests_share_runs_and_each_gets_its_own_rows(serve, connect):
    server = serve("countdown", max_queue_delay_ms=200)
    client = connect(server)

    def over_http(value):
        tensor = {"datatype": "INT64", "shape": [1, 1], "data": [value]}
        return server.infer({"n": tensor}).json["outputs"][0]["data"][0]

    def over_grpc(value):
        return np.frombuffer(client("ModelInfer", ask(value)).raw_output_contents[0], "<f4")[0]

    with ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(lambda value: (over_grpc if value % 2 else over_http)(value), range(64)))
    assert answers == list(range(64))
    # Fewer runs than requests: somebody had company.
    (runs,) = (
        entry["execution_count"] for entry in server.get("/v2/models/countdown/stats").json["model_stats"]
    )
    assert 0 < runs < 64


def test_statistics_count_both_protocols(serve, connect):
    server = serve("affine")
    client = connect(server)
    client("ModelInfer", request("affine", ("x", "FP32", [2, 4], np.tile(X, (2, 1)).tobytes())))
    server.infer({"x": {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}})
    client.refused("ModelInfer", request("affine"))
    (found,) = client("ModelStatistics").model_stats
    assert (found.inference_count, found.execution_count) == (3, 2)
    assert (found.inference_stats.success.count, found.inference_stats.fail.count) == (2, 1)
    for stage in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert getattr(found.inference_stats, stage).count == 2
    assert found.inference_stats.success.ns >= found.inference_stats.compute_infer.ns > 0
    batches = {batch.batch_size: batch for batch in found.batch_stats}
    assert sorted(batches) == [1, 2]
    for batch in batches.values():
        assert batch.compute_input.count == batch.compute_infer.count == batch.compute_output.count == 1
        assert 0 < batch.compute_infer.ns < found.inference_stats.success.ns
    assert found.last_inference > 1.7e12
    route = 'endpoint="/inference.GRPCInferenceService/ModelInfer"'
    text = server.get("/metrics").body.decode()
    counts = [
        line for line in text.splitlines() if "request_duration_seconds_count" in line and route in line
    ]
    assert sorted(line.rpartition(" ")[2] for line in counts) == ["1.0", "1.0"]


def test_calls_are_in_the_traffic_log_as_requests_are(tmp_path, serve, connect):
    from mlx_platform.traffic.log import read_log

    server = serve("affine", traffic=tmp_path / "log")
    connect(server)("ModelInfer", request("affine", ("x", "FP32", [1, 4], ("fp32_contents", [1, 2, 3, 4]))))
    assert server.stop() == 0
    (record,) = read_log(tmp_path / "log")[0]
    assert (record.endpoint, record.status, record.rows) == ("infer", 200, 1)
    assert record.inputs["x"]["data"] == [1, 2, 3, 4]


def test_a_stream_answers_in_order_and_goes_on_after_a_refusal(affine):
    stream = affine.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    good = ("x", "FP32", [1, 4], X.tobytes())
    sent = [request("affine", good, id="a"), request("affine"), b"\xff", request("affine", good, id="b")]
    bodies = [body if isinstance(body, bytes) else body.SerializeToString() for body in sent]
    answer = CLASSES["inference.ModelStreamInferResponse"]
    replies = [answer.FromString(body) for body in stream(iter(bodies), timeout=20)]
    assert [reply.infer_response.id for reply in replies] == ["a", "", "", "b"]
    assert [bool(reply.error_message) for reply in replies] == [False, True, True, False]


def test_an_open_stream_does_not_keep_a_server_from_ending(serve, connect):
    server = serve("affine")
    open_end = threading.Event()

    def messages():
        yield request("affine", ("x", "FP32", [1, 4], X.tobytes())).SerializeToString()
        open_end.wait(20)

    stream = connect(server).channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    replies = stream(messages(), timeout=30)
    assert CLASSES["inference.ModelStreamInferResponse"].FromString(next(replies)).infer_response.outputs
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 10
    open_end.set()


def test_health_is_told_now_and_when_it_changes(serve, connect):
    server = serve("countdown", drain_delay_s=0.5)
    client = connect(server)
    health = CLASSES["grpc.health.v1.HealthCheckRequest"]
    for service in ("", "inference.GRPCInferenceService", "countdown"):
        assert client("Check", health(service=service), package="grpc.health.v1").status == 1
    unknown = client.refused("Check", health(service="nothing"), package="grpc.health.v1")
    assert unknown.code() == StatusCode.NOT_FOUND
    watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")
    stream = watch(health().SerializeToString(), timeout=30)
    answer = CLASSES["grpc.health.v1.HealthCheckResponse"]
    assert answer.FromString(next(stream)).status == 1
    seen = []
    watcher = threading.Thread(target=lambda: seen.extend(answer.FromString(body).status for body in stream))
    watcher.start()
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 15
    watcher.join(10)
    assert seen == [2]


def test_what_was_accepted_is_answered_before_a_server_ends(serve, connect):
    server = serve("countdown", request_timeout_ms=120_000, drain_timeout_s=60, max_batch_size=1)
    client = connect(server)
    slow = 1_000_000
    with ThreadPoolExecutor(4) as callers:
        calls = [callers.submit(client, "ModelInfer", ask(slow + place)) for place in range(4)]
        # Those that are answered first: a call that ends meanwhile is missed, and never counted twice.
        until(
            lambda: sum(call.done() for call in calls) + server.metric("mlx_in_flight") == 4,
            patience=60,
        )
        assert server.stop(timeout=90) == 0
        answers = [np.frombuffer(call.result().raw_output_contents[0], "<f4")[0] for call in calls]
    assert answers == [slow + place for place in range(4)]


def test_a_second_signal_tells_those_who_wait_that_it_is_over(serve, connect):
    server = serve("countdown", request_timeout_ms=60_000, max_batch_size=1)
    client = connect(server)
    with ThreadPoolExecutor(2) as callers:
        calls = [callers.submit(client.refused, "ModelInfer", ask(FOREVER), timeout=60) for _ in range(2)]
        until(lambda: samples(server, "mlx_in_flight{") == [2])
        server.process.terminate()
        until(lambda: server.get("/readyz").status == 503)
        assert server.stop(timeout=30) == 0
        codes = {call.result().code() for call in calls}
    assert codes == {StatusCode.UNAVAILABLE}


def test_a_port_that_is_taken_is_told_by_its_option(serve, packages, tmp_path):
    taken = serve("affine").addresses["grpc_url"].rpartition(":")[2]
    with pytest.raises(AssertionError, match=r"Cannot listen on port \d+ of .* for gRPC"):
        serve("affine", grpc_port=int(taken))


def test_a_server_without_grpc_has_no_address_for_it(serve):
    server = serve("affine", grpc_port=-1)
    assert server.addresses["grpc_url"] == ""
    assert server.get("/v2/health/ready").status == 200
