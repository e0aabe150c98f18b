"""A real server over real sockets: what it answers, compared with the model itself."""

import gzip
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import orjson
import pytest

from mlx_platform.inference.package import MODEL

GOOD = {"x": {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}}
ROW = {"a": 1, "b": 2, "c": 3, "d": 4}


@pytest.fixture(scope="module")
def session(packages):
    return onnxruntime.InferenceSession(str(packages["affine"] / MODEL), providers=["CPUExecutionProvider"])


def tensor(array):
    return {"datatype": "FP32", "shape": list(array.shape), "data": array.reshape(-1).tolist()}


def test_infer_gives_what_onnxruntime_gives(shared, session):
    for rows in (1, 3, 100):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        reply = shared("affine").infer({"x": tensor(x)}, id="a\u00e4")
        assert reply.status == 200, reply.body
        assert (reply.json["model_name"], reply.json["model_version"], reply.json["id"]) == (
            "affine",
            "3",
            "a\u00e4",
        )
        (output,) = reply.json["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("probabilities", "FP32", [rows, 3])
        want = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(np.array(output["data"], np.float32).reshape(rows, 3), want, rtol=1e-5)


def test_an_answer_has_no_id_when_the_request_had_none(shared):
    assert "id" not in shared("affine").infer(GOOD).json


def test_binary_tensors_go_in_and_out(shared, session):
    x = np.random.default_rng(5).standard_normal((2, 4)).astype("<f4")
    header = orjson.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
            ],
            "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}],
        }
    )
    # No Content-Type, as the protocol's Python client sends it.
    reply = shared("affine").request(
        "POST",
        "/v2/models/affine/infer",
        header + x.tobytes(),
        {"Inference-Header-Content-Length": str(len(header))},
    )
    assert reply.status == 200, reply.body
    length = int(reply.headers["inference-header-content-length"])
    assert orjson.loads(reply.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 24}
    got = np.frombuffer(reply.body[length:], "<f4").reshape(2, 3)
    np.testing.assert_allclose(got, session.run(None, {"x": x})[0], rtol=1e-5)


def test_every_kind_of_tensor_comes_back_as_it_went_in(shared):
    inputs = {
        "t": {"datatype": "BYTES", "shape": [2, 1], "data": ["", "\u00fc\u2028\u0000"]},
        "f": {"datatype": "FP32", "shape": [2, 2], "data": [[0.1, -0.0], [1e-38, 3.4e38]]},
        "i": {"datatype": "INT64", "shape": [2], "data": [2**63 - 1, -(2**63)]},
        "u": {"datatype": "UINT8", "shape": [2], "data": [0, 255]},
        "b": {"datatype": "BOOL", "shape": [2], "data": [True, False]},
        "d": {"datatype": "FP64", "shape": [2], "data": [0.1, 1e300]},
    }
    half = np.array([0.5, -2], "<f2").tobytes()
    document = {"inputs": [{"name": name, **value} for name, value in inputs.items()]}
    document["inputs"].append(
        {"name": "h", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}
    )
    header = orjson.dumps(document)
    length = {"Inference-Header-Content-Length": str(len(header))}
    reply = shared("kinds").request("POST", "/v2/models/kinds/infer", header + half, length)
    assert reply.status == 200, reply.body
    outputs = {output["name"].removesuffix("_out"): output for output in reply.json["outputs"]}
    for name, value in inputs.items():
        flat = np.array(value["data"], dtype=object).reshape(-1).tolist()
        assert outputs[name]["data"] == pytest.approx(flat) if name == "f" else flat
        assert outputs[name]["datatype"] == value["datatype"]
    assert outputs["h"]["data"] == [0.5, -2]


def test_predict_answers_one_object_per_row(shared, session):
    reply = shared("table").post("/predict", {"rows": [ROW, {"d": 0, "c": 0, "b": 0, "a": 0}], "id": "q"})
    assert reply.status == 200, reply.body
    want = session.run(None, {"x": np.array([[1, 2, 3, 4], [0, 0, 0, 0]], np.float32)})[0]
    document = reply.json
    assert document["id"] == "q"
    assert (document["model"], document["version"], document["arm"]) == ("table", "3", "production")
    assert document["digest"] == shared("table").addresses["digest"]
    for answer, row in zip(document["predictions"], want, strict=True):
        assert answer["label"] == ("low", "mid", "high")[row.argmax()]
        assert answer["label_index"] == row.argmax()
        assert answer["confidence"] == pytest.approx(row.max(), rel=1e-5)
        assert answer["probabilities"] == pytest.approx(row.tolist(), rel=1e-5)


def test_predict_takes_lists_where_the_model_names_no_columns(shared, session):
    reply = shared("affine").post("/predict", {"rows": [[1, 2, 3, 4]]})
    want = session.run(None, {"x": np.array([[1, 2, 3, 4]], np.float32)})[0][0]
    assert reply.json["predictions"][0]["probabilities"] == pytest.approx(want.tolist(), rel=1e-5)


def test_predict_fills_up_the_rows_of_a_model_that_takes_exactly_two(shared):
    for count in (1, 2, 5):
        rows = [[float(row), 0, -1] for row in range(count)]
        reply = shared("double_pair").post("/predict", {"rows": rows})
        assert [answer["y"] for answer in reply.json["predictions"]] == [
            [2.0 * row, 0.0, -2.0] for row in range(count)
        ]
    x = {"datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    assert shared("double_pair").infer({"x": x}).status == 400


def test_answers_that_are_not_one_per_row_are_left_to_infer(shared):
    server = shared("column_mean")
    reply = server.post("/predict", {"rows": [[1, 2], [3, 4]]})
    assert reply.status == 422
    x = {"datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    assert server.infer({"x": x}).json["outputs"][0]["data"] == [2, 3]
    assert server.get("/debug/config").json["joins_requests"] is False


def test_many_callers_at_once_each_get_their_own_answers(serve, session):
    server = serve("affine", max_batch_size=8, max_queue_delay_ms=2)

    def ask(seed):
        rows = 1 + seed % 11
        x = np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)
        if seed % 3:
            reply = server.infer({"x": tensor(x)})
            got = reply.json["outputs"][0]["data"]
        else:
            reply = server.post("/predict", {"rows": x.tolist()})
            got = [cell for answer in reply.json["predictions"] for cell in answer["probabilities"]]
        want = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(np.array(got).reshape(rows, 3), want, rtol=1e-5)

    with ThreadPoolExecutor(16) as callers:
        list(callers.map(ask, range(150)))


@pytest.mark.parametrize("batch", [1, 8])
def test_a_poisoned_request_never_costs_another_its_answer(serve, batch):
    server = serve("lookup", max_batch_size=batch, max_queue_delay_ms=20)

    def ask(index):
        value = 99 if index % 8 == 3 else index % 4
        reply = server.infer({"i": {"datatype": "INT64", "shape": [1, 1], "data": [value]}})
        if value == 99:
            assert reply.status == 400
            assert "Gather" not in reply.json["error"]
        else:
            assert reply.json["outputs"][0]["data"] == [10 + value]

    with ThreadPoolExecutor(16) as callers:
        list(callers.map(ask, range(64)))


def test_an_answer_that_is_not_finite_is_refused(shared):
    server = shared("logarithm")
    for value in (0, -1):
        reply = server.infer({"x": {"datatype": "FP32", "shape": [1, 1], "data": [value]}})
        assert (reply.status, list(reply.json)) == (422, ["error"])
        assert server.post("/predict", {"rows": [[value]]}).status == 422
    assert server.post("/predict", {"rows": [[1]]}).json["predictions"] == [{"y": [0.0]}]


def test_an_answer_that_is_not_finite_is_null_where_the_settings_say_so(serve):
    reply = serve("logarithm", non_finite="null").infer(
        {"x": {"datatype": "FP32", "shape": [2, 1], "data": [0, 1]}}
    )
    assert reply.json["outputs"][0]["data"] == [None, 0.0]
    assert reply.json["parameters"]["nonfinite"] is True


BAD_BODIES = [
    *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"rows":', b'"text"', b"[" * 100_000),
    *(b'{"inputs":[]}', b'{"rows":[]}', b'{"rows":{}}', b'{"rows":7}', b'{"rows":[7]}', b'{"rows":[{}]}'),
    *(b'{"rows":[{"a":1,"b":2,"c":3}]}', b'{"rows":[{"a":1,"b":2,"c":3,"d":4,"SECRET":5}]}'),
    *(b'{"rows":[[1,2,3,4]]}', b'{"rows":[{"a":1,"b":2,"c":3,"d":4}],"x":1}'),
    *(
        b'{"rows":[{"a":1,"b":2,"c":3,"d":%b}]}' % value
        for value in (
            *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b'"SECRET"', b"true", b"null"),
            *(b'"\\ud800"', b"[4]", b'{"SECRET":1}', b"1e39", b'"NaN"', b"4,", b"[" * 200 + b"]" * 200),
            b'4,"d":5',
        )
    ),
    b'{"rows":[{"a":1,"b":2,"c":3,"d":4},[1,2,3,4]]}',
    b'{"rows":[' + b",".join([b'{"a":1,"b":2,"c":3,"d":4}'] * 1025) + b"]}",
    *(
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":%b,"data":%b}]}' % pair
        for pair in (
            *((b"[1,4]", b"[1,2,3]"), (b"[0,4]", b"[]"), (b"[4]", b"[1,2,3,4]"), (b"[1,4]", b"[1,2,3,NaN]")),
            *((b"[1,4]", b"[1,2,3,true]"), (b"[1,4]", b'[1,2,3,"4"]'), (b"[-1,4]", b"[1,2,3,4]")),
            *((b"[1,4]", b"[[1,2],[3]]"), (b'"[1,4]"', b"[1,2,3,4]"), (b"[1e2,4]", b"[1,2,3,4]")),
            *((b"[1025,4]", b"[" + b"0," * 4099 + b"0]"), (b"[4294967296,4294967296]", b"[1]")),
            (b"[1,4]", b"[1,2,3,1e39]"),
        )
    ),
    b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1,4],"data":[1,2,3,4]}]}',
    b'{"inputs":[{"name":"SECRET","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}',
]


@pytest.mark.parametrize("path", ["/predict", "/v2/models/table/infer"])
def test_no_body_ever_causes_a_5xx_and_the_next_request_is_answered(shared, path):
    server = shared("table")
    for body in BAD_BODIES:
        reply = server.post(path, body)
        assert reply.status == 400, (body[:100], reply.body)
        assert list(reply.json) == ["error"]
        assert b"SECRET" not in reply.body
    assert server.post("/predict", {"rows": [ROW]}).status == 200
    assert server.infer(GOOD).status == 200
    assert server.errors.read_text() == ""


@pytest.mark.parametrize(
    "shape", [[2**62, 0], [0, 2**62], [2**64 - 1, 0], [0, 2**64 - 1], [2**31 + 1, 0], [2**31, 0], [0, 2**31]]
)
def test_a_huge_dimension_of_an_empty_tensor_is_refused_and_the_next_request_is_answered(shared, shape):
    server = shared("identity")
    x = {"datatype": "FP32", "shape": shape}
    reply = server.infer({"x": x | {"data": []}})
    assert (reply.status, list(reply.json)) == (400, ["error"])
    header = orjson.dumps({"inputs": [{"name": "x", **x, "parameters": {"binary_data_size": 0}}]})
    length = {"Inference-Header-Content-Length": str(len(header))}
    reply = server.request("POST", "/v2/models/identity/infer", header, length)
    assert (reply.status, list(reply.json)) == (400, ["error"])
    assert server.infer({"x": x | {"shape": [1, 2], "data": [1, 2]}}).json["outputs"][0]["data"] == [1, 2]
    assert server.errors.read_text() == ""


@pytest.mark.parametrize(
    "rows",
    [
        b"[0]," * 3_999_999 + b"[0]",
        b"{}," * 4_999_999 + b"{}",
        b"{" + b",".join(b'"%d":1' % n for n in range(1_200_000)) + b"}",
    ],
    ids=["lists", "objects", "names"],
)
def test_a_large_body_that_no_model_takes_is_refused(shared, rows):
    body = b'{"rows":[' + rows + b"]}"
    assert len(body) < 16 * 1024 * 1024
    for server, good in ((shared("table"), ROW), (shared("affine"), [1, 2, 3, 4])):
        reply = server.post("/predict", body)
        assert (reply.status, list(reply.json)) == (400, ["error"])
        assert server.post("/predict", {"rows": [good]}).status == 200


def test_text_full_of_brackets_is_answered(shared):
    reply = shared("table").post("/predict", {"rows": [ROW], "id": '\\"{[:' * 50_000})
    assert reply.status == 200
    assert reply.json["id"] == '\\"{[:' * 50_000


def test_a_request_takes_as_many_rows_as_the_limit_says_and_no_more(serve):
    server = serve("affine", max_rows=20, max_batch_size=8)
    for rows, status in ((20, 200), (21, 400)):
        x = np.zeros((rows, 4), np.float32)
        assert server.infer({"x": tensor(x)}).status == status
        assert server.post("/predict", {"rows": x.tolist()}).status == status


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        ("application/octet-stream", 200),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/plain", 415),
        ("application/vnd.bentoml+pickle", 415),
    ],
)
def test_json_is_taken_under_its_names_and_forms_are_not(shared, content_type, status):
    headers = {} if content_type is None else {"Content-Type": content_type}
    reply = shared("table").request("POST", "/predict", orjson.dumps({"rows": [ROW]}), headers)
    assert reply.status == status


def raw_deflate(body):
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize(
    ("encoding", "encode", "status"),
    [
        ("gzip", gzip.compress, 200),
        ("GZIP", gzip.compress, 200),
        ("deflate", zlib.compress, 200),
        ("identity", bytes, 200),
        ("deflate", raw_deflate, 400),
        ("gzip", bytes, 400),
        ("gzip", lambda body: gzip.compress(body)[:-9], 400),
        ("gzip", lambda body: gzip.compress(body) + b"more", 400),
        ("br", bytes, 415),
        ("gzip, gzip", gzip.compress, 415),
    ],
)
def test_compressed_bodies_are_decoded(shared, encoding, encode, status):
    body = encode(orjson.dumps({"rows": [ROW]}))
    reply = shared("table").post("/predict", body, {"Content-Encoding": encoding})
    assert reply.status == status, reply.body


def test_a_body_that_grows_beyond_the_limit_when_decoded_is_refused(serve):
    server = serve("table", max_body_bytes=4096)
    body = orjson.dumps({"rows": [ROW]})
    for length, status in ((4096, 200), (4097, 413)):
        padded = gzip.compress(body + b" " * (length - len(body)))
        assert server.post("/predict", padded, {"Content-Encoding": "gzip"}).status == status
    began = time.monotonic()
    bomb = gzip.compress(b" " * 50_000_000)[:4000]
    assert server.post("/predict", bomb, {"Content-Encoding": "gzip"}).status == 413
    assert time.monotonic() - began < 20


def test_a_request_id_is_kept_where_it_is_harmless(shared):
    server = shared("table")
    for given in ("abc-123", "A" * 64):
        assert server.get("/v2", {"X-Request-Id": given}).headers["x-request-id"] == given
    for given in ("A" * 65, "a b", "a;b", "\u00e4"):
        assert server.get("/v2", {"X-Request-Id": given}).headers["x-request-id"] != given


def test_every_answer_says_who_gave_it(shared):
    server = shared("table")
    for reply in (server.get("/"), server.get("/nowhere"), server.post("/predict", b"x"), server.infer(GOOD)):
        assert reply.headers["x-mlx-model"] == "table"
        assert reply.headers["x-mlx-version"] == "3"
        assert reply.headers["x-mlx-digest"] == server.addresses["digest"]
        assert reply.headers["x-mlx-arm"] == "production"


def test_health_and_metadata_answer_json(shared):
    server = shared("table")
    assert server.get("/v2/health/live").json == {"live": True}
    assert server.get("/v2/health/ready").json == {"ready": True, "live": True}
    assert server.get("/v2/models/table/ready").json == {"name": "table", "ready": True}
    assert server.get("/v2").json == server.get("/v2/").json
    assert "binary_tensor_data" in server.get("/v2").json["extensions"]
    for path in ("/v2/models/table", "/v2/models/table/versions/3", "/v2/models/t%61ble"):
        assert server.get(path).json["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    head = server.request("HEAD", "/v2/health/ready")
    assert (head.status, head.body) == (200, b"")
    assert server.get("/openapi.json").json["openapi"].startswith("3.")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("GET", "/v2/models/table/versions/4", 404),
        ("GET", "/metrics?", 404),
        ("GET", "/predict", 405),
        ("DELETE", "/v2/models/table", 405),
        ("OPTIONS", "/predict", 405),
    ],
)
def test_what_is_not_there_is_told_in_the_protocols_form(shared, method, path, status):
    server = shared("table")
    path = path if path != "/metrics?" else "//metrics"
    reply = server.request(method, path)
    assert reply.status == status
    assert list(reply.json) == ["error"]
    assert ("allow" in reply.headers) == (status == 405)


def test_the_page_shows_a_request_that_works(shared):
    server = shared("table")
    page = server.get("/").body.decode()
    body = page.partition("-d '")[2].partition("'")[0]
    assert server.post("/v2/models/table/infer", body.encode()).status == 200


def test_a_name_that_needs_quoting_is_served_under_its_quoted_path(tmp_path, packages, start_server):
    server = start_server(packages["affine"], name="a b/\u00e4")
    reply = server.get("/v2/models/a%20b%2F%C3%A4")
    assert (reply.status, reply.json["name"]) == (200, "a b/\u00e4")
    assert reply.headers["x-mlx-model"] == "a b/%C3%A4"
    assert server.get("/v2/models/a%20b/%C3%A4/ready").status == 200
    assert 'model="a b/\u00e4"' in server.get("/metrics").body.decode()


@pytest.mark.parametrize("wish", ["0", "-5", "soon", "1.5", "9" * 10])
def test_a_timeout_that_is_no_number_of_milliseconds_is_refused(shared, wish):
    assert shared("table").post("/predict", {"rows": [ROW]}, {"X-Request-Timeout-Ms": wish}).status == 400


def test_a_deadline_ends_a_run_and_the_server_goes_on(serve):
    server = serve("countdown", request_timeout_ms=600)
    forever = {"n": {"datatype": "INT64", "shape": [1, 1], "data": [2**40]}}
    began = time.monotonic()
    assert server.infer(forever).status == 504
    assert server.infer(forever, parameters={"timeout": 50_000}).status == 504
    assert server.post("/predict", {"rows": [[2**40]]}, {"X-Request-Timeout-Ms": "50"}).status == 504
    assert time.monotonic() - began < 15
    quick = {"n": {"datatype": "INT64", "shape": [1, 1], "data": [3]}}
    assert server.infer(quick).json["outputs"][0]["data"] == [3]


def test_a_hanging_request_does_not_take_its_neighbours_along(serve):
    server = serve("countdown", request_timeout_ms=3000, max_queue_delay_ms=50)

    def ask(value):
        return server.infer({"n": {"datatype": "INT64", "shape": [1, 1], "data": [value]}}).status

    with ThreadPoolExecutor(6) as callers:
        assert list(callers.map(ask, [1, 2, 2**40, 3, 4, 5])) == [200, 200, 504, 200, 200, 200]


def test_a_full_queue_is_told_with_429_and_when_to_come_back(serve):
    server = serve("countdown", max_queue_rows=1, max_batch_size=1, request_timeout_ms=1500)

    def ask(_):
        return server.infer({"n": {"datatype": "INT64", "shape": [1, 1], "data": [2**40]}})

    with ThreadPoolExecutor(8) as callers:
        replies = list(callers.map(ask, range(8)))
    assert {reply.status for reply in replies} == {429, 504}
    for reply in replies:
        assert ("retry-after" in reply.headers) == (reply.status == 429)
    assert server.infer({"n": {"datatype": "INT64", "shape": [1, 1], "data": [1]}}).status == 200
