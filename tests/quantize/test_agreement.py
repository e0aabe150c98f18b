import math

import numpy as np
import pytest

from mlx_platform.quantize.agreement import mean_divergence, relative_error


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


def test_what_is_not_a_number_is_as_far_away_as_anything() -> None:
    assert mean_divergence(np.array([[0.5, 0.5]]), np.array([[np.nan, 0.5]])) == math.inf
    assert relative_error(np.float32([3, 4]), np.float32([np.nan, 4])) == math.inf
