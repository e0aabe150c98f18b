import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.evaluation.uncertainty import disagreement, uncertainty


def test_certainty_is_0_a_guess_1_and_no_number_1():
    shares = np.array([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.6, 0.4, 0.0], [np.nan, 0.5, 0.5]])

    assert uncertainty({"probabilities": shares}) == pytest.approx([0, 1, 0.6, 1])


def test_without_probabilities_the_confidence_tells():
    assert uncertainty({"confidence": np.array([0.9, 0.5], np.float32)}) == pytest.approx([0.1, 0.5])


def test_a_number_says_nothing_about_how_sure_it_is():
    with pytest.raises(UsageError, match="no probabilities or confidence"):
        uncertainty({"value": np.array([1.0])})


def test_other_labels_are_farther_apart_than_any_confidence():
    one = {"label": text_column(["a", "a", "b"]), "confidence": np.array([0.9, 0.9, 0.2])}
    other = {"label": text_column(["a", "b", "b"]), "confidence": np.array([0.9, 0.9, 1.0])}

    assert disagreement(one, other) == pytest.approx([0.0, 1.0, 0.8])


def test_numbers_are_apart_by_their_difference_against_their_size():
    one, other = {"value": np.array([1.0, 0.0, 2.0, np.nan])}, {"value": np.array([1.0, 0.0, -2.0, 1.0])}

    assert disagreement(one, other) == pytest.approx([0.0, 0.0, 1.0, 1.0])


def test_a_label_and_a_number_cannot_be_compared():
    with pytest.raises(UsageError):
        disagreement({"label": text_column(["a"])}, {"value": np.array([1.0])})
