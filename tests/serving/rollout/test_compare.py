"""What counts as saying the same."""

import numpy as np
import pytest

from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.inference.spec import ModelSpec, StepSpec
from mlx_platform.serving.rollout.compare import KEPT, Comparer, Differences, is_sound

LABELS = ("low", "mid", "high")


def classifier(*post):
    return ModelSpec(
        task="classification",
        inputs=(TensorSpec("x", "FP32", (None, 4)),),
        outputs=(TensorSpec("scores", "FP32", (None, 3)),),
        labels=LABELS,
        post=post,
    )


def tensors():
    return ModelSpec(
        task="tensors",
        inputs=(TensorSpec("x", "FP32", (None, 4)),),
        outputs=(TensorSpec("y", "FP32", (None, 2)),),
    )


SOFTMAX = (StepSpec("softmax", {"output": "scores"}), StepSpec("labels", {}))


def comparer(spec=None, relative=0.01, absolute=1e-5):
    return Comparer(spec or classifier(*SOFTMAX), relative=relative, absolute=absolute)


def answer(*rows):
    probabilities = np.array(rows, np.float32)
    best = probabilities.argmax(axis=1)
    return {
        "label": text_column([LABELS[index] for index in best]),
        "label_index": best,
        "confidence": probabilities.max(axis=1),
        "probabilities": probabilities,
    }


def test_a_version_that_is_only_less_sure_agrees_and_its_numbers_are_told():
    found = comparer().compare(answer([0.1, 0.2, 0.7]), answer([0.2, 0.25, 0.55]))
    assert found.agrees
    assert set(found.differing) == {"confidence", "probabilities"}


def test_another_label_disagrees_by_how_sure_the_stable_version_was():
    found = comparer().compare(
        answer([0.1, 0.2, 0.7], [0.05, 0.05, 0.9]), answer([0.1, 0.2, 0.7], [0.6, 0.2, 0.2])
    )
    assert not found.agrees
    assert (found.row, found.severity) == (1, pytest.approx(0.9))
    assert found.differing[:2] == ("label", "label_index")


def test_a_label_that_changed_between_two_equally_likely_ones_agrees():
    assert comparer().compare(answer([0.4995, 0.0, 0.5005]), answer([0.5005, 0.0, 0.4995])).agrees
    assert not comparer().compare(answer([0.48, 0.0, 0.52]), answer([0.52, 0.0, 0.48])).agrees


def test_the_same_bits_agree_whatever_they_are():
    for outputs in (answer([0.1, 0.2, 0.7]), {"y": np.array([[1.0, np.inf]], np.float32)}, {}):
        found = comparer().compare(outputs, {name: array.copy() for name, array in outputs.items()})
        assert found.agrees
        assert found.differing == ()


@pytest.mark.parametrize(
    "post",
    [
        SOFTMAX,
        (StepSpec("labels", {"output": "scores"}),),
        (StepSpec("sigmoid", {"output": "scores", "into": "p"}), StepSpec("top_k", {"output": "p", "k": 2})),
    ],
)
def test_tensors_that_make_a_label_are_judged_by_the_label(post):
    judge = comparer(classifier(*post))
    stable = {"scores": np.array([[1.0, 2.0, 5.0], [3.0, 1.0, 0.0]], np.float32)}
    assert judge.compare(stable, {"scores": stable["scores"] * 2}).agrees
    other = judge.compare(stable, {"scores": stable["scores"] * -1})
    assert not other.agrees
    assert other.differing == ("scores",)


def test_numbers_without_a_label_agree_within_the_tolerance():
    judge = comparer(tensors())
    stable = {"y": np.array([[100.0, 0.0]], np.float32)}
    assert judge.compare(stable, {"y": np.array([[100.9, 9e-6]], np.float32)}).agrees
    found = judge.compare(
        {"y": np.tile(stable["y"], (3, 1))},
        {"y": np.array([[100.0, 0.0], [101.5, 0.0], [104.0, 0.0]], np.float32)},
    )
    assert not found.agrees
    assert (found.row, found.severity) == (2, pytest.approx(4.0))


def test_a_number_against_nan_or_infinity_disagrees():
    judge = comparer(tensors(), relative=1.0, absolute=1e9)
    for odd in (np.nan, np.inf):
        assert not judge.compare({"y": np.float32([[1, 2]])}, {"y": np.float32([[1, odd]])}).agrees


@pytest.mark.parametrize(
    "candidate",
    [
        {"label": text_column(["low"])},
        {**answer([0.7, 0.2, 0.1]), "extra": np.zeros(1)},
        answer([0.7, 0.2, 0.1], [0.7, 0.2, 0.1]),
        {**answer([0.7, 0.2, 0.1]), "confidence": np.array([0.7])},
        {},
    ],
)
def test_an_answer_of_another_form_disagrees_although_the_label_may_be_the_same(candidate):
    assert not comparer().compare(answer([0.7, 0.2, 0.1]), candidate).agrees


def test_integers_and_texts_without_a_label_must_be_equal():
    judge = comparer(tensors())
    assert not judge.compare({"n": np.array([1])}, {"n": np.array([2])}).agrees
    assert not judge.compare({"t": text_column(["a"])}, {"t": text_column(["b"])}).agrees
    assert judge.compare({"t": text_column(["a"])}, {"t": text_column(["a"])}).agrees


def test_an_answer_is_sound_without_nan_and_infinity():
    assert is_sound(answer([0.1, 0.2, 0.7]))
    assert not is_sound({"y": np.float32([1, np.inf])})
    assert not is_sound({"n": np.array([1]), "y": np.float64([np.nan])})


def test_only_the_worst_differences_are_kept_worst_first():
    kept, judge = Differences(), comparer(tensors())
    for number in np.random.default_rng(0).permutation(3 * KEPT):
        stable, candidate = ({"y": np.float32([[0, value]])} for value in (0, 1 + number))
        kept.add(f"r-{number}", judge.compare(stable, candidate), stable, candidate)
    found = [difference.document() for difference in kept.worst()]
    assert [entry["request_id"] for entry in found] == [
        f"r-{n}" for n in range(3 * KEPT - 1, 2 * KEPT - 1, -1)
    ]
    assert found[0]["stable"] == {"y": [0.0, 0.0]}
    assert found[0]["candidate"] == {"y": [0.0, 3.0 * KEPT]}


def test_what_is_kept_shows_one_row_cut_short_and_masked():
    kept, judge = Differences(), comparer(tensors())
    stable = {
        "text": text_column(["same", "write to ada@example.org " + "x " * 500]),
        "email": text_column(["a", "b"]),
        "v": np.zeros((2, 50), np.float32),
    }
    candidate = {**stable, "text": text_column(["same", "no"]), "email": text_column(["a", "c"])}
    candidate["v"] = np.array([[0] * 50, [np.nan] * 50], np.float32)
    kept.add("r-1", judge.compare(stable, candidate), stable, candidate)
    (found,) = kept.worst()
    assert found.row == 1
    assert "ada@" not in found.stable["text"]
    assert len(found.stable["text"]) <= 80
    assert found.stable["email"] == "[masked]"
    assert found.candidate["v"] == ["nan"] * 8
