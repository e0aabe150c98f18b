from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import (
    NUMPY_TYPES,
    TensorSpec,
    check_tensor,
    datatype_of,
    decode_array,
    encode_array,
    row_count,
    text_column,
)

NUMERIC = [np.dtype(kind) for name, kind in NUMPY_TYPES.items() if name != "BYTES"]


@given(
    st.sampled_from(NUMERIC).flatmap(
        lambda dtype: arrays.arrays(
            dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
        )
    )
)
def test_every_numeric_array_survives_json_bit_for_bit(array: np.ndarray[Any, Any]) -> None:
    back = decode_array(orjson.loads(orjson.dumps(encode_array(array))))

    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_text_survives_json(cells: list[str]) -> None:
    back = decode_array(orjson.loads(orjson.dumps(encode_array(text_column(cells)))))

    assert back.tolist() == cells


def test_images_as_bytes_survive_json() -> None:
    cells = [b"\x89PNG\r\n", b""]

    assert decode_array(orjson.loads(orjson.dumps(encode_array(text_column(cells))))).tolist() == cells


@pytest.mark.parametrize(
    "encoded",
    [
        {"datatype": "FP32", "shape": [3], "data": [1.0, 2.0]},
        {"datatype": "BYTES", "shape": [2**50], "data": ["a"]},
        {"datatype": "FP99", "shape": [1], "data": [1.0]},
        {"datatype": "INT8", "shape": [1], "data": [300]},
        {"datatype": "FP32", "shape": [1], "base64": "!"},
        {"datatype": "FP32", "shape": ["x"], "data": [1.0]},
        {"shape": [1], "data": [1.0]},
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(encoded: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        decode_array(encoded)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 3), np.float64), "takes FP32, not FP64"),
        (np.zeros((1, 4), np.float32), r"takes the shape \[\?,3\], not \[1,4\]"),
        (np.zeros(3, np.float32), r"takes the shape \[\?,3\], not \[3\]"),
        (np.array([[0, 0, 0], [0, np.nan, 0]], np.float32), "NaN or infinity, first in row 1"),
        (np.array([[np.inf, 0, 0]], np.float32), "NaN or infinity, first in row 0"),
    ],
)
def test_what_an_input_cannot_take_is_named(array: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_tensor(array, TensorSpec("x", "FP32", (None, 3)))


def test_columns_of_different_lengths_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'b' has 2 rows where the others have 1"):
        row_count({"a": np.zeros(1), "b": np.zeros(2)})
    with pytest.raises(UsageError, match="'b' is a single value"):
        row_count({"a": np.zeros(1), "b": np.array(1.0)})


def test_text_is_bytes_in_the_protocol() -> None:
    assert datatype_of(np.array(["a"])) == datatype_of(text_column([b"a"])) == "BYTES"
