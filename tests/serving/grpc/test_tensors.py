"""Messages in, arrays out and back, without a server."""

from contextlib import suppress

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from grpc_client import CLASSES, request
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mlx_platform.core.tensors import NUMPY_TYPES, TensorSpec
from mlx_platform.serving.grpc.tensors import parse_message, write_message
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.signature import Signature

X = TensorSpec("x", "FP32", (None, 2))
Y = TensorSpec("y", "FP32", (None, 2))
PAIR = Signature.of([X, TensorSpec("z", "INT64", (None,))], [Y, TensorSpec("q", "BYTES", (None,))])
GOOD = np.array([[1, 2]], "<f4").tobytes()
FIELDS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def one(datatype, *shape):
    return Signature.of([TensorSpec("x", datatype, shape)], [Y])


def refused(message, signature):
    with pytest.raises(Refusal) as caught:
        parse_message(message, signature)
    assert caught.value.status == 400
    return caught.value.message


@given(st.data(), st.sampled_from([name for name in NUMPY_TYPES if name != "BYTES"]))
def test_raw_tensors_arrive_as_they_were_sent(data, datatype):
    shape = data.draw(nps.array_shapes(max_dims=3, max_side=4))
    finite = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    array = data.draw(nps.arrays(NUMPY_TYPES[datatype], shape, elements=finite))
    message = request(
        "m", ("x", datatype, list(shape), array.astype(array.dtype.newbyteorder("<")).tobytes())
    )
    got = parse_message(message, one(datatype, *[None] * len(shape))).feeds["x"]
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


@given(st.data(), st.sampled_from(list(FIELDS)))
def test_typed_contents_arrive_as_they_were_sent(data, datatype):
    finite = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    array = data.draw(nps.arrays(NUMPY_TYPES[datatype], (2, 3), elements=finite))
    message = request("m", ("x", datatype, [2, 3], (FIELDS[datatype], array.reshape(-1).tolist())))
    call = parse_message(message, one(datatype, None, 3))
    assert call.feeds["x"].dtype == array.dtype
    np.testing.assert_array_equal(call.feeds["x"], array)


def test_texts_arrive_in_either_form():
    texts = ["", "\u00fc\u2028"]
    typed = request("m", ("x", "BYTES", [2], ("bytes_contents", [text.encode() for text in texts])))
    raw = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
    for message in (typed, request("m", ("x", "BYTES", [2], raw))):
        assert parse_message(message, one("BYTES", None)).feeds["x"].tolist() == texts


def test_inputs_stand_in_the_order_of_the_model():
    message = request("m", ("z", "INT64", [1], np.array([7]).tobytes()), ("x", "FP32", [1, 2], GOOD))
    assert list(parse_message(message, PAIR).feeds) == ["x", "z"]


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([("x", "FP32", [1, 2], GOOD), ("x", "FP32", [1, 2], GOOD)], "there twice"),
        ([("x", "FP32", [1, 2], GOOD)], "'z' is missing"),
        ([("SECRET", "FP32", [1, 2], GOOD)], "takes the inputs 'x', 'z'"),
        ([("x", "FP64", [1, 2], GOOD)], "takes FP32"),
        ([("x", "FP32", [1, 3], GOOD)], "does not take this shape"),
        ([("x", "FP32", [-1, 2], GOOD)], "does not take this shape"),
        ([("x", "FP32", [2**62, 2], GOOD)], "does not take this shape"),
        ([("x", "FP32", [2], GOOD)], "as many dimensions"),
        ([("x", "FP32", [1, 2], GOOD[:-1])], "not as long as its shape needs"),
        ([("x", "FP32", [1, 2], np.array([1, np.nan], "<f4").tobytes())], "NaN or infinity"),
        ([("x", "FP32", [1, 2], ("fp32_contents", [1, float("inf")]))], "range"),
        ([("x", "FP32", [1, 2], ("fp32_contents", [1]))], "as many values"),
        ([("x", "FP32", [0, 2], ("fp32_contents", [1, 2]))], "as many values"),
        ([("x", "FP32", [1, 2], ("int_contents", [1, 2]))], "as many values"),
        ([("x", "FP32", [1, 2], None)], "as many values"),
        ([], "is missing"),
    ],
)
def test_what_the_model_does_not_take_is_refused_with_its_name(tensors, problem):
    message = refused(request("m", *tensors), PAIR)
    assert problem in message
    assert "SECRET" not in message


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [("UINT8", "uint_contents", 256), ("INT8", "int_contents", -129), ("INT16", "int_contents", 2**15)],
)
def test_contents_beyond_the_range_of_a_small_integer_are_refused(datatype, field, value):
    assert "range" in refused(request("m", ("x", datatype, [1], (field, [value]))), one(datatype, None))


def test_half_precision_is_taken_raw_only():
    raw = np.array([0.5], "<f2").tobytes()
    assert parse_message(request("m", ("x", "FP16", [1], raw)), one("FP16", None)).feeds["x"] == [0.5]
    assert "raw_input_contents" in refused(request("m", ("x", "FP16", [1], None)), one("FP16", None))


def test_contents_beside_raw_contents_are_refused():
    message = request("m", ("x", "FP32", [1, 2], GOOD))
    message.inputs[0].contents.fp32_contents.append(1)
    assert "both" in refused(message, one("FP32", None, 2))
    message = request("m", ("x", "FP32", [1, 2], GOOD))
    message.raw_input_contents.append(GOOD)
    assert "as many raw_input_contents as inputs" in refused(message, one("FP32", None, 2))


def test_parameters_mean_what_they_mean_over_http():
    message = request("m", ("x", "FP32", [1, 2], GOOD))
    message.parameters["timeout"].int64_param = 1500
    message.parameters["tone"].string_param = "kind"
    call = parse_message(message, one("FP32", None, 2))
    assert call.timeout == 0.0015
    assert call.parameters == b'{"tone":"kind"}'
    message.parameters["timeout"].string_param = "soon"
    assert "timeout" in refused(message, one("FP32", None, 2))
    del message.parameters["timeout"]
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert "no shared memory extension" in refused(message, one("FP32", None, 2))
    del message.inputs[0].parameters["shared_memory_region"]
    message.outputs.add(name="y").parameters["classification"].int64_param = 2
    assert "no classification extension" in refused(message, one("FP32", None, 2))


def test_the_outputs_that_were_asked_for_are_written_in_that_order():
    message = request("m", ("z", "INT64", [1], np.array([7]).tobytes()), ("x", "FP32", [1, 2], GOOD))
    for name in ("q", "y"):
        message.outputs.add(name=name)
    call = parse_message(message, PAIR)
    response = CLASSES["inference.ModelInferResponse"]()
    outputs = {"y": np.array([[np.nan, np.inf]], np.float32), "q": np.array(["a"], object)}
    write_message(response, call, outputs, PAIR)
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in response.outputs] == [
        ("q", "BYTES", [1]),
        ("y", "FP32", [1, 2]),
    ]
    assert response.raw_output_contents[0] == b"\x01\x00\x00\x00a"
    np.testing.assert_array_equal(np.frombuffer(response.raw_output_contents[1], "<f4"), [np.nan, np.inf])
    message.outputs.add(name="y")
    assert "asked for twice" in refused(message, PAIR)
    message.outputs[-1].name = "nothing"
    assert "gives the outputs" in refused(message, PAIR)


@given(st.binary(max_size=200))
def test_no_message_raises_anything_but_a_refusal(content):
    with suppress(DecodeError, Refusal):
        parse_message(CLASSES["inference.ModelInferRequest"].FromString(content), PAIR)


@given(st.data())
def test_no_combination_of_fields_raises_anything_but_a_refusal(data):
    names = st.sampled_from(["x", "z", "w", ""])
    datatypes = st.sampled_from(["FP32", "INT64", "FP16", "BYTES", "fp32", ""])
    shapes = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=4)
    contents = st.binary(max_size=24) | st.none() | st.just(("fp32_contents", [1.0, 2.0]))
    tensors = data.draw(st.lists(st.tuples(names, datatypes, shapes, contents), max_size=3))
    with suppress(Refusal):
        parse_message(request("m", *tensors), PAIR)
