import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.inference.steps.catalog import PRE, make_step
from mlx_platform.inference.steps.step import CellError, Site
from mlx_platform.inference.steps.table import as_numbers, as_type, stack

F32 = TensorSpec("x", "FP32", (None, 2))
I64 = TensorSpec("x", "INT64", (None, 2))
SITE = Site((F32,), (), (), 100, 100)


def step(kind, **options):
    return make_step(kind, options, SITE, PRE)


def test_columns_stand_side_by_side_in_the_named_order():
    made = step("columns", names=["b", "a"])(
        {"a": np.array([1, 2]), "b": np.array([0.5, 1.5]), "c": np.zeros(2)}
    )

    assert made["x"].dtype == np.float32
    assert made["x"].tolist() == [[0.5, 1], [1.5, 2]]


def test_booleans_of_a_file_are_0_and_1():
    assert stack([np.array([True, False])], ("a",), F32).tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("cells", "row", "problem"),
    [
        (np.array([1.0, np.nan]), 1, "NaN"),
        (np.array([np.inf, 1.0]), 0, "infinite"),
        (np.array([0.0, 1e39]), 1, "does not fit into FP32"),
        (text_column(["1", "2.5", "n/a"]), 2, "'n/a' is no number"),
        (text_column(["1", "2"]), 0, "'1' is no number"),
        (text_column([1, None]), 1, "missing"),
        (text_column([1.5, [2]]), 1, r"\[2\] is no number"),
    ],
)
def test_a_cell_that_is_no_finite_number_is_named(cells, row, problem):
    with pytest.raises(CellError, match=problem) as caught:
        stack([np.zeros(len(cells)), cells], ("a", "b"), F32)

    assert (caught.value.column, caught.value.row) == ("b", row)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("cells", "good"),
    [
        ([1.0, 2.0], True),
        ([1.0, 2.5], False),
        ([2.0**63, 0.0], False),
        ([-(2.0**63), 0.0], True),
        ([np.nan, 0.0], False),
    ],
)
def test_integers_take_whole_numbers_in_range_only(cells, good):
    if good:
        assert as_type(np.array(cells), I64, "a").tolist() == cells
    else:
        with pytest.raises(CellError):
            as_type(np.array(cells), I64, "a")


def test_an_integer_that_a_narrow_type_cannot_hold_is_refused():
    small = TensorSpec("x", "UINT8", (None,))

    assert as_type(np.array([0, 255]), small, "a").dtype == np.uint8
    for bad in (256, -1):
        with pytest.raises(CellError, match=f"{bad} does not fit"):
            as_type(np.array([0, bad]), small, "a")


def test_times_are_no_numbers():
    with pytest.raises(UsageError, match="datetime64"):
        as_numbers(np.array(["2020-01-01"], dtype="datetime64[s]"), "when")


def test_a_list_per_cell_is_no_column_of_numbers():
    with pytest.raises(UsageError, match="3 values per row"):
        stack([np.zeros((2, 3))], ("a",), F32)


def test_categories_become_their_position():
    coded = step("categories", column="c", values=["red", "green", 3])(
        {"c": text_column(["green", "red", 3])}
    )

    assert coded["c"].tolist() == [1, 0, 2]
    assert coded["c"].dtype == np.int64


def test_an_unknown_category_is_an_error_or_the_given_code():
    with pytest.raises(CellError, match="'gren' is not known") as caught:
        step("categories", column="c", values=["red", "green"])({"c": text_column(["red", "gren"])})
    assert caught.value.row == 1
    assert "'green'" in caught.value.hint

    coded = step("categories", column="c", values=["red"], unknown=-1)({"c": text_column(["red", None])})
    assert coded["c"].tolist() == [0, -1]


def test_categories_come_from_an_asset(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "cities.json").write_text('["Bern", "Oslo"]')
    cities = step("categories", column="c", asset="cities.json")
    cities.load(tmp_path)

    assert cities({"c": text_column(["Oslo"])})["c"].tolist() == [1]


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", "a//b", "", "a\\b", "absent.json"])
def test_an_asset_cannot_leave_the_package(tmp_path, name):
    (tmp_path / "secret.json").write_text('["x"]')

    with pytest.raises(UsageError):
        step("categories", column="c", asset=name).load(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", "[[1]]", '["a", "a"]', "nonsense"])
def test_an_asset_that_is_no_list_of_categories_is_refused(tmp_path, content):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "c.json").write_text(content)

    with pytest.raises(UsageError):
        step("categories", column="c", asset="c.json").load(tmp_path)


def test_cells_that_are_lists_are_no_categories():
    with pytest.raises(UsageError, match="lists"):
        step("categories", column="c", values=["a"])({"c": text_column([["a"]])})
