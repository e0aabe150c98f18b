import math

import numpy as np
import pytest

from mlx_platform.quantize.agreement import (
    argmax_agreement,
    mean_divergence,
    relative_error,
    relative_errors,
)


def test_agreement_counts_rows_with_the_same_winner() -> None:
    before = np.float32([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    after = np.float32([[0.6, 0.4], [0.1, 0.9], [0.4, 0.6], [0.0, 1.0]])

    assert argmax_agreement(before, after) == 0.75


def test_divergence_of_two_coins() -> None:
    before, after = np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])

    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert mean_divergence(before, after) == pytest.approx(expected)
    assert mean_divergence(before, before) == 0


def test_a_probability_that_became_zero_is_a_large_finite_divergence() -> None:
    found = mean_divergence(np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]]))

    assert math.isfinite(found)
    assert found > 10


def test_relative_error_is_a_share_of_the_norm() -> None:
    assert relative_error(np.float32([3, 4]), np.float32([3, 4.5])) == pytest.approx(0.1)
    assert relative_error(np.zeros(3), np.zeros(3)) == 0
    assert relative_error(np.zeros(3), np.ones(3)) == math.inf


def test_only_float_outputs_have_an_error() -> None:
    before = {"label": np.int64([1]), "score": np.float32([1.0])}
    after = {"label": np.int64([2]), "score": np.float32([1.5])}

    assert relative_errors(before, after) == {"score": 0.5}
