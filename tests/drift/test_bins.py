"""Bins come from observed values alone and are counted without losing a row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.drift import bins

FLOATS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200)
SMALL = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=60)


@given(FLOATS, st.sampled_from([2, 3, 10, 120]))
def test_quantiles_are_the_inverted_distribution_function(sample: list[float], parts: int) -> None:
    ordered = np.sort(sample)
    expected = np.quantile(ordered, np.arange(1, parts) / parts, method="inverted_cdf")

    found = bins.quantiles(ordered, parts)

    # NumPy multiplies in floating point, so that its rank may be off by one where k n / parts is whole.
    exact = [ordered[-(-k * len(ordered) // parts) - 1] for k in range(1, parts)]
    assert found.tolist() == exact
    assert set(found) <= set(sample)
    assert np.count_nonzero(found != expected) <= parts // 2


@given(FLOATS)
def test_coarse_edges_are_the_quantiles_of_the_coarser_division(sample: list[float]) -> None:
    ordered = np.sort(sample)
    fine = bins.quantiles(ordered)

    for parts in (3, 5, 10, 20):
        direct = np.unique(bins.quantiles(ordered, parts))
        assert bins.edges(fine, ordered[-1], parts).tolist() == direct[direct < ordered[-1]].tolist()


def test_deciles_of_one_to_a_hundred_hold_ten_values_each() -> None:
    ordered = np.arange(1.0, 101.0)
    edges = bins.edges(bins.quantiles(ordered), 100.0, 10)

    assert edges.tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert bins.count_intervals(ordered, edges).tolist() == [10] * 10
    assert bins.count_intervals(ordered + 10, edges).tolist() == [0, 10, 10, 10, 10, 10, 10, 10, 10, 20]


def test_a_value_with_most_of_the_mass_gets_one_edge_and_no_edge_is_invented() -> None:
    ordered = np.sort(np.concatenate([np.zeros(600), np.arange(1, 401)]))

    edges = bins.edges(bins.quantiles(ordered), 400, 10)

    assert edges.tolist() == [0, 100, 200, 300]
    assert bins.count_intervals(ordered, edges).tolist() == [600, 100, 100, 100, 100]


@given(FLOATS, FLOATS)
def test_merging_fine_bins_equals_counting_on_the_coarse_edges(
    sample: list[float], window: list[float]
) -> None:
    ordered, shown = np.sort(sample), np.sort(window)
    quantiles = bins.quantiles(ordered)
    fine = bins.edges(quantiles, ordered[-1], 120)
    coarse = bins.edges(quantiles, ordered[-1], 10)

    merged = bins.merge_bins(bins.count_intervals(shown, fine), fine, coarse)

    assert merged.tolist() == bins.count_intervals(shown, coarse).tolist()


@given(SMALL, SMALL)
def test_values_and_gaps_hold_every_row_where_it_belongs(known: list[float], window: list[float]) -> None:
    distinct = np.unique(known)

    found = bins.count_values(np.sort(window), distinct)

    assert found.sum() == len(window)
    for index, value in enumerate(distinct):
        assert found[2 * index + 1] == window.count(value)
    assert found[0] == sum(value < distinct[0] for value in window)
    assert found[-1] == sum(value > distinct[-1] for value in window)


@given(FLOATS)
def test_infinities_go_to_the_outermost_bins(sample: list[float]) -> None:
    edges = np.unique(sample)
    counts = bins.count_intervals(np.array([-np.inf, np.inf, np.inf]), edges)

    assert (counts[0], counts[-1]) == (1, 2)


def test_whole_numbers_near_the_limit_of_floats_keep_their_own_bins() -> None:
    ordered = 2**60 + np.arange(100, dtype=np.int64)

    edges = bins.edges(bins.quantiles(ordered), int(ordered[-1]), 10)

    assert bins.count_intervals(ordered, edges).tolist() == [10] * 10


def test_traffic_of_less_precision_meets_the_edges_of_the_baseline() -> None:
    known = np.array([0.1, 0.2, 0.3, 0.7])
    window = np.sort(np.array([0.1, 0.3, 0.7, 0.7], dtype=np.float32))

    assert bins.count_values(window, known).tolist() == [0, 1, 0, 0, 0, 1, 0, 2, 0]
    assert bins.count_intervals(window, known).tolist() == [1, 0, 1, 2, 0]


def test_known_values_that_round_to_one_do_not_count_a_row_twice() -> None:
    known = np.array([0.1, 0.1 + 1e-12, 0.5])

    counts = bins.count_values(np.array([0.1, 0.5], dtype=np.float32), known)

    assert counts.sum() == 2
    assert counts.min() == 0


@pytest.mark.parametrize(
    ("values", "discrete"),
    [
        (np.arange(20) / 7, True),
        (np.arange(21) / 7, False),
        (np.arange(50.0), True),
        (np.arange(51.0), False),
        (np.arange(50), True),
    ],
)
def test_few_values_are_bins_themselves(values: np.ndarray, discrete: bool) -> None:
    assert bins.is_discrete(values) is discrete


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50), st.sampled_from([3, 5, 10]))
def test_groups_of_values_are_at_most_as_many_as_asked_for(counts: list[int], parts: int) -> None:
    ends = bins.group_ends(np.asarray(counts), parts)

    assert len(ends) < parts
    assert sorted(set(ends.tolist())) == ends.tolist()
    assert all(0 <= end < len(counts) - 1 for end in ends)


def test_groups_of_even_values_share_the_rows() -> None:
    assert bins.group_ends(np.full(16, 100), 4).tolist() == [3, 7, 11]
