import numpy as np
import orjson
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.steps.step import CellError
from mlx_platform.serving.predict_body import Bounds, complaint, parse_predict, render_predict
from mlx_platform.serving.refusal import Refusal

BOUNDS = Bounds.of([TensorSpec("x", "BYTES", (None, 1))], (), 4)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("'SECRET' is not a number", "this is not a number"),
        ("'SECRET is not here' is not a number", "this is not a number"),
        ("'SECRET' is no text", "this is no text"),
        ("'SECRET\\n' is not known", "this is not known"),
        ("1e300 does not fit into INT64", "this does not fit into INT64"),
        ("the text has 5 characters, more than 4", "the text has 5 characters, more than 4"),
    ],
)
def test_a_complaint_about_a_cell_names_its_place_and_not_its_value(load, problem, said):
    error = CellError("age", 3, problem)
    assert complaint(error, [], load("table")) == f"Row 3, column 'age': {said}."


def test_a_complaint_about_columns_helps_without_repeating_the_wrong_one(load):
    rows = [{"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 1, "b": 1, "c": 1, "dd": 1}]
    said = complaint(UsageError("Row 1 has 'dd'"), rows, load("table"))
    assert said == "Row 1 has a column that the model does not take. Did you mean 'd'?"
    said = complaint(UsageError("anything"), [{"a": 1}], load("table"))
    assert said == "Row 0 has no column 'b'."
    assert complaint(UsageError("Each row must be a list."), 5, load("table")) == "Each row must be a list."


@pytest.mark.parametrize(
    "body", [b"{}", b'{"rows":[],"row":1}', b'{"rows":[],"id":1}', b'{"rows":[],"id":[]}']
)
def test_members_that_nobody_takes_are_refused(body):
    with pytest.raises(Refusal):
        parse_predict(body, BOUNDS)


@pytest.mark.parametrize(
    "text", ["{" * 50_000, '\\"{[:' * 20_000, "[" * 50_000, ":" * 50_000, '\\"' * 50_000]
)
def test_marks_inside_of_text_are_not_counted(text):
    rows = [[text], [text]]
    assert parse_predict(orjson.dumps({"rows": rows, "id": text}), BOUNDS) == (rows, text)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0]] * 5, "A request takes at most 4 rows."),
        ([[0]] * 20_000, "The body holds more than this model takes in 4 rows, the most of a request."),
        ([{}] * 20_000, "The body holds more than this model takes in 4 rows, the most of a request."),
        (
            [{str(n): n for n in range(20_000)}],
            "The body holds more than this model takes in 4 rows, the most of a request.",
        ),
        ([0] * 20_000, "A request takes at most 4 rows."),
    ],
)
def test_more_than_any_request_can_hold_is_refused(rows, said):
    with pytest.raises(Refusal) as caught:
        parse_predict(orjson.dumps({"rows": rows}), BOUNDS)
    assert (caught.value.status, caught.value.message) == (400, said)


def test_rows_are_counted_before_names_are_compared():
    with pytest.raises(Refusal) as caught:
        parse_predict(b'{"rows":[{"a":1,"a":2},{},{},{},{}]}', BOUNDS)
    assert caught.value.message == "A request takes at most 4 rows."
    with pytest.raises(Refusal) as caught:
        parse_predict(b'{"rows":[{"a":1,"a":2}]}', BOUNDS)
    assert "same name twice" in caught.value.message


@pytest.mark.parametrize(
    ("shapes", "lists"),
    [
        ([(None,)], 0),
        ([(None, 4)], 1),
        ([(None, None)], 1),
        ([(None, 3, 4)], 1 + 3),
        ([(None, 3, None)], 1 + 3),
        ([(None, 2, 3, 5), (None, 7)], 1 + 2 + 6 + 1),
        ([(None, None, 3), (None, 7)], None),
    ],
)
def test_lists_are_bounded_by_the_shapes_of_the_inputs(shapes, lists):
    specs = [TensorSpec(f"x{n}", "FP32", shape) for n, shape in enumerate(shapes)]
    bounds = Bounds.of(specs, (), 10)
    assert bounds.marks.get(b"[") == (None if lists is None else 1 + 10 * lists)
    assert bounds.marks[b"{"] == 11
    assert bounds.marks[b":"] == 2 + 10 * len(specs)
    assert Bounds.of(specs, ("a", "b", "c"), 10).marks[b":"] == 32


def test_a_row_may_hold_as_many_lists_as_its_input_needs():
    bounds = Bounds.of([TensorSpec("x", "FP32", (None, 20_000, 1))], (), 2)
    rows = [[[0]] * 20_000] * 2
    assert parse_predict(orjson.dumps({"rows": rows}), bounds) == (rows, None)
    varying = Bounds.of([TensorSpec("x", "FP32", (None, None, 1))], (), 2)
    assert parse_predict(orjson.dumps({"rows": rows}), varying) == (rows, None)


def test_answers_are_written_row_by_row_with_the_precision_of_their_type():
    answers = {
        "label": np.array(["a", b"\xc3\xa4"], dtype=object),
        "confidence": np.array([0.1, 0.2], np.float32),
        "probabilities": np.array([[0.1, 0.9], [0.2, 0.8]], np.float32).T[::-1].T,
        "words": np.array([["x", "y"], [b"z", ""]], dtype=object),
        "count": np.array([1, 2**62]),
        "sure": np.array([True, False]),
        "half": np.array([0.5, 2], np.float16),
    }
    document = orjson.loads(render_predict("q", answers, 2, {"model": "m"}))
    assert list(document) == ["id", "model", "predictions"]
    assert document["predictions"][0] == {
        "label": "a",
        "confidence": 0.1,
        "probabilities": [0.9, 0.1],
        "words": ["x", "y"],
        "count": 1,
        "sure": True,
        "half": 0.5,
    }
    assert document["predictions"][1]["label"] == "\u00e4"
    assert document["predictions"][1]["words"] == ["z", ""]
    assert document["predictions"][1]["count"] == 2**62


@pytest.mark.parametrize(
    "column",
    [
        np.array([np.nan, 1.0]),
        np.array([[1.0, np.inf], [1.0, 1.0]], np.float32),
        np.array([1.0]),
        np.array(1.0),
        np.array([b"\xff", b""], dtype=object),
    ],
)
def test_answers_that_json_cannot_carry_or_that_are_not_one_per_row_are_refused(column):
    with pytest.raises(Refusal) as caught:
        render_predict(None, {"y": column}, 2, {})
    assert caught.value.status == 422
