import numpy as np
import pytest
from onnx import TensorProto, helper

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import text_column

FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL


def echo(graph, **inputs):
    """A network that answers its inputs."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    return graph(nodes, inputs, {f"{name}_out": value for name, value in inputs.items()})


@pytest.fixture
def matrix(pack, graph):
    return pack(echo(graph, x=(FLOAT, ["n", 3])))


def test_columns_in_file_order_fill_the_only_matrix(matrix):
    feeds = matrix.encode({"b": np.array([1, 2]), "a": np.array([3.5, 4]), "c": np.array([True, False])})

    assert feeds["x"].tolist() == [[1, 3.5, 1], [2, 4, 0]]


@pytest.mark.parametrize("name", ["x", "features"])
def test_a_matrix_may_come_as_one_column(matrix, name):
    assert matrix.encode({name: np.ones((2, 3))})["x"].dtype == np.float32


def test_too_many_columns_are_a_question_about_labels(matrix):
    with pytest.raises(UsageError, match="takes 3 columns of numbers, not 4: a, b, c, label") as caught:
        matrix.encode(dict.fromkeys(["a", "b", "c", "label"], np.zeros(2)))
    assert "label" in caught.value.hint


def test_a_bad_cell_is_named_by_its_column_and_row(matrix):
    columns = {"a": np.zeros(3), "b": np.array([0, np.nan, 0]), "c": text_column(["1", "2", "x"])}
    with pytest.raises(UsageError, match="'c', row 2: 'x' is no number"):
        matrix.encode(columns)
    with pytest.raises(UsageError, match="'b', row 1: a value is missing, NaN or infinite"):
        matrix.encode(columns | {"c": np.zeros(3)})


def test_a_flat_input_takes_the_only_column(pack, graph):
    assert pack(echo(graph, x=(FLOAT, ["n"]))).encode({"anything": np.arange(3)})["x"].shape == (3,)


def test_columns_of_different_lengths_are_refused(matrix):
    with pytest.raises(UsageError, match="'b' has 2 rows"):
        matrix.encode({"a": np.zeros(3), "b": np.zeros(2), "c": np.zeros(3)})


def test_several_inputs_take_the_columns_of_their_names(pack, graph):
    model = pack(
        echo(graph, age=(FLOAT, ["n", 1]), word=(STRING, ["n", 1]), ok=(BOOL, ["n"]), ids=(INT64, ["n", "k"]))
    )
    rows = {
        "age": np.array([1, 2]),
        "word": text_column(["a", b"\xc3\xa4"]),
        "ok": np.array([True, False]),
        "ids": np.array([[1.0, 2], [3, 4]]),
        "ignored": np.zeros(2),
    }

    feeds = model.encode(rows)

    assert model.columns == ("age", "word", "ok", "ids")
    assert feeds["age"].shape == (2, 1)
    assert feeds["word"].tolist() == [["a"], ["ä"]]
    assert feeds["ids"].dtype == np.int64
    assert model.predict(rows).tensors["word_out"].tolist() == [["a"], ["ä"]]


def test_a_missing_column_is_named_with_the_closest(pack, graph):
    model = pack(echo(graph, age=(FLOAT, ["n"]), size=(FLOAT, ["n"])))

    with pytest.raises(UsageError, match="'size' is missing") as caught:
        model.encode({"age": np.zeros(2), "sise": np.zeros(2)})
    assert "'sise'" in caught.value.hint


def test_flat_pixels_take_the_shape_of_the_input(pack, graph):
    model = pack(echo(graph, pixels=(FLOAT, ["n", 1, 2, 2])))

    assert model.encode({"pixels": np.arange(8).reshape(2, 4)})["pixels"].tolist() == [
        [[[0, 1], [2, 3]]],
        [[[4, 5], [6, 7]]],
    ]
    with pytest.raises(UsageError, match=r"\[\?,1,2,2\], not \[2,3\]"):
        model.encode({"pixels": np.zeros((2, 3))})


def test_numbers_are_not_taken_for_flags(pack, graph):
    model = pack(echo(graph, ok=(BOOL, ["n"]), x=(FLOAT, ["n"])))

    with pytest.raises(UsageError, match="takes true or false"):
        model.encode({"ok": np.array([1, 0]), "x": np.zeros(2)})


SPEC = """
format = 1
task = "classification"
labels = ["low", "high"]
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 2]
[[outputs]]
name = "x_out"
datatype = "FP32"
shape = [-1, 2]
[[pre]]
step = "categories"
column = "city"
asset = "cities.json"
[[pre]]
step = "columns"
names = ["age", "city"]
[[post]]
step = "softmax"
output = "x_out"
[[post]]
step = "labels"
[[post]]
step = "top_k"
k = 1
"""


def test_declared_steps_run_in_order_on_both_sides(pack, graph):
    model = pack(echo(graph, x=(FLOAT, ["n", 2])), SPEC, {"cities.json": b'["Bern", "Oslo", "Rome"]'})

    answers = model.predict([{"city": "Rome", "age": 0.5}, {"city": "Bern", "age": 1}])

    assert answers.columns["label"].tolist() == ["high", "low"]
    assert answers.columns["top_labels"].tolist() == [["high"], ["low"]]
    assert answers.columns["confidence"] == pytest.approx([1 / (1 + np.exp(-1.5)), 1 / (1 + np.exp(-1))])
    assert answers.tensors["x_out"].tolist() == [[0.5, 2], [1, 0]]


def test_a_missing_asset_is_found_when_the_model_is_loaded(pack, graph):
    with pytest.raises(UsageError, match=r"no assets/cities\.json"):
        pack(echo(graph, x=(FLOAT, ["n", 2])), SPEC)
