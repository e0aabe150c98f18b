import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.quantize.rows import few_rows, overlap, refuse_not_finite


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_the_first_bad_number_is_named_by_column_and_row(bad: float, kind: str) -> None:
    columns = {"a": np.arange(5.0), "b": np.array([1.0, 2.0, bad, bad, 0.0])}

    with pytest.raises(UsageError, match=rf"cal.csv: column 'b' holds {kind} in row 2"):
        refuse_not_finite(columns, "cal.csv")


def test_integers_and_text_cannot_be_infinite() -> None:
    refuse_not_finite({"a": np.arange(3), "t": text_column(["x", None, "z"])}, "cal.csv")


def test_few_rows_are_a_warning() -> None:
    assert few_rows(99).startswith("Only 99 different calibration rows")
    assert few_rows(100) == ""


def test_rows_in_common_are_counted_by_value() -> None:
    calibration = {"a": np.array([1, 2, 3]), "t": text_column(["x", "y", "z"])}
    judged = {"t": text_column(["x", "y", "q", "w"]), "a": np.float32([1, 9, 3, -0.0])}

    found = overlap(calibration, judged)

    assert (found.shared, found.rows, found.share) == (1, 4, 0.25)
    assert found.too_large


def test_a_negative_zero_is_a_zero() -> None:
    assert overlap({"a": np.array([0.0])}, {"a": np.array([-0.0])}).shared == 1


def test_columns_that_one_set_lacks_do_not_count() -> None:
    assert overlap({"a": np.array([1]), "id": np.array([7])}, {"a": np.array([1])}).shared == 1
    assert overlap({"a": np.array([1])}, {"b": np.array([1])}).shared == 0


def test_rows_that_repeat_by_nature_may_overlap_as_much() -> None:
    weekdays = {"day": np.arange(700) % 7}

    assert overlap(weekdays, weekdays).share == 1
    assert not overlap(weekdays, weekdays).too_large


def test_images_are_compared_by_their_bytes() -> None:
    first, second = {"image": text_column([b"abc", b"def"])}, {"image": text_column([b"def", b"ghi"])}

    assert overlap(first, second).shared == 1


def test_the_same_rows_overlap_whatever_file_they_came_from() -> None:
    single = np.array([0.12573, -0.1321, 3.0], np.float32)
    double = np.array([0.12573, -0.1321, 3.0], np.float64)

    assert overlap({"x": double}, {"x": single}).shared == 3
