"""Exact tests for small windows, against SciPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlx_platform.drift.exact import ks_p_value, permutation_p_value

SIDES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=2, max_size=12).filter(
    lambda pairs: all(any(side) for side in zip(*pairs, strict=True))
)


def sides(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.asarray(pairs, dtype=np.int64)
    return table[:, 0], table[:, 1]


def test_the_exact_p_value_of_distinct_values_is_scipys() -> None:
    generator = np.random.default_rng(1)
    one, other = generator.normal(size=200), generator.normal(0.8, size=12)
    edges = np.sort(np.concatenate([one, other]))
    baseline, window = (np.bincount(np.searchsorted(edges, side), minlength=212) for side in (one, other))

    assert ks_p_value(baseline, window) == pytest.approx(stats.ks_2samp(one, other, method="exact").pvalue)


def test_beyond_the_exact_range_the_limit_is_close_to_it() -> None:
    baseline, window = np.full(100, 100), np.bincount(np.arange(40), minlength=100)

    exact, limit = ks_p_value(baseline, window), ks_p_value(baseline + 1, window)

    assert limit == pytest.approx(exact, rel=0.5)


@given(SIDES)
@settings(max_examples=40)
def test_p_values_are_probabilities_and_equal_shares_are_never_significant(
    pairs: list[tuple[int, int]],
) -> None:
    baseline, window = sides(pairs)

    assert 0 <= ks_p_value(baseline, window) <= 1
    assert 0 < permutation_p_value(baseline, window, draws=200) <= 1
    assert ks_p_value(baseline, baseline) > 0.99
    assert permutation_p_value(baseline, baseline, draws=200) > 0.5


def test_dealing_rows_gives_fishers_p_value() -> None:
    baseline, window = np.array([95, 5]), np.array([6, 4])

    expected = stats.fisher_exact([[95, 5], [6, 4]]).pvalue

    assert permutation_p_value(baseline, window, draws=40_000) == pytest.approx(expected, abs=0.002)
    assert permutation_p_value(window, baseline, draws=40_000) == pytest.approx(expected, abs=0.002)


def test_dealing_is_repeatable_and_pools_the_rarest_of_many_categories() -> None:
    baseline, window = np.full(400, 5), np.bincount(np.full(8, 3), minlength=400)

    found = permutation_p_value(baseline, window)

    assert found == permutation_p_value(baseline, window)
    assert found < 0.001


def test_small_samples_of_one_distribution_are_rarely_significant() -> None:
    generator = np.random.default_rng(5)
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    p_values = [
        (permutation_p_value(a, b, draws=500), ks_p_value(a, b))
        for a, b in zip(
            generator.multinomial(300, shares, 200), generator.multinomial(12, shares, 200), strict=True
        )
    ]

    assert sum(p < 0.05 for p, _ in p_values) <= 20
    assert sum(p < 0.05 for _, p in p_values) <= 20
