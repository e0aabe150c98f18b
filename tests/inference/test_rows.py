import base64

import numpy as np
import pandas as pd
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.rows import as_columns, column_kinds, rows_from_json
from mlx_platform.inference.spec import Limits, ModelSpec, StepSpec

MATRIX = ModelSpec("tensors", (TensorSpec("x", "FP32", (None, 2)),), (), limits=Limits(max_rows=3))
NAMED = ModelSpec(
    "tensors",
    (TensorSpec("x", "FP32", (None, 2)), TensorSpec("ids", "INT64", (None, None))),
    (),
    pre=(
        StepSpec("categories", {"column": "city", "values": ["Bern"]}),
        StepSpec("columns", {"names": ["age", "city"], "input": "x"}),
    ),
)
MIXED = ModelSpec(
    "tensors",
    (
        TensorSpec("flag", "BOOL", (None, 1)),
        TensorSpec("word", "BYTES", (None,)),
        TensorSpec("big", "UINT64", (None,)),
    ),
    (),
)
ROW = {"city": "Bern", "age": 3, "ids": [1, 2]}


def parse(rows, spec=MATRIX):
    return rows_from_json(rows, spec, spec.columns, column_kinds(spec))


def test_lists_become_one_matrix():
    assert parse([[1, 2.5], [3, 4]])["x"].tolist() == [[1, 2.5], [3, 4]]


def test_an_object_may_name_the_input_itself():
    assert parse([{"x": [1, 2]}])["x"].tolist() == [[1, 2]]


def test_objects_become_columns_of_their_kind():
    columns = parse([ROW, ROW | {"age": 1.5, "ids": [3, 4]}], NAMED)

    assert columns["age"].tolist() == [3, 1.5]
    assert columns["city"].tolist() == ["Bern", "Bern"]
    assert columns["ids"].dtype == np.int64
    assert columns["ids"].tolist() == [[1, 2], [3, 4]]


def test_tensors_of_every_kind_are_read_from_objects():
    columns = parse([{"flag": [True], "word": "a", "big": 2**64 - 1}], MIXED)

    assert columns["flag"].tolist() == [[True]]
    assert columns["word"].tolist() == ["a"]
    assert columns["big"].tolist() == [2**64 - 1]


def test_a_plain_number_is_a_row_of_a_flat_input():
    flat = ModelSpec("tensors", (TensorSpec("x", "FP32", (None,)),), ())

    assert parse([1, 2.5], flat)["x"].tolist() == [1, 2.5]


def test_images_arrive_as_base64():
    spec = ModelSpec(
        "tensors", (TensorSpec("x", "FP32", (None, 3, 4, 4)),), (), pre=(StepSpec("image", {"size": [4, 4]}),)
    )

    assert parse([{"image": base64.b64encode(b"\x89P").decode()}], spec)["image"].tolist() == [b"\x89P"]
    with pytest.raises(UsageError, match="row 0: the image is no base64"):
        parse([{"image": "*"}], spec)


def test_as_many_rows_as_the_limit_pass_and_one_more_does_not():
    assert len(parse([[1, 2]] * 3)["x"]) == 3
    with pytest.raises(UsageError, match="at most 3 rows, not 4"):
        parse([[1, 2]] * 4)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "list with at least one row"),
        ({}, "list with at least one row"),
        ([], "list with at least one row"),
        ([3], "a list of values"),
        (["ab"], "a list of values"),
        ([[1, 2], {"x": [1, 2]}], "a list of values"),
        ([[1, 2], None], "a list of values"),
        ([[1, 2], [3]], "row 1: there are 1 value, where the first row has 2"),
        ([[1, 2, 3]], "3 values where the model takes 2"),
        ([[]], "row 0"),
        ([[1, 2], [1, True]], "row 1: true is not a number"),
        ([[1, 2], [1, "2"]], "row 1: '2' is not a number"),
        ([[1, None]], "row 0: null is not a number"),
        ([[1, [2]]], "row 0: a list is not a number"),
        ([[1, 10**400]], "does not fit into FP32"),
        ([{"y": [1, 2]}], "'y' that the model does not take"),
        ([{"x": [1, 2], "y": 1}], "'y' that the model does not take"),
    ],
)
def test_a_matrix_is_read_strictly(rows, message):
    with pytest.raises(UsageError, match=message):
        parse(rows)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 2, 3], "must be an object"),
        ({"city": "Bern", "age": 3}, "Row 1 has no column 'ids'"),
        (ROW | {"Age": 3}, "Row 1 has a column 'Age'"),
        (ROW | {"age": "3"}, "'age', row 1: '3' is not a number"),
        (ROW | {"age": True}, "'age', row 1: true is not a number"),
        (ROW | {"age": 10**400}, "too large"),
        (ROW | {"city": None}, "'city', row 1: null is not a text or a number"),
        (ROW | {"city": ["Bern"]}, "a list is not"),
        (ROW | {"ids": 3}, "'ids', row 1: 3 is not a list"),
        (ROW | {"ids": [1]}, "'ids', row 1: there are 1 value"),
        (ROW | {"ids": [1, [2]]}, "'ids', row 1: a list is not a number"),
    ],
)
def test_named_columns_are_read_strictly(row, message):
    with pytest.raises(UsageError, match=message):
        parse([ROW, row], NAMED)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"flag": [1], "word": "a", "big": 1}, "1 is not true or false"),
        ({"flag": [True], "word": 3, "big": 1}, "3 is not a text"),
        ({"flag": [True], "word": "a", "big": -1}, "does not fit into UINT64"),
        ({"flag": True, "word": "a", "big": 1}, "true is not a list"),
    ],
)
def test_tensors_are_read_strictly(row, message):
    with pytest.raises(UsageError, match=message):
        parse([row], MIXED)


def test_only_numbers_by_name_take_the_short_way_and_are_as_strict():
    spec = ModelSpec(
        "tensors",
        (TensorSpec("x", "FP32", (None, 2)),),
        (),
        pre=(StepSpec("columns", {"names": ["a", "b"]}),),
    )

    columns = parse([{"b": 1, "a": 2.5}, {"a": 3, "b": 4}], spec)

    assert {name: column.tolist() for name, column in columns.items()} == {"a": [2.5, 3], "b": [1, 4]}
    with pytest.raises(UsageError, match="'b', row 0: false is not a number"):
        parse([{"b": False, "a": 2.5}], spec)
    with pytest.raises(UsageError, match="no column 'b'") as caught:
        parse([{"a": 1, "B": 2}, {"a": 1}][1:], spec)
    assert caught.value.hint


@pytest.mark.parametrize(
    "rows",
    [
        {"age": [1, 2], "city": ["Bern", "Oslo"]},
        [{"age": 1, "city": "Bern"}, {"age": 2, "city": "Oslo"}],
        pd.DataFrame({"age": [1, 2], "city": ["Bern", "Oslo"]}),
    ],
)
def test_python_callers_give_columns_dicts_or_frames(rows):
    columns = as_columns(rows, NAMED, NAMED.columns)

    assert {name: column.tolist() for name, column in columns.items()} == {
        "age": [1, 2],
        "city": ["Bern", "Oslo"],
    }


def test_python_callers_give_matrices_in_the_models_order():
    spec = ModelSpec(
        "tensors",
        (TensorSpec("x", "FP32", (None, 2)),),
        (),
        pre=(StepSpec("columns", {"names": ["a", "b"]}),),
    )

    assert as_columns(np.array([[1, 2]]), spec, spec.columns)["b"].tolist() == [2]
    assert as_columns([[1, 2]], MATRIX, ())["x"].tolist() == [[1, 2]]
    with pytest.raises(UsageError, match="3 columns, but the model takes 2"):
        as_columns(np.zeros((1, 3)), spec, spec.columns)


@pytest.mark.parametrize("rows", [[], [[1], [1, 2]], 3, "text", [{"a": 1}, {"b": 1}], np.zeros((0, 2))])
def test_python_callers_get_a_sentence_for_everything_else(rows):
    with pytest.raises(UsageError):
        as_columns(rows, MATRIX, ())
