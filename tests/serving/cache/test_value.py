"""Answers as bytes: they come back bit for bit, or not at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.serving.cache.value import DamagedValueError, copied, is_sound, pack, unpack

KEY = b"k" * 16
SPECS = {
    "y": TensorSpec("y", "FP32", (None, 3)),
    "t": TensorSpec("t", "BYTES", (None,)),
    "i": TensorSpec("i", "INT64", ()),
}
ANSWER = {
    "y": np.array([[0.1, 0.2, 0.7]], np.float32),
    "t": np.array(["süß"], object),
    "i": np.array(7, np.int64),
}
VALUE = pack(KEY, ANSWER)


def test_an_answer_comes_back_as_it_was_and_belongs_to_the_caller():
    found = unpack(KEY, VALUE, SPECS)
    for name, array in ANSWER.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable


@given(st.data())
def test_no_damaged_byte_goes_unnoticed(data):
    place = data.draw(st.integers(0, len(VALUE) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    damaged = bytearray(VALUE)
    damaged[place] ^= bit
    with pytest.raises(DamagedValueError):
        unpack(KEY, bytes(damaged), SPECS)


@pytest.mark.parametrize("length", range(0, len(VALUE), 7))
def test_no_missing_end_goes_unnoticed(length):
    with pytest.raises(DamagedValueError):
        unpack(KEY, VALUE[:length], SPECS)


def test_an_answer_to_another_question_is_none():
    with pytest.raises(DamagedValueError, match="another question"):
        unpack(b"o" * 16, VALUE, SPECS)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("y", TensorSpec("y", "FP64", (None, 3))),
        ("y", TensorSpec("y", "FP32", (None, 2))),
        ("y", TensorSpec("y", "FP32", (None,))),
        ("t", TensorSpec("t", "INT8", (None,))),
        ("z", TensorSpec("z", "FP32", (None,))),
    ],
)
def test_what_the_model_does_not_give_is_no_answer(name, spec):
    with pytest.raises(DamagedValueError):
        unpack(KEY, VALUE, SPECS | {name: spec})
    with pytest.raises(DamagedValueError):
        unpack(KEY, VALUE, {name: SPECS[name] for name in ("y", "t")})


def test_whoever_does_not_know_the_secret_can_make_no_answer():
    signed = pack(KEY, ANSWER, b"secret")
    assert np.array_equal(unpack(KEY, signed, SPECS, b"secret")["y"], ANSWER["y"])
    for value, secret in ((signed, b""), (VALUE, b"secret"), (signed, b"s" * 100)):
        with pytest.raises(DamagedValueError):
            unpack(KEY, value, SPECS, secret)


def test_what_is_no_data_or_not_finite_is_not_kept():
    assert pack(KEY, {"t": np.array([b"raw"], object)}) is None
    assert pack(KEY, {"t": np.array(["\ud800"], object)}) is None
    assert not is_sound({"y": np.array([1.0, np.nan])})
    assert not is_sound({"a": np.array([1]), "y": np.array([np.inf], np.float16)})
    assert is_sound(ANSWER)


def test_a_forged_value_of_another_form_is_no_answer_whatever_it_holds():
    huge = {"y": np.zeros((2, 3), np.float32)}
    for changes in ({"shape": [2**40, 3]}, {"shape": [-1, 3]}, {"bytes": -4}, {"datatype": "O"}, {"name": 5}):
        forged = _forged(huge, **changes)
        with pytest.raises(DamagedValueError):
            unpack(KEY, forged, {"y": SPECS["y"]})


def _forged(tensors, **changes):
    """A value with a right checksum over a header that lies."""
    import orjson

    from mlx_platform.serving.cache import value

    (name, array), *_ = tensors.items()
    entry = {"name": name, "datatype": "FP32", "shape": list(array.shape), "bytes": array.nbytes} | changes
    head = orjson.dumps([entry])
    body = KEY + len(head).to_bytes(4, "little") + head + array.tobytes()
    return b"mlx1" + value._checksum(body, b"") + body


@given(some.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?"]), some.array_shapes(min_dims=2, max_dims=2)))
def test_any_finite_array_survives(array):
    names = {"f4": "FP32", "f8": "FP64", "i8": "INT64", "u1": "UINT8", "?": "BOOL"}
    datatype = next(name for code, name in names.items() if np.dtype(code) == array.dtype)
    spec = {"y": TensorSpec("y", datatype, (None, None))}
    value = pack(KEY, {"y": array})
    if is_sound({"y": array}):
        assert unpack(KEY, value, spec)["y"].tobytes() == array.tobytes()
    else:
        with pytest.raises(DamagedValueError):
            unpack(KEY, value, spec)


def test_a_copy_keeps_no_batch_alive():
    batch = np.zeros((1000, 3), np.float32)
    assert copied({"y": batch[:1]})["y"].base is None
