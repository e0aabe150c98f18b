import numpy as np
import pytest

from mlx_platform.core.tensors import text_column
from mlx_platform.drift.counts import count
from mlx_platform.drift.excess import Excess, row_weights
from mlx_platform.drift.profile import build_profile

TENTHS = np.tile(np.arange(1.0, 101.0), 10)


def excess(baseline, window):
    profile = build_profile({"x": baseline})
    return Excess(profile.features[0], count(profile, {"x": window}).tallies[0])


def words(**counts):
    return text_column([word for word, times in counts.items() for _ in range(times)])


def test_rows_of_fuller_bins_bring_a_drift_about_and_others_do_not():
    found = excess(TENTHS, TENTHS + 30).of(np.array([5.0, 95.0, 130.0, np.nan]))

    assert found[0] == 0
    assert found[1] == found[2] > 0
    assert found[3] == 0


def test_new_categories_bring_it_about():
    found = excess(words(a=50, b=50), words(a=50, b=40, z=10)).of(text_column(["a", "b", "z", None, "other"]))

    assert found[2] == max(found)
    assert found[1] == found[3] == 0


def test_missing_values_bring_it_about_where_there_are_more_of_them():
    window = np.where(np.arange(1000) % 2, TENTHS, np.nan)

    found = excess(TENTHS, window).of(np.array([50.0, np.nan]))

    assert found[0] == 0 < found[1]


def test_discrete_values_and_the_gaps_between_them_are_told_apart():
    found = excess(np.repeat([1.0, 2.0, 3.0], 100), np.repeat([1.0, 2.0, 2.5], 100)).of(
        np.array([1.0, 2.0, 2.5, 3.0])
    )

    assert found[2] == max(found) > 0
    assert found[3] == 0


def test_what_a_row_adds_does_not_depend_on_how_many_there_are():
    few, many = excess(TENTHS, TENTHS + 30), excess(np.tile(TENTHS, 20), np.tile(TENTHS + 30, 20))

    assert few.of(np.array([120.0])) == pytest.approx(many.of(np.array([120.0])), rel=0.02)


def test_features_add_up_and_one_that_is_not_there_adds_nothing():
    one = excess(TENTHS, TENTHS + 30)
    column = np.array([120.0, 5.0])

    total = row_weights({"x": one, "y": one, "gone": one}, {"x": column, "y": column, "gone": np.ones(3)}, 2)

    assert total == pytest.approx(2 * one.of(column))
