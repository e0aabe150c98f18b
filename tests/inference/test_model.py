import threading

import numpy as np
import pandas as pd
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.inference.cases import golden_line, make_case
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import with_file

FLOAT = TensorProto.FLOAT


def test_a_model_says_who_it_is(logistic_model, logistic_package):
    assert (logistic_model.name, logistic_model.version) == ("digits", "3")
    assert logistic_model.digest == logistic_package.digest
    assert logistic_model.labels == tuple("0123456789")
    assert logistic_model.columns == ()


def test_answers_are_those_of_the_estimator(logistic_model, logistic, digits):
    answers = logistic_model.predict(digits[0])

    assert answers.columns["label"].tolist() == [str(digit) for digit in logistic.predict(digits[0])]
    assert answers.columns["probabilities"] == pytest.approx(logistic.predict_proba(digits[0]), abs=1e-5)
    assert answers.columns["confidence"] == pytest.approx(answers.columns["probabilities"].max(axis=1))
    assert answers.columns["label_index"].dtype == np.int64
    assert answers.tensors["label"].tolist() == logistic.predict(digits[0]).tolist()


@pytest.mark.parametrize("batch_size", [1, 7, 1797, 5000])
def test_the_batch_size_changes_nothing(logistic_model, digits, batch_size):
    answers = logistic_model.predict(digits[0], batch_size=batch_size)

    assert len(answers.columns["label"]) == 1797
    whole = logistic_model.predict(digits[0])
    assert answers.columns["probabilities"] == pytest.approx(whole.columns["probabilities"], abs=1e-6)


def test_every_form_of_rows_gives_the_same_answer(logistic_model, digits):
    pixels = digits[0][:5].astype(np.float64)
    names = [f"p{index:02}" for index in range(64)]
    want = logistic_model.predict(pixels).columns["probabilities"]

    for rows in (
        {name: pixels[:, index] for index, name in enumerate(names)},
        {"x": pixels},
        pd.DataFrame(pixels, columns=names),
        pixels.tolist(),
        [dict(zip(names, row, strict=True)) for row in pixels.tolist()],
        logistic_model.rows_from_json(pixels.tolist()),
    ):
        assert (logistic_model.predict(rows).columns["probabilities"] == want).all()


def test_a_bad_row_is_counted_over_all_batches(logistic_model, digits):
    columns = {f"p{index}": digits[0][:200, index].copy() for index in range(64)}
    columns["p7"][150] = np.nan

    with pytest.raises(UsageError, match="'p7', row 150: a value is missing") as caught:
        logistic_model.predict(columns, batch_size=64)
    assert caught.value.details == {"column": "p7", "row": 150}


def test_no_rows_are_no_answer(logistic_model):
    with pytest.raises(UsageError, match="no rows"):
        logistic_model.predict({f"p{index}": np.zeros(0) for index in range(64)})
    with pytest.raises(UsageError, match="at least one row"):
        logistic_model.predict(np.zeros((1, 64)), batch_size=0)


def test_a_network_of_a_fixed_batch_answers_any_number_of_rows(pack, graph):
    model = pack(
        graph([helper.make_node("Mul", ["x", "x"], ["y"])], {"x": (FLOAT, [3, 2])}, {"y": (FLOAT, [3, 2])})
    )

    answers = model.predict(np.arange(8).reshape(4, 2))

    assert answers.tensors["y"].tolist() == [[0, 1], [4, 9], [16, 25], [36, 49]]


def test_outputs_of_different_lengths_stay_rows(pack, graph):
    shape = {"x": (FLOAT, ["n", "k", 1])}
    node = helper.make_node("NonZero", ["x"], ["y"])
    model = pack(graph([node], shape, {"y": (TensorProto.INT64, ["r", "m"])}))

    answers = model.predict({"x": np.array([[[1], [0]], [[1], [1]]])}, batch_size=1)

    assert answers.tensors["y"].dtype == object


_COUNTING = """format = 1
task = "tensors"
[[pre]]
step = "tokenize"
column = "text"
max_length = 20
length = "refuse"
"""


def _words():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "w": 1}, unk_token="[UNK]"))  # noqa: S106 - of text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture
def counting(pack, graph):
    """For each text its words, and how wide its batch was padded."""
    nodes = [
        helper.make_node("ReduceSum", ["input_ids", "axis"], ["words"], keepdims=0),
        helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
        helper.make_node("Mul", ["words", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "length"], ["padded"]),
    ]
    whole = TensorProto.INT64
    network = graph(
        nodes,
        {"input_ids": (whole, ["n", "tokens"])},
        {"words": (whole, ["n"]), "padded": (whole, ["n"])},
        {"axis": np.array([1]), "zero": np.array(0)},
    )
    inputs = network.graph.input[0], *network.graph.output
    tables = "".join(
        f'[[{kind}]]\nname = "{tensor.name}"\ndatatype = "INT64"\nshape = {shape}\n'
        for tensor, kind, shape in zip(
            inputs, ("inputs", "outputs", "outputs"), ("[-1, -1]", "[-1]", "[-1]"), strict=True
        )
    )
    return pack(network, _COUNTING + tables, {"tokenizer.json": _words().to_str().encode()})


def test_texts_of_like_length_share_a_batch_and_answers_keep_their_rows(counting):
    words = np.random.default_rng(0).permutation(np.arange(1, 20))
    rows = {"text": text_column(["w " * count for count in words])}

    answers = counting.predict(rows, batch_size=4).columns

    assert answers["words"].tolist() == words.tolist()
    assert (answers["padded"] - words).max() <= 3
    assert counting.predict(rows, batch_size=100).columns["padded"].tolist() == [19] * 19


def test_the_first_text_of_the_file_that_is_too_long_is_named_whatever_its_length(counting):
    rows = {"text": text_column(["w", "w " * 30, "w w", "w " * 90, "w"])}

    with pytest.raises(UsageError, match=r"row 1: the text has 30 tokens"):
        counting.predict(rows, batch_size=2)


@pytest.mark.parametrize("merge", ["mean", "max", "first"])
def test_long_texts_are_taken_in_parts_and_answered_once(pack, graph, merge):
    network = graph(
        [
            helper.make_node("Cast", ["input_ids"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["floats", "axis"], ["value"], keepdims=0),
        ],
        {"input_ids": (TensorProto.INT64, ["n", "tokens"])},
        {"value": (TensorProto.FLOAT, ["n"])},
        {"axis": np.array([1])},
    )
    split = f'max_length = 2\nlength = "split"\nmerge = "{merge}"'
    spec = _COUNTING.replace('max_length = 20\nlength = "refuse"', split).replace('"tensors"', '"regression"')
    tables = """[[inputs]]
name = "input_ids"
datatype = "INT64"
shape = [-1, -1]
[[outputs]]
name = "value"
datatype = "FP32"
shape = [-1]
"""
    model = pack(network, spec + tables, {"tokenizer.json": _words().to_str().encode()})
    texts = ["w " * 7, "w", "w w w"]

    together = model.predict({"text": text_column(texts)}).columns["value"]
    alone = [model.predict({"text": text_column([text])}).columns["value"][0] for text in texts]

    # Of 7 tokens three parts hold 2 and one holds 1: (3·2·2 + 1·1) / 7.
    mean = [13 / 7, 1, 5 / 3]
    assert together.tolist() == pytest.approx(mean if merge == "mean" else [2, 1, 2])
    assert alone == together.tolist()


def test_many_threads_get_their_own_answers(logistic_model, digits):
    want = logistic_model.predict(digits[0]).columns["label"]
    wrong = []

    def ask(part):
        rows = slice(part * 100, part * 100 + 100)
        answers = [logistic_model.predict(digits[0][rows]).columns["label"] for _ in range(5)]
        wrong.extend(part for answer in answers if answer.tolist() != want[rows].tolist())

    threads = [threading.Thread(target=ask, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_self_check_finds_a_model_that_answers_differently(pack, graph, tmp_path):
    model = pack(graph([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}))
    good = make_case({"x": np.array([2.0])}, {"value": np.array([-2.0])}, rtol=0, atol=0)
    bad = make_case({"x": np.array([2.0])}, {"value": np.array([2.0])}, rtol=0, atol=0)
    broken = make_case({"x": text_column(["two"])}, {"value": np.array([2.0])}, rtol=0, atol=0)

    package = with_file(model.package, "golden.jsonl", b"".join(map(golden_line, (good, bad, broken))))

    problems = Model.load(package).self_check()
    assert problems == [
        "Golden case 2: 'value' is -2, not 2 (rtol 0, atol 0).",
        "Golden case 3 does not run: Column 'x', row 0: 'two' is no number.",
    ]


def test_golden_tensors_pass_by_a_pipeline_that_starts_from_columns(pack, graph):
    spec = """
format = 1
task = "tensors"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 2]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 2]
[[pre]]
step = "columns"
names = ["a", "b"]
"""
    model = pack(
        graph([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["n", 2])}, {"y": (FLOAT, ["n", 2])}),
        spec,
    )
    matrix = np.array([[1, 2]], np.float32)

    for inputs in ({"x": matrix}, {"a": np.array([1]), "b": np.array([2])}):
        case = make_case(inputs, {"y": -matrix}, rtol=0, atol=0)
        assert model.answer(case).tensors["y"].tolist() == [[-1, -2]]


def test_features_are_what_the_columns_say(logistic_model, digits):
    look = InputFeatures(logistic_model.spec, None)
    named = look({f"p{index}": digits[0][:3, index] for index in range(64)})
    matrix = look({"x": digits[0][:3]})

    assert list(named) == [f"p{index}" for index in range(64)]
    assert list(matrix) == [f"x[{index}]" for index in range(64)]
    assert (matrix["x[20]"] == digits[0][:3, 20]).all()
