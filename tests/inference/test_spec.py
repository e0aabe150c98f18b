import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.graph import read_network
from mlx_platform.inference.spec import Limits, ModelSpec, StepSpec, parse_spec, spec_from_network, write_spec

TEXT = """
format = 1
task = "classification"
labels = ["no", "yes"]
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 2]
[[outputs]]
name = "probabilities"
datatype = "FP32"
shape = [-1, 2]
[[pre]]
step = "categories"
column = "city"
values = ["Bern", "Oslo"]
[[pre]]
step = "columns"
names = ["age", "city"]
[[post]]
step = "labels"
[limits]
max_rows = 7
"""


def test_a_spec_is_read_whole():
    assert parse_spec(TEXT, "model.toml") == ModelSpec(
        task="classification",
        inputs=(TensorSpec("x", "FP32", (None, 2)),),
        outputs=(TensorSpec("probabilities", "FP32", (None, 2)),),
        labels=("no", "yes"),
        pre=(
            StepSpec("categories", {"column": "city", "values": ["Bern", "Oslo"]}),
            StepSpec("columns", {"names": ["age", "city"]}),
        ),
        post=(StepSpec("labels"),),
        limits=Limits(max_rows=7),
    )


def test_what_is_written_reads_back_even_with_hostile_names():
    spec = ModelSpec(
        task="tensors",
        inputs=(TensorSpec('a "quoted"\n\x7f\\ name', "FP32", (None, 2)),),
        outputs=(TensorSpec("ü]", "INT64", ()),),
        pre=(StepSpec("columns", {"names": ["=1", "b"]}),),
        padding={'a "quoted"\n\x7f\\ name': -0.5},
    )

    assert parse_spec(write_spec(spec), "x") == spec
    assert write_spec(parse_spec(write_spec(spec), "x")) == write_spec(spec)


def test_columns_are_those_that_come_from_outside():
    spec = parse_spec(TEXT, "model.toml")

    assert spec.columns == ("city", "age")


def test_a_plain_matrix_input_names_no_columns():
    assert parse_spec(TEXT.split("[[pre]]", maxsplit=1)[0], "x").columns == ()


def test_several_inputs_are_columns_of_their_own_name():
    text = TEXT.split("[[pre]]", maxsplit=1)[0].replace(
        "[[outputs]]", '[[inputs]]\nname = "y"\ndatatype = "FP32"\nshape = [-1]\n[[outputs]]'
    )

    assert parse_spec(text, "x").columns == ("x", "y")


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("format = 1", "format = 2", "format must be 1", ""),
        ("labels =", "lables =", "'lables'", "'labels'"),
        ("max_rows", "max_row", "'limits.max_row'", "'max_rows'"),
        ("max_rows = 7", "max_rows = true", "max_rows takes a positive integer", ""),
        ('"classification"', '"classify"', "'classify'", "'classification'"),
        ('datatype = "FP32"', 'datatype = "FLOAT32"', "no known datatype", "FP32"),
        ("shape = [-1, 2]", "shape = [0, 2]", "takes sizes", ""),
        ('"no", "yes"', '"no", "no"', "twice", ""),
        ('step = "labels"', 'step = "label"', "'label'", "'labels'"),
        ('column = "city"', 'colum = "city"', "needs the option 'column'", ""),
        ('names = ["age", "city"]', 'names = ["age", "city"]\nwidth = 3', "no option 'width'", ""),
        ('names = ["age", "city"]', 'names = ["age"]', "do not fill the input", ""),
        ('names = ["age", "city"]', 'names = ["age", 3]', "list of texts", ""),
        (
            'step = "labels"',
            'step = "labels"\noutput = "probs"',
            "nothing before it makes",
            "probabilities",
        ),
        ("[[post]]", "[post]", "[[post]] tables", ""),
        ("[limits]", "[limits", "no TOML", ""),
    ],
)
def test_a_mistake_is_named_with_what_was_meant(old, new, message, hint):
    with pytest.raises(UsageError) as caught:
        parse_spec(TEXT.replace(old, new, 1), "model.toml")

    assert caught.value.message.startswith("model.toml")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_deep_nesting_is_refused_not_recursed():
    with pytest.raises(UsageError, match="no TOML"):
        parse_spec(f"format = {'[' * 100_000}", "model.toml")


def test_a_converted_classifier_brings_its_labels_and_probabilities(logistic_onnx, mlp_onnx):
    for path in (logistic_onnx, mlp_onnx):
        spec = spec_from_network(read_network(path))

        assert spec.task == "classification"
        assert spec.labels == tuple("0123456789")
        assert spec.post == (StepSpec("labels", {"output": "probabilities"}),)
        assert [str(tensor) for tensor in (*spec.inputs, *spec.outputs)] == [
            "x FP32 [?, 64]",
            "label INT64 [?]",
            "probabilities FP32 [?, 10]",
        ]


def test_bare_scores_get_a_softmax(matmul_onnx):
    spec = spec_from_network(read_network(matmul_onnx))

    assert spec.post == (
        StepSpec("softmax", {"output": "scores", "into": "probabilities"}),
        StepSpec("labels", {"output": "probabilities"}),
    )
    assert spec.labels == ("0", "1", "2")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("padding = 1\n", "padding is written as"),
        ('[padding]\nx = "0"\n', "padding is written as"),
        ("[padding]\nx = true\n", "padding is written as"),
        ("[padding]\ny = 0\n", "'y', which is no input"),
    ],
)
def test_padding_names_inputs_and_takes_numbers(table, message):
    text = TEXT.replace("task", f"{table}task") if table.startswith("padding") else TEXT + table
    with pytest.raises(UsageError, match=message):
        parse_spec(text, "model.toml")
