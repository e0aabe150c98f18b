"""The scores against values computed with 40 decimal digits, and against SciPy."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from mlx_platform.core.errors import UndecidedError
from mlx_platform.drift import scores

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text())
COUNTS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=20).filter(
    lambda pairs: any(a for a, _ in pairs) and any(b for _, b in pairs)
)


def counts(values: list[int]) -> scores.Counts:
    return np.asarray(values, dtype=np.int64)


def measured(baseline: list[int], window: list[int], smoothing: float) -> dict[str, float]:
    p, q = scores.shares(counts(baseline), counts(window), smoothing)
    return {
        "psi": scores.psi(p, q),
        "kl": scores.kl(p, q),
        "kl_reverse": scores.kl(q, p),
        "js_distance": scores.js_distance(p, q),
    }


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_every_vector_has_its_smoothed_scores(vector: dict[str, Any]) -> None:
    found = measured(vector["baseline"], vector["window"], scores.SMOOTHING)

    assert found == pytest.approx(vector["smoothed"], abs=6e-7)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_every_vector_has_its_raw_scores_or_is_refused(vector: dict[str, Any]) -> None:
    if vector["raw"] is None:
        with pytest.raises(UndecidedError, match="empty on one side"):
            measured(vector["baseline"], vector["window"], 0)
        return

    found = measured(vector["baseline"], vector["window"], 0)

    assert {name: found[name] for name in vector["raw"]} == pytest.approx(vector["raw"], abs=6e-7)


def test_a_side_without_rows_has_no_score() -> None:
    with pytest.raises(UndecidedError):
        scores.shares(counts([1, 2]), counts([0, 0]))


@given(COUNTS)
def test_scores_are_what_scipy_says_on_the_same_shares(pairs: list[tuple[int, int]]) -> None:
    p, q = scores.shares(counts([a for a, _ in pairs]), counts([b for _, b in pairs]))

    assert p.sum() == pytest.approx(1)
    assert q.sum() == pytest.approx(1)
    assert scores.kl(p, q) == pytest.approx(stats.entropy(p, q), abs=1e-12)
    assert scores.psi(p, q) == pytest.approx(stats.entropy(p, q) + stats.entropy(q, p), abs=1e-12)
    assert scores.js_distance(p, q) == pytest.approx(np.nan_to_num(distance.jensenshannon(p, q)), abs=1e-7)


@given(COUNTS, st.permutations(range(20)), st.integers(2, 50))
def test_psi_ignores_the_order_of_bins_and_raw_psi_the_size_of_both_sides(
    pairs: list[tuple[int, int]], order: list[int], times: int
) -> None:
    shuffled = [pairs[index] for index in order if index < len(pairs)]
    both = [(a + 1, b + 1) for a, b in pairs]

    def psi(chosen: list[tuple[int, int]], smoothing: float) -> float:
        return scores.psi(
            *scores.shares(counts([a for a, _ in chosen]), counts([b for _, b in chosen]), smoothing)
        )

    assert psi(shuffled, 0.5) == pytest.approx(psi(pairs, 0.5), abs=1e-12)
    assert psi([(b, a) for a, b in both], 0) == pytest.approx(psi(both, 0), abs=1e-12)
    assert psi([(a * times, b * times) for a, b in both], 0) == pytest.approx(psi(both, 0), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "m", "bins", "mean", "limits"),
    [
        (50, 50, 10, 0.36, (0.676759, 0.866640, 1.115087)),
        (100, 100, 10, 0.18, (0.338380, 0.433320, 0.557543)),
        (200, 200, 10, 0.09, (0.169190, 0.216660, 0.278772)),
        (500, 500, 10, 0.036, (0.067676, 0.086664, 0.111509)),
        (1000, 1000, 10, 0.018, (0.033838, 0.043332, 0.055754)),
        (100_000, 100, 10, 0.09009, (0.169359, 0.216877, 0.279050)),
        (100_000, 500, 10, 0.01809, (0.034007, 0.043549, 0.056033)),
        (10_000, 10_000, 1000, 0.1998, (0.214729, 0.221183, 0.228570)),
    ],
)
def test_the_limits_of_chance_are_those_of_the_chi_square_law(
    n: int, m: int, bins: int, mean: float, limits: tuple[float, float, float]
) -> None:
    found = [scores.psi_limit(n, m, bins, confidence) for confidence in (0.95, 0.99, 0.999)]

    assert scores.noise(n, m) * (bins - 1) == pytest.approx(mean, abs=5e-7)
    assert found == pytest.approx(limits, abs=6e-7)
    assert scores.psi_tail(found[2], n, m, bins) == pytest.approx(0.001)


def test_without_drift_psi_passes_its_limit_as_often_as_promised() -> None:
    generator = np.random.default_rng(7)
    shares, runs = np.full(10, 0.1), 2000
    above = {95: 0, 99.9: 0}
    for a, b in zip(
        generator.multinomial(500, shares, runs), generator.multinomial(500, shares, runs), strict=True
    ):
        score = scores.psi(*scores.shares(a, b))
        for percent in above:
            above[percent] += score > scores.psi_limit(500, 500, 10, percent / 100)

    assert 0.035 < above[95] / runs < 0.065
    assert above[99.9] <= 8


@pytest.mark.parametrize(
    ("mean", "deviation", "psi"),
    [
        (0.1, 1, 0.009587),
        (0.25, 1, 0.059816),
        (0.35, 1, 0.117002),
        (0.5, 1, 0.237749),
        (1, 1, 0.926142),
        (0, 1.25, 0.063755),
        (0, 2, 0.490754),
        (0, 0.8, 0.075780),
    ],
)
def test_decile_psi_of_normal_distributions_is_the_integral(
    mean: float, deviation: float, psi: float
) -> None:
    edges = stats.norm.ppf(np.arange(1, 10) / 10)
    moved = np.diff(np.concatenate([[0], stats.norm.cdf(edges, mean, deviation), [1]]))

    assert scores.psi(np.full(10, 0.1), moved) == pytest.approx(psi, abs=6e-7)


def test_pooled_windows_score_at_or_below_the_worst_of_them() -> None:
    baseline, first, second = [500, 300, 200], [400, 350, 250], [450, 330, 220]
    pooled = [a + b for a, b in zip(first, second, strict=True)]

    found = [measured(baseline, window, 0)["psi"] for window in (first, second, pooled)]

    assert found == pytest.approx([0.041179, 0.010034, 0.022840], abs=6e-7)
    assert found[2] <= max(found[:2])


def test_half_the_jensen_shannon_distance_in_bits_follows_from_nats() -> None:
    p, q = scores.shares(counts([50, 30, 20]), counts([40, 35, 25]), 0)

    assert scores.js_distance(p, q) / math.sqrt(math.log(2)) == pytest.approx(0.086094, abs=6e-7)


SAMPLES = st.lists(st.integers(-5, 5), min_size=2, max_size=30)


@given(SAMPLES, SAMPLES)
def test_distances_of_step_functions_are_what_scipy_says(one: list[int], other: list[int]) -> None:
    def steps(sample: list[int]) -> scores.Staircase:
        values, occurrences = np.unique(sample, return_counts=True)
        return scores.Staircase(values.astype(float), np.cumsum(occurrences) / len(sample), steps=True)

    def bins(sample: list[int]) -> scores.Counts:
        return np.bincount(np.asarray(sample) + 5, minlength=11)

    assert scores.wasserstein(steps(one), steps(other)) == pytest.approx(
        stats.wasserstein_distance(one, other)
    )
    assert scores.ks_distance(bins(one), bins(other)) == pytest.approx(
        stats.ks_2samp(one, other, method="asymp").statistic
    )


@pytest.mark.parametrize(
    ("one", "other", "statistic", "p_value"),
    [
        ([50, 30, 20], [40, 35, 25], 2.051282, 0.358567),
        ([50, 50, 0], [50, 40, 10], 11.111111, 0.003866),
        ([2500, 2500, 0], [2500, 2499, 1], 1.000200, 0.606470),
    ],
)
def test_chi_square_takes_both_sides_for_samples(one, other, statistic, p_value) -> None:
    found = scores.chi_square(np.asarray(one), np.asarray(other))

    assert (found.statistic, found.p_value) == pytest.approx((statistic, p_value), abs=1e-6)
    assert found.degrees == 2


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=12))
def test_chi_square_is_that_of_scipy_over_the_bins_that_hold_anything(pairs: list[tuple[int, int]]) -> None:
    table = np.asarray([pair for pair in pairs if any(pair)]).T
    assume(table.size and table.shape[1] > 1 and table.sum(axis=1).all())

    found = scores.chi_square(*np.asarray(pairs).T)

    expected = stats.chi2_contingency(table, correction=False)
    assert found.degrees == expected.dof
    assert found.statistic == pytest.approx(expected.statistic, abs=1e-9)
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-9)


def test_one_bin_and_an_empty_side_have_answers() -> None:
    assert scores.chi_square(np.array([5]), np.array([7])) == scores.ChiSquare(0.0, 0, 1.0)
    with pytest.raises(UndecidedError):
        scores.chi_square(np.array([5, 1]), np.array([0, 0]))


def test_the_probability_of_a_gap_is_that_of_scipys_limit() -> None:
    one, other = np.arange(200), np.arange(8, 218)

    found = stats.ks_2samp(one, other, method="asymp")

    assert scores.ks_tail(found.statistic, 200, 210) == pytest.approx(found.pvalue, rel=0.05)


def test_distance_of_straight_lines_is_the_area_between_them_even_where_they_cross() -> None:
    narrow = scores.Staircase(np.array([1.0, 2.0]), np.array([0.0, 1.0]), steps=False)
    wide = scores.Staircase(np.array([0.0, 3.0]), np.array([0.0, 1.0]), steps=False)

    # Uniform on [1, 2] against uniform on [0, 3]: the mean gap of quantiles |(1 + u) - 3u| over u.
    assert scores.wasserstein(narrow, wide) == pytest.approx(0.5)
    assert scores.wasserstein(wide, narrow) == pytest.approx(0.5)
