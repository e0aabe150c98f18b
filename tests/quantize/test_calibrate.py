import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import helper

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.quantize.calibrate import BINS, Histogram, Range, calibrate
from mlx_platform.quantize.rule import Rule, parse_rule

FLOATS = npst.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True),
)


def histogram_of(*parts: np.ndarray) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part)
    return histogram


@given(values=FLOATS, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_a_stream_counts_the_same_however_it_is_cut(values: np.ndarray, cuts: list[int]) -> None:
    whole, cut = histogram_of(values), histogram_of(*np.split(values, sorted(cuts)))

    assert np.array_equal(cut.bins, whole.bins)
    assert cut.limit == whole.limit
    assert cut.count == whole.count == whole.bins.sum()


@given(values=FLOATS)
def test_extremes_are_those_of_numpy(values: np.ndarray) -> None:
    assert histogram_of(values).extremes() == Range(float(values.min()), float(values.max()))


def test_every_bin_counts_its_own_magnitudes() -> None:
    values = np.float32([0.0, 0.5, 1.0, 1.5, 1.9999])
    histogram = histogram_of(values)

    expected, _ = np.histogram(values, bins=BINS, range=(0, 2))
    assert histogram.limit == 2.0
    assert np.array_equal(histogram.bins, expected)


def test_a_tiny_first_batch_costs_no_memory_when_a_huge_value_follows() -> None:
    histogram = histogram_of(np.float32([1e-30]), np.float32([3e38]))

    assert histogram.bins.shape == (BINS,)
    assert histogram.bins[0] == 1
    assert histogram.extremes().highest == np.float32(3e38)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_and_not_counted(bad: float) -> None:
    histogram = Histogram()

    with pytest.raises(ValueError, match="finite"):
        histogram.add(np.float32([1.0, bad]))
    assert histogram.count == 0


def test_an_empty_tensor_changes_nothing() -> None:
    histogram = histogram_of(np.empty((0, 4), np.float32))

    assert histogram.count == 0
    assert Rule().ranges({"x": histogram}) == {}


def feeds(*batches: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [{"x": batch.astype(np.float32)} for batch in batches]


def test_inputs_and_inner_tensors_have_the_extremes_of_all_rows(dense: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(50, 16)).astype(np.float32)
    weight = onnx.numpy_helper.to_array(onnx.load(dense).graph.initializer[0])

    seen = calibrate(dense, ["x", "y"], feeds(rows[:7], rows[7:8], rows[8:]), tmp_path)

    assert seen["x"].extremes() == Range(rows.min(), rows.max())
    product = rows @ weight
    assert seen["y"].extremes().lowest == pytest.approx(product.min(), rel=1e-5)
    assert seen["y"].count == product.size


@pytest.mark.parametrize("method", ["minmax", "percentile:99", "entropy"])
def test_rows_may_differ_in_shape_for_every_rule(tmp_path: Path, save_model, method: str) -> None:
    weight = np.eye(4, dtype=np.float32)
    model = save_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ["n", "l", 4]},
        {"y": ["n", "l", 4]},
        {"w": weight},
    )
    batches = [np.full((rows, length, 4), length) for rows, length in ((1, 3), (2, 0), (3, 7), (1, 1))]

    seen = calibrate(model, ["x", "y"], feeds(*batches), tmp_path)

    assert seen["x"].extremes() == seen["y"].extremes() == Range(1.0, 7.0)
    assert seen["x"].count == 4 * (3 + 21 + 1)
    assert parse_rule(method).ranges(seen)["y"] == Range(1.0, 7.0)


def test_early_rows_count_as_much_as_late_ones(dense: Path, tmp_path: Path) -> None:
    first, rest = np.full((1, 16), -50.0), [np.full((1, 16), value) for value in (1.0, 2.0) * 10]

    seen = calibrate(dense, ["x"], feeds(first, *rest), tmp_path)

    assert seen["x"].extremes() == Range(-50.0, 2.0)


def test_inputs_without_dimensions_are_no_rows(tmp_path: Path, save_model) -> None:
    model = save_model(
        [helper.make_node("Mul", ["s", "x"], ["z"]), helper.make_node("MatMul", ["z", "w"], ["y"])],
        {"s": [], "x": ["n", 2]},
        {"y": ["n", 2]},
        {"w": np.eye(2, dtype=np.float32)},
    )
    told: list[int] = []
    batch = {"s": np.float32(3), "x": np.ones((5, 2), np.float32)}

    seen = calibrate(
        model,
        ["z"],
        [{name: np.asarray(value) for name, value in batch.items()}],
        tmp_path,
        advance=told.append,
    )

    assert seen["z"].extremes() == Range(3.0, 3.0)
    assert told == [5]


def test_a_row_that_makes_a_tensor_infinite_is_named(tmp_path: Path, save_model) -> None:
    model = save_model(
        [helper.make_node("Log", ["x"], ["l"]), helper.make_node("MatMul", ["l", "w"], ["y"])],
        {"x": ["n", 2]},
        {"y": ["n", 2]},
        {"w": np.eye(2, dtype=np.float32)},
    )
    good, bad = np.ones((4, 2)), np.ones((4, 2))
    bad[2, 1] = -1.0

    with pytest.raises(UsageError, match=r"row 6 .*'l'"):
        calibrate(model, ["l"], feeds(good, bad), tmp_path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"y": np.ones((2, 16), np.float32)}, "row 3 has no tensor for the model's input 'x'"),
        (
            {"x": np.ones((2, 16))},
            r"'x' is a tensor\(float\), and calibration row 3 gives a tensor\(double\)",
        ),
        (
            {"x": np.ones((2, 15), np.float32)},
            r"the shape \(any, 16\), and calibration row 3 gives \(2, 15\)",
        ),
        ({"x": np.ones(16, np.float32)}, r"calibration row 3 gives \(16,\)"),
        ({"x": np.ones((2, 16), np.float32), "z": np.ones(2)}, "row 3 has a tensor 'z', which is no input"),
    ],
)
def test_rows_that_do_not_fit_the_inputs_are_named(
    dense: Path, tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        calibrate(dense, ["x"], [*feeds(np.ones((3, 16))), tensors], tmp_path)


def test_no_rows_are_no_calibration(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(UndecidedError, match="no calibration row"):
        calibrate(dense, ["x"], [], tmp_path)


def test_memory_does_not_grow_with_the_rows(dense: Path, tmp_path: Path) -> None:
    def peak(batches: int) -> int:
        stream = ({"x": np.full((64, 16), index, np.float32)} for index in range(batches))
        tracemalloc.start()
        calibrate(dense, ["x", "y"], stream, tmp_path)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(2)
    few, many = peak(5), peak(200)
    assert many < few + 64 * 16 * 4 * 20  # twenty batches' worth, where keeping all would be two hundred
