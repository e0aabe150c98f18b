import struct
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mlx_platform.core.tensors import NUMPY_TYPES, TensorSpec
from mlx_platform.serving.protocol_v2 import parse_infer, render_infer
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.signature import Signature

X = TensorSpec("x", "FP32", (None, 3))
Y = TensorSpec("y", "FP32", (None, 2))


def one(datatype: str, *shape: int | None) -> Signature:
    return Signature.of([TensorSpec("x", datatype, shape)], [Y])


def body(data: Any, shape: Any, datatype: Any = "FP32", **members: Any) -> bytes:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    return orjson.dumps({"inputs": [tensor]} | members)


def refused(content: bytes, signature: Signature, header_length: bytes | None = None) -> str:
    with pytest.raises(Refusal) as caught:
        parse_infer(content, header_length, signature)
    assert caught.value.status == 400
    assert "SECRET" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL", "BYTES"])
@pytest.mark.parametrize(
    "shape", [[2**62, 0, 1, 1], [0, 2**31 + 1, 1, 1], [2**64 - 1, 0, 1, 1], [2**31, 2**31, 2**31, 0]]
)
def test_a_shape_that_numpy_cannot_make_is_refused(datatype, shape):
    signature = one(datatype, None, None, None, None)
    with_data = body([], shape, datatype)
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": 0}}
    header = orjson.dumps({"inputs": [tensor]})
    assert "does not take this shape" in refused(with_data, signature)
    assert "does not take this shape" in refused(header, signature, b"%d" % len(header))


def test_flat_and_nested_data_give_the_same_array():
    signature = one("FP32", None, 3)
    flat = parse_infer(body([1, 2.5, 3, 4, 5, 6], [2, 3]), None, signature)
    nested = parse_infer(body([[1, 2.5, 3], [4, 5, 6]], [2, 3]), None, signature)
    assert flat.feeds["x"].dtype == np.float32
    assert flat.feeds["x"].tolist() == nested.feeds["x"].tolist() == [[1, 2.5, 3], [4, 5, 6]]
    assert flat.cells["x"] == nested.cells["x"] == [1, 2.5, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([1, 2, 3, 4, 5, 6], [3, 2]),
        ([1, 2, 3], [3]),
        ([1, 2, 3], [1, 3, 1]),
        ([1, 2, 3], "13"),
        ([1, 2, 3], [1, "3"]),
        ([1, 2, 3], [1, 3.0]),
        ([1, 2, 3], [True, 3]),
        ([1, 2, 3], [-1, 3]),
        ([1, 2, 3], None),
        ([1, 2, 3], [2**60, 3]),
        ([1, 2], [1, 3]),
        ([1, 2, 3, 4], [1, 3]),
        ([[1, 2], [3]], [1, 3]),
        ([[1, 2, 3], [4, 5]], [2, 3]),
        ([[1, 2, 3], 4], [2, 3]),
        ([[[1], [2], [3]]], [1, 3]),
        ([[1, 2, 3]], [2, 3]),
        ([1, 2, True], [1, 3]),
        ([1, 2, "3"], [1, 3]),
        ([1, 2, "SECRET"], [1, 3]),
        ([1, 2, None], [1, 3]),
        ([1, 2, [3]], [1, 3]),
        ([1, 2, {"SECRET": 1}], [1, 3]),
        ([1, 2, 1e39], [1, 3]),
        ([1, 2, -3.5e38], [1, 3]),
        ("AAAA", [1, 3]),
        (None, [1, 3]),
        (5, [1, 3]),
    ],
)
def test_data_that_do_not_fit_are_refused(data, shape):
    refused(body(data, shape), one("FP32", None, 3))


def test_numbers_at_the_edge_of_a_type_are_taken_and_one_beyond_is_not():
    for datatype, low, high in (("UINT8", 0, 255), ("INT8", -128, 127), ("INT64", -(2**63), 2**63 - 1)):
        call = parse_infer(body([low, high], [2], datatype), None, one(datatype, None))
        assert call.feeds["x"].tolist() == [low, high]
        refused(body([low, high + 1], [2], datatype), one(datatype, None))
    largest = np.finfo(np.float32).max
    below, limit = np.nextafter(2.0**128 - 2.0**103, 0), 2.0**128 - 2.0**103
    for edge in (float(largest), 3.4028235e38, float(below), -float(below)):
        call = parse_infer(body([edge] * 3, [1, 3]), None, one("FP32", None, 3))
        assert np.abs(call.feeds["x"]).max() == largest
    refused(body([limit] * 3, [1, 3]), one("FP32", None, 3))


@pytest.mark.parametrize(
    ("datatype", "cell"),
    [
        ("INT64", 1.5),
        ("INT64", 1.0),
        ("INT32", True),
        ("INT32", "1"),
        ("BOOL", 1),
        ("BOOL", "true"),
        ("BYTES", 1),
        ("BYTES", None),
        ("FP64", "1"),
        ("FP64", True),
        ("FP16", 1.0),
    ],
)
def test_a_value_of_another_type_is_refused_rather_than_converted(datatype, cell):
    refused(body([cell], [1], datatype), one(datatype, None))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "list of inputs"),
        ({"inputs": {}}, "list of inputs"),
        ({"inputs": [1]}, "an object"),
        ({"inputs": [{"name": "SECRET"}]}, "takes the inputs 'x'"),
        ({"inputs": [{"name": ["x"]}]}, "takes the inputs 'x'"),
        ({"inputs": []}, "'x' is missing"),
        ({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}]}, "takes FP32"),
        ({"inputs": [{"name": "x", "datatype": ["FP32"], "shape": [1, 3], "data": [1, 2, 3]}]}, "takes FP32"),
        ({"inputs": [], "id": 7}, "id must be a string"),
        ({"inputs": [], "parameters": []}, "parameters"),
        ({"inputs": [], "parameters": {"timeout": "1"}}, "'x' is missing"),
    ],
)
def test_a_request_that_lacks_what_the_model_needs_says_what(document, says):
    assert says in refused(orjson.dumps(document), one("FP32", None, 3))


def test_extensions_that_would_change_the_answer_are_refused_rather_than_ignored():
    def asked(**parameters):
        return refused(body([1, 2, 3], [1, 3], parameters=parameters), one("FP32", None, 3))

    assert "no sequence extension: leave out 'sequence_id'" in asked(sequence_id=7)
    outputs = [{"name": "y", "parameters": {"classification": 2}}]
    content = body([1, 2, 3], [1, 3], outputs=outputs)
    assert "no classification extension" in refused(content, one("FP32", None, 3))
    shared = {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"shared_memory_region": "r"}}
    assert "no shared memory extension" in refused(orjson.dumps({"inputs": [shared]}), one("FP32", None, 3))
    unset = body([1, 2, 3], [1, 3], parameters={"sequence_id": 0, "sequence_start": False})
    assert parse_infer(unset, None, one("FP32", None, 3)).feeds["x"].tolist() == [[1, 2, 3]]


def test_an_input_that_is_there_twice_is_refused():
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    assert "twice" in refused(orjson.dumps({"inputs": [tensor, tensor]}), one("FP32", None, 3))


def test_outputs_are_those_asked_for_in_that_order_or_all():
    signature = Signature.of([X], [Y, TensorSpec("z", "INT64", (None,))])
    content = [[1, 2, 3]], [1, 3]
    assert parse_infer(body(*content), None, signature).outputs == ("y", "z")
    assert parse_infer(body(*content, outputs=[]), None, signature).outputs == ("y", "z")
    asked = [{"name": "z"}, {"name": "y"}]
    assert parse_infer(body(*content, outputs=asked), None, signature).outputs == ("z", "y")
    for wrong in ([{"name": "SECRET"}], [{"name": "y"}] * 2, ["y"], "y", {}, [{"name": ["y"]}], False):
        refused(body(*content, outputs=wrong), signature)


def test_a_timeout_comes_in_microseconds_and_zero_is_none():
    def timeout(value: Any) -> float | None:
        content = body([1, 2, 3], [1, 3], parameters={"timeout": value})
        return parse_infer(content, None, one("FP32", None, 3)).timeout

    assert timeout(1500) == pytest.approx(0.0015)
    assert timeout(0) is None
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(Refusal, match="microseconds"):
            timeout(wrong)


def binary_request(array: np.ndarray, datatype: str, raw: bytes, **parameters: Any) -> tuple[bytes, bytes]:
    tensor = {"name": "x", "datatype": datatype, "shape": list(array.shape)}
    tensor["parameters"] = {"binary_data_size": len(raw)} | parameters
    header = orjson.dumps({"inputs": [tensor]})
    return header + raw, str(len(header)).encode()


numeric = [name for name in NUMPY_TYPES if name not in {"BYTES", "BOOL"}]


@settings(max_examples=60)
@given(st.sampled_from(numeric), st.data())
def test_what_goes_out_as_bytes_comes_in_again_unchanged(datatype, data):
    spec = TensorSpec("x", datatype, (None, None))
    arrays = nps.arrays(
        NUMPY_TYPES[datatype],
        nps.array_shapes(min_dims=2, max_dims=2, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else None,
    )
    array = data.draw(arrays)
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    content, length = binary_request(array, datatype, raw)
    call = parse_infer(content, length, Signature.of([spec], [spec]))
    np.testing.assert_array_equal(call.feeds["x"], array)
    answer, header_length = render_infer(
        parse_infer(content, length, Signature.of([spec], [spec])), {"x": array}, Signature.of([], [spec]), {}
    )
    assert header_length is None
    if datatype != "FP16":
        back = orjson.loads(answer)["outputs"][0]
        np.testing.assert_array_equal(np.array(back["data"], array.dtype).reshape(back["shape"]), array)


def test_text_travels_as_bytes_with_lengths():
    texts = np.array(["", "ä", "long " * 50], dtype=object)
    raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    content, length = binary_request(texts, "BYTES", raw)
    spec = TensorSpec("x", "BYTES", (None,))
    call = parse_infer(content, length, Signature.of([spec], [spec]))
    assert call.feeds["x"].tolist() == texts.tolist()


@pytest.mark.parametrize("raw", [b"\1\0\0", b"\5\0\0\0ab", b"\xff\xff\xff\xffab", b"\1\0\0\0\xff", b""])
def test_damaged_text_is_refused(raw):
    content, length = binary_request(np.array(["a"], dtype=object), "BYTES", raw)
    refused(content, one("BYTES", None), length)


@pytest.mark.parametrize("length", [b"0", b"-1", b"x", b"1e3", b"", b"99999999", b"9" * 400, b"\xd9\xa1"])
def test_a_header_length_that_is_no_part_of_the_body_is_refused(length):
    refused(body([1, 2, 3], [1, 3]), one("FP32", None, 3), length)


def test_binary_sizes_must_add_up_exactly():
    signature = one("FP32", None, 3)
    array = np.ones((1, 3), np.float32)
    raw = array.tobytes()
    for content, length in (
        binary_request(array, "FP32", raw + b"\0"),
        binary_request(array, "FP32", raw[:-1]),
        binary_request(array, "FP32", raw, binary_data_size=8),
        binary_request(array, "FP32", raw, binary_data_size=16),
        binary_request(array, "FP32", raw, binary_data_size=-1),
        binary_request(array, "FP32", raw, binary_data_size="12"),
        binary_request(np.ones((1, 3)), "FP32", struct.pack("<3f", 1, np.nan, 2)),
    ):
        refused(content, signature, length)
    content, length = binary_request(array, "FP32", raw)
    refused(content + b"x", signature, length)
    refused(content, signature, None)
    json_part = body([1, 2, 3], [1, 3])
    assert "longer" in refused(json_part + b"x", signature, str(len(json_part)).encode())


def test_a_byte_of_a_truth_is_zero_or_one():
    good, length = binary_request(np.zeros(2), "BOOL", b"\1\0")
    assert parse_infer(good, length, one("BOOL", None)).feeds["x"].tolist() == [True, False]
    bad, length = binary_request(np.zeros(2), "BOOL", b"\1\2")
    refused(bad, one("BOOL", None), length)


def test_outputs_are_binary_where_the_request_says_so():
    signature = Signature.of([X], [Y, TensorSpec("z", "FP32", (None,))])
    outputs = {"y": np.array([[1, 2]], np.float32), "z": np.array([np.nan], np.float32)}
    asked = [{"name": "y"}, {"name": "z", "parameters": {"binary_data": True}}]
    call = parse_infer(body([1, 2, 3], [1, 3], outputs=asked, id="7"), None, signature)
    answer, length = render_infer(call, outputs, signature, {"model_name": "m"})
    assert length is not None
    document = orjson.loads(answer[:length])
    assert document["id"] == "7"
    assert document["outputs"][0]["data"] == [1, 2]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 4}
    assert np.isnan(np.frombuffer(answer[length:], "<f4")[0])
    everything = parse_infer(
        body([1, 2, 3], [1, 3], parameters={"binary_data_output": True}), None, signature
    )
    assert everything.binary == {"y", "z"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_json_cannot_carry_is_refused_with_422(value):
    signature = one("FP32", None, 3)
    call = parse_infer(body([1, 2, 3], [1, 3]), None, signature)
    for dtype in (np.float16, np.float32, np.float64):
        with pytest.raises(Refusal, match="NaN or infinity") as caught:
            render_infer(call, {"y": np.array([[1, value]], dtype)}, signature, {})
        assert caught.value.status == 422


def test_the_largest_finite_answers_are_answers():
    signature = one("FP32", None, 3)
    call = parse_infer(body([1, 2, 3], [1, 3]), None, signature)
    answer, _ = render_infer(call, {"y": np.array([[3e38, -3e38]], np.float32)}, signature, {})
    assert orjson.loads(answer)["outputs"][0]["data"] == [3e38, -3e38]


def test_text_answers_are_strings_and_bytes_that_are_no_text_are_refused():
    signature = Signature.of([X], [TensorSpec("y", "BYTES", (None,))])
    call = parse_infer(body([1, 2, 3], [1, 3]), None, signature)
    answer, _ = render_infer(call, {"y": np.array(["a", b"\xc3\xa4"], dtype=object)}, signature, {})
    assert orjson.loads(answer)["outputs"][0]["data"] == ["a", "ä"]
    with pytest.raises(Refusal, match="no UTF-8"):
        render_infer(call, {"y": np.array([b"\xff"], dtype=object)}, signature, {})


@given(st.binary(max_size=120), st.none() | st.binary(max_size=4))
def test_no_body_raises_anything_but_a_refusal(content, header_length):
    with suppress(Refusal):
        parse_infer(content, header_length, one("FP32", None, 3))


def test_values_without_a_form_in_json_are_null_where_that_is_wished():
    signature = Signature.of([X], [Y])
    call = parse_infer(body([1, 2, 3], [1, 3]), None, signature)
    outputs = {"y": np.array([[0.1, np.inf], [-np.inf, np.nan]], np.float32)}
    head = {"parameters": {"degraded": "cpu"}}
    answer = orjson.loads(render_infer(call, outputs, signature, head, nulls=True)[0])
    assert answer["outputs"][0]["data"] == [pytest.approx(0.1), None, None, None]
    assert answer["parameters"] == {"degraded": "cpu", "nonfinite": True}
    assert head == {"parameters": {"degraded": "cpu"}}
    finite = {"y": np.ones((1, 2), np.float32)}
    assert "parameters" not in orjson.loads(render_infer(call, finite, signature, {}, nulls=True)[0])
