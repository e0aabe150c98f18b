import numpy as np
import pytest

from mlx_platform.core.tensors import decode_array, encode_array, text_column
from mlx_platform.inference.hashes import stage_hash


def test_equal_arrays_have_the_same_short_hash_whatever_their_order_and_layout():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.array([1, 2], dtype=np.int64)

    first = stage_hash({"x": x, "y": y})

    assert len(first) == 16
    assert first == stage_hash({"y": y.astype(">i8"), "x": np.asfortranarray(x)})


@pytest.mark.parametrize(
    "other",
    [
        {"z": np.array([1.0, 2.0])},
        {"x": np.array([1.0, 2.0], dtype=np.float32)},
        {"x": np.array([[1.0, 2.0]])},
        {"x": np.array([1.0, np.nextafter(2.0, 3.0)])},
        {"x": text_column([1.0, 2.0])},
        {"x": np.array([1.0, 2.0]), "y": np.array([1.0, 2.0])},
        {},
    ],
)
def test_a_different_name_type_shape_or_bit_changes_the_hash(other):
    assert stage_hash({"x": np.array([1.0, 2.0])}) != stage_hash(other)


def test_text_is_hashed_by_content_and_cells_cannot_run_into_each_other():
    assert stage_hash({"t": np.array(["ab", "c"])}) == stage_hash({"t": text_column(["ab", "c"])})
    assert stage_hash({"t": text_column(["ab", "c"])}) != stage_hash({"t": text_column(["a", "bc"])})


def test_cells_of_different_types_differ():
    cells = [None, 1, 1.0, True, "1", b"1", np.ones(1)]

    hashes = {stage_hash({"t": text_column([cell])}) for cell in cells}

    assert len(hashes) == len(cells)


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, np.nan, -0.0], dtype=np.float32),
        np.array([[0.1], [1 / 3]]),
        np.array([0.1], dtype=np.float16),
        np.array([True, False]),
        text_column(["é", None]),
        text_column([b"\xff\x00"]),
    ],
)
def test_what_the_traffic_log_stored_hashes_like_what_was_served(array):
    assert stage_hash({"x": decode_array(encode_array(array))}) == stage_hash({"x": array})


def test_the_hash_of_the_same_arrays_stays_what_logs_of_earlier_releases_hold():
    arrays = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "n": np.array([1, -2], dtype=">i8"),
        "flag": np.array(True),
        "t": text_column(["é", None, 2.5, b"\xff", np.ones(2)]),
    }

    assert stage_hash(arrays) == "fb92430d1afc6132"
