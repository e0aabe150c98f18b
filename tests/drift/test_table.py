"""Both sides over the same bins: which bins, and what they are called."""

import numpy as np
import pytest

from mlx_platform.core.tensors import Array, text_column
from mlx_platform.drift.counts import count
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.table import OTHER, Table, tabulate


def table(baseline: Array, window: Array, parts: int | None = None) -> Table:
    profile = build_profile({"x": baseline})
    return tabulate(profile.features[0], count(profile, {"x": window}).tallies[0], parts)


def words(**counts: int) -> Array:
    return text_column([word for word, times in counts.items() for _ in range(times)])


def test_numeric_bins_are_the_baselines_deciles_with_open_ends() -> None:
    found = table(np.arange(1.0, 101.0), np.arange(11.0, 111.0))

    assert found.baseline.tolist() == [10] * 10
    assert found.window.tolist() == [0, 10, 10, 10, 10, 10, 10, 10, 10, 20]
    assert (found.labels[0], found.labels[1], found.labels[-1]) == ("≤ 10", "(10, 20]", "> 90")


def test_discrete_bins_are_the_values_with_guards_for_what_the_baseline_never_held() -> None:
    found = table(np.repeat([0.0, 1, 2, 5], 10), np.array([0, 0, 2, 3, 4, -1, 9.0]))

    assert dict(zip(found.labels, found.window.tolist(), strict=True)) == {
        "= 0": 2,
        "= 1": 0,
        "= 2": 1,
        "= 5": 0,
        "between": 2,
        "beyond": 2,
    }
    assert found.baseline.tolist() == [10, 10, 10, 10, 0, 0]


def test_coarser_bins_of_discrete_values_keep_every_row() -> None:
    found = table(np.repeat(np.arange(16.0), 10), np.array([-1, 0, 3, 3.5, 4, 15, 99.0]), 4)

    assert found.labels == ("≤ 3", "(3, 7]", "(7, 11]", "> 11")
    assert found.window.tolist() == [3, 2, 0, 2]
    assert found.baseline.tolist() == [40] * 4


def test_a_constant_has_three_bins() -> None:
    assert table(np.full(10, 5.0), np.array([5, 5, 7, 4.0])).labels == ("< 5", "= 5", "> 5")


def test_bins_that_are_empty_on_both_sides_are_left_out() -> None:
    assert table(np.full(10, 5.0), np.full(3, 5.0)).labels == ("= 5",)


def test_a_category_stands_alone_when_both_sides_pooled_expect_five_rows() -> None:
    found = table(words(a=50, b=45, rare=5), words(a=50, b=40, new=5, rare=5))

    assert found.labels == ("a", "b", "rare", OTHER)
    assert found.window.tolist() == [50, 40, 5, 5]
    assert found.baseline.tolist() == [50, 45, 5, 0]


def test_a_frequent_new_category_stands_alone() -> None:
    found = table(words(a=50, b=50), words(a=50, b=40, z=10))

    assert dict(zip(found.labels, found.window.tolist(), strict=True)) == {"a": 50, "b": 40, "z": 10}


def test_which_categories_stand_alone_does_not_depend_on_the_side() -> None:
    one, other = words(a=80, b=15, c=5), words(a=70, b=10, d=20)

    assert set(table(one, other).labels) == set(table(other, one).labels)


def test_coarser_tables_of_categories_keep_the_most_frequent() -> None:
    found = table(words(a=50, b=30, c=20), words(a=50, b=30, c=20), 2)

    assert found.labels == ("a", OTHER)
    assert found.window.tolist() == [50, 50]


def test_labels_of_hostile_categories_are_harmless() -> None:
    found = table(text_column(["\x1b[31mred"] * 10 + [""] * 10), text_column([""] * 20))

    assert found.labels == ("(empty text)", "\\u001b[31mred")


def test_rows_without_a_value_are_one_more_bin() -> None:
    found = table(np.arange(1.0, 101.0), np.arange(1.0, 101.0)).with_missing(0, 7)

    assert found.labels[-1] == "(missing)"
    assert found.rows == (100, 107)
    assert found.with_missing(0, 0).bins == found.bins


@pytest.mark.parametrize("parts", [None, 3, 5, 10])
def test_every_resolution_holds_every_present_row(parts: int | None) -> None:
    generator = np.random.default_rng(2)
    for baseline in (
        generator.normal(size=500),
        generator.poisson(4, 500),
        words(a=300, b=150, c=50),
        np.ones(500),
        np.full(500, np.nan),
    ):
        window = baseline[::3]
        found = table(baseline, window, parts)
        present = 0 if baseline.dtype.kind == "f" and np.isnan(baseline).all() else 1
        assert found.rows == (500 * present, len(window) * present)
