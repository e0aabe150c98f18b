import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import decode_array, encode_array, text_column
from mlx_platform.workflows.replay.requests import _decoded


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, -0.0]),
        np.array([1 / 3], dtype=np.float32),
        np.array([np.nan, 1.0]),
        np.array([[1, 2]]),
        np.array([], dtype=np.int8),
        np.array([2**64 - 1], dtype=np.uint64),
        np.array([True, False]),
        text_column(["é", None]),
    ],
)
def test_logged_arrays_are_read_bit_for_bit(array):
    read = _decoded(encode_array(array))

    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    if array.dtype.kind == "O":
        assert read.tolist() == array.tolist()
    else:
        assert read.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "encoded",
    [
        {"datatype": "FP64", "shape": [1], "data": [[1.0, 2.0]]},
        {"datatype": "FP64", "shape": [2], "data": [1.0]},
        {"datatype": "FP64", "shape": [1], "data": ["x"]},
        {"datatype": "INT8", "shape": [1], "data": [300]},
        {"datatype": ["FP64"], "shape": [1], "data": [1.0]},
        {"datatype": "FP64", "data": [1.0]},
        "no array",
    ],
)
def test_arrays_that_cannot_be_read_are_refused_as_everywhere_else(encoded):
    with pytest.raises(UsageError) as everywhere:
        decode_array(encoded)
    with pytest.raises(UsageError) as here:
        _decoded(encoded)

    assert here.value.message == everywhere.value.message
