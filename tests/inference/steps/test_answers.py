import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.steps.answers import sigmoid, softmax
from mlx_platform.inference.steps.catalog import POST, make_step
from mlx_platform.inference.steps.step import Site

OUTPUT = TensorSpec("scores", "FP32", (None, 3))
SITE = Site((), (OUTPUT,), ("a", "b", "c"), 100, 100)
SHARES = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]], np.float32)


def step(kind, site=SITE, **options):
    return make_step(kind, options, site, POST)


def test_softmax_is_exact_and_survives_large_scores():
    shares = softmax(np.array([[0, np.log(3)], [1e4, 1e4]]))

    assert shares == pytest.approx(np.array([[0.25, 0.75], [0.5, 0.5]]))
    assert softmax(np.zeros((1, 4), np.float16)).dtype == np.float32


def test_labels_name_the_most_probable_class_and_the_first_of_equals():
    made = step("labels")({"probabilities": SHARES})

    assert made["label"].tolist() == ["b", "a"]
    assert made["label_index"].tolist() == [1, 0]
    assert made["confidence"] == pytest.approx([0.5, 0.4])


def test_classes_without_names_are_numbers():
    site = Site((), (OUTPUT,), (), 100, 100)

    assert step("labels", site)({"probabilities": SHARES})["label"].tolist() == ["1", "0"]


def test_sigmoid_is_exact_and_survives_large_scores():
    with np.errstate(over="raise"):
        shares = sigmoid(np.array([[0, np.log(3), -np.log(3)], [1e4, -1e4, 0]]))

    assert shares == pytest.approx(np.array([[0.5, 0.75, 0.25], [1, 0, 0.5]]))
    assert sigmoid(np.zeros((1, 4), np.float16)).dtype == np.float32


def test_every_class_that_reaches_its_threshold_is_answered():
    shares = {"probabilities": np.array([[0.7, 0.5, 0.1], [0.1, 0.2, 0.3]], np.float32)}

    assert step("threshold")(shares)["labels"].tolist() == ["a|b", ""]
    assert step("threshold", thresholds=[0.2])(shares)["labels"].tolist() == ["a|b", "b|c"]
    # 0.7 in single precision is a little less than 0.7.
    assert step("threshold", thresholds=[0.7, 0.6, 0.1])(shares)["labels"].tolist() == ["a|c", "c"]


def test_thresholds_must_be_one_or_one_for_each_class():
    with pytest.raises(UsageError, match="2 thresholds for 3 labels"):
        step("threshold", thresholds=[0.5, 0.5])
    with pytest.raises(UsageError, match="separates labels"):
        step("threshold", Site((), (OUTPUT,), ("a|b", "c"), 100, 100))
    nameless = Site((), (OUTPUT,), (), 100, 100)
    with pytest.raises(UsageError, match="3 classes, not 2"):
        step("threshold", nameless, thresholds=[0.5, 0.5])({"probabilities": SHARES})


def test_the_wrong_number_of_labels_is_refused():
    with pytest.raises(UsageError, match="2 classes, but 3 labels"):
        step("labels")({"probabilities": SHARES[:, :2]})


def test_labels_need_a_matrix():
    with pytest.raises(UsageError, match=r"\[2\]"):
        step("labels")({"probabilities": SHARES[:, 0]})


def test_top_k_is_sorted_and_never_longer_than_the_classes():
    made = step("top_k", k=2)({"probabilities": SHARES})

    assert made["top_labels"].tolist() == [["b", "c"], ["a", "b"]]
    assert made["top_probabilities"] == pytest.approx(np.array([[0.5, 0.3], [0.4, 0.4]]))
    assert step("top_k", k=9)({"probabilities": SHARES})["top_labels"].shape == (2, 3)


def test_a_value_is_one_number_per_row():
    value = step("value", output="scores")

    assert value({"scores": np.ones((4, 1))})["value"].shape == (4,)
    with pytest.raises(UsageError, match="value needs the shape"):
        value({"scores": np.ones((4, 2))})
