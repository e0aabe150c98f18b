"""How far numbers and rows are apart, against what numpy and hand counts say."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlx_platform.core.tensors import text_column
from mlx_platform.evaluation.agreement import Tolerance, compare_arrays
from mlx_platform.evaluation.differences import (
    Differences,
    differences_of,
    edit_distance,
    equal_pairs,
    row_measures,
)

FINITE = st.floats(-1e6, 1e6, width=32)
PAIRS = st.integers(1, 40).flatmap(
    lambda size: st.tuples(*(arrays.arrays(np.float32, size, elements=FINITE) for _ in range(2)))
)


@given(PAIRS)
def test_the_required_tolerance_is_the_smallest_with_which_all_agree(pair):
    relative, absolute = 1e-3, 1e-4
    found = differences_of(*pair, relative=relative, absolute=absolute)

    for tolerance in (
        Tolerance(relative, found.required_absolute * (1 + 1e-9) + 1e-300),
        Tolerance(found.required_relative * (1 + 1e-9) + 1e-300, absolute),
    ):
        assert compare_arrays(*pair, {"FP32": tolerance}).disagreeing == 0
    if found.required_absolute > 0:
        smaller = Tolerance(relative, found.required_absolute * (1 - 1e-6))
        assert compare_arrays(*pair, {"FP32": smaller}).disagreeing > 0
    if found.required_relative > 0:
        smaller = Tolerance(found.required_relative * (1 - 1e-6) - 1e-300, absolute)
        assert compare_arrays(*pair, {"FP32": smaller}).disagreeing > 0


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_parts_added_up_are_the_whole(parts):
    total = Differences()
    for pair in parts:
        total.add(differences_of(*pair, relative=0.0, absolute=0.0))
    logged, replayed = (np.concatenate(side) for side in zip(*parts, strict=True))
    whole = differences_of(logged, replayed, relative=0.0, absolute=0.0)

    assert total.bins == whole.bins
    assert total.document() == pytest.approx(whole.document())


def test_the_figures_are_those_of_numpy():
    generator = np.random.default_rng(7)
    logged = generator.normal(size=5_000)
    replayed = logged + generator.lognormal(-6, 2, 5_000) * np.where(np.arange(5_000) % 3, 1, 0)
    apart = np.abs(replayed - logged)
    found = differences_of(logged, replayed, relative=0.0, absolute=0.0).document()

    assert found["bias"] == pytest.approx((replayed - logged).mean())
    assert found["smape"] == pytest.approx((2 * apart / (np.abs(logged) + np.abs(replayed))).mean())
    assert found["median"] == pytest.approx(np.median(apart), rel=0.05)
    assert found["p99"] == pytest.approx(np.quantile(apart, 0.99), rel=0.05)
    assert found["largest"] == found["required_absolute"] == apart.max()


def test_equal_numbers_count_among_the_quantiles():
    total = equal_pairs(np.zeros(90, np.float32))
    total.add(differences_of(np.zeros(10), np.full(10, 0.5), relative=0.0, absolute=0.0))

    assert total.quantile(0.9) == 0.0
    assert total.quantile(0.91) == pytest.approx(0.5, rel=0.05)


def test_what_is_not_finite_is_no_pair():
    found = differences_of(
        np.array([np.nan, np.inf, 1.0]), np.array([1.0, np.inf, 1.0]), relative=0.0, absolute=0.0
    )

    assert (found.pairs, found.largest) == (1, 0.0)
    assert Differences().document() == {}
    assert np.isnan(Differences().quantile(0.5))


@pytest.mark.parametrize(
    ("name", "logged", "replayed", "expected"),
    [
        ("probabilities", [[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.7, 0.3]], {"total_variation": 0.3}),
        ("embedding", [[1.0, 0.0]], [[1.0, 1.0]], {"cosine": 0.5**0.5, "norm": 1 - 0.5**0.5}),
        ("embedding", [[0.0, 0.0]], [[1.0, 1.0]], {}),
    ],
)
def test_rows_of_floats_are_measured_by_what_they_are(name, logged, replayed, expected):
    found = row_measures(name, np.array(logged), np.array(replayed))

    assert {measure: of.worst for measure, of in found.items()} == pytest.approx(expected)
    assert all(of.rows == 1 for of in found.values())


def test_token_sequences_are_measured_though_their_lengths_differ():
    found = row_measures("tokens", np.array([[1, 2, 3, 4]]), np.array([[1, 2, 9, 3, 4]]))

    assert found["edit_distance"].worst == pytest.approx(1 / 5)
    assert found["prefix"].worst == pytest.approx(2 / 5)


def test_text_is_measured_word_by_word():
    logged = text_column(["the cat sat", "same"])
    found = row_measures("text", logged, text_column(["the dog sat", "same"]))

    assert found["edit_distance"].document() == pytest.approx({"rows": 1, "mean": 1 / 3, "worst": 1 / 3})
    assert found["prefix"].worst == pytest.approx(1 / 3)


@given(st.lists(st.integers(0, 3), max_size=7), st.lists(st.integers(0, 3), max_size=7))
def test_the_edit_distance_is_that_of_its_definition(one, other):
    @functools.cache
    def by_definition(i, j):
        if min(i, j) == 0:
            return max(i, j)
        return min(
            by_definition(i - 1, j) + 1,
            by_definition(i, j - 1) + 1,
            by_definition(i - 1, j - 1) + (one[i - 1] != other[j - 1]),
        )

    assert edit_distance(one, other) == by_definition(len(one), len(other))
