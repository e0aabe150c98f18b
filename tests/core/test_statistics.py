import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from statsmodels.stats.multitest import multipletests

from mlx_platform.core.statistics import (
    bca_confidence,
    bca_interval,
    benjamini_hochberg,
    bootstrap,
    chi2_quantile,
    chi2_tail,
    clopper_pearson_lower,
    holm,
    ks_two_sample,
    mcnemar_exact,
    percentile_confidence,
    percentile_interval,
    tango_interval,
    tango_z,
    wilson,
)


def test_wilson_gives_the_published_interval_of_990_in_1000():
    interval = wilson(990, 1000)

    assert (round(interval.lower, 5), round(interval.upper, 5)) == (0.98169, 0.99456)


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (20, 20), (7, 9), (481, 500)])
def test_wilson_agrees_with_scipy(successes, trials):
    interval = wilson(successes, trials, 0.9)

    expected = stats.binomtest(successes, trials).proportion_ci(0.9, method="wilson")
    assert interval.lower == pytest.approx(expected.low, abs=1e-12)
    assert interval.upper == pytest.approx(expected.high, abs=1e-12)


def test_wilson_of_no_trials_excludes_nothing():
    assert (wilson(0, 0).lower, wilson(0, 0).upper) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("mismatches", "requests"),
    [(0, 299), (1, 473), (2, 628), (3, 773), (5, 1049), (10, 1693), (20, 2902), (50, 6323)],
)
def test_these_are_the_fewest_requests_that_show_99_percent(mismatches, requests):
    assert clopper_pearson_lower(requests - mismatches, requests) >= 0.99
    assert clopper_pearson_lower(requests - 1 - mismatches, requests - 1) < 0.99


@pytest.mark.parametrize(("successes", "trials"), [(1, 10), (9, 10), (10, 10), (990, 1000)])
def test_clopper_pearson_agrees_with_scipy(successes, trials):
    expected = stats.binomtest(successes, trials, alternative="greater").proportion_ci(0.95)

    assert clopper_pearson_lower(successes, trials) == pytest.approx(expected.low, abs=1e-12)


def test_clopper_pearson_of_nothing_is_zero():
    assert clopper_pearson_lower(0, 0) == clopper_pearson_lower(0, 5) == 0.0


def _tango_by_maximum_likelihood(won, lost, rows, margin):
    """The same statistic with the nuisance rate found by a search rather than by its closed form."""
    least = max(0.0, margin)

    def negative_log_likelihood(lost_rate):
        won_rate = lost_rate - margin
        rest = 1 - won_rate - lost_rate
        terms = ((won, won_rate), (lost, lost_rate), (rows - won - lost, rest))
        return -sum(count * math.log(rate) for count, rate in terms if count)

    found = optimize.minimize_scalar(
        negative_log_likelihood,
        bounds=(least + 1e-9, (1 + margin) / 2 - 1e-9),
        method="bounded",
        options={"xatol": 1e-12},
    )
    variance = rows * (2 * found.x - margin - margin**2)
    return (won - lost + rows * margin) / math.sqrt(variance)


@pytest.mark.parametrize(
    ("won", "lost", "rows", "margin"),
    [(28, 37, 700, 0.01), (16, 12, 700, 0.02), (5, 1, 60, 0.05), (1, 9, 300, 0.01), (3, 30, 400, 0.03)],
)
def test_tango_statistic_equals_a_numeric_maximum_of_the_likelihood(won, lost, rows, margin):
    expected = _tango_by_maximum_likelihood(won, lost, rows, margin)

    assert tango_z(won, lost, rows, margin) == pytest.approx(expected, abs=1e-4)


def test_tango_with_no_margin_is_the_statistic_of_mcnemar():
    assert tango_z(9, 4, 100, 0.0) == pytest.approx((9 - 4) / math.sqrt(13))


def test_tango_without_flips_needs_268_rows_to_rule_out_a_point():
    assert tango_z(0, 0, 267, 0.01) < 1.645 < tango_z(0, 0, 269, 0.01)


def test_tango_of_no_rows_decides_nothing():
    assert math.isnan(tango_z(0, 0, 0, 0.01))
    assert (tango_interval(0, 0, 0).lower, tango_interval(0, 0, 0).upper) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("won", "lost", "rows", "confidence", "published"),
    [
        # Fagerland, Lydersen and Laake, Statistics in Medicine 33, 2014: airway hyper-responsiveness before
        # and after stem cell transplantation, and complete response before and after consolidation therapy.
        (1, 7, 21, 0.95, (-0.517, -0.026)),
        (6, 16, 161, 0.95, (-0.124, -0.0054)),
        # The R package PropCIs.
        (28, 25, 618, 0.9, (-0.0148, 0.0247)),
    ],
)
def test_tango_gives_published_intervals(won, lost, rows, confidence, published):
    interval = tango_interval(won, lost, rows, confidence)

    assert (interval.lower, interval.upper) == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize(("rows", "changed"), [(300, 0.05), (1000, 0.05), (3000, 0.1)])
def test_tango_passes_a_loss_at_the_margin_about_as_often_as_its_level_says(rows, changed):
    generator = np.random.default_rng(2)
    lost_rate, won_rate = (changed + 0.01) / 2, (changed - 0.01) / 2
    draws = generator.multinomial(rows, [won_rate, lost_rate, 1 - changed], 3000)

    passed = np.mean([tango_z(won, lost, rows, 0.01) > 1.645 for won, lost, _rest in draws.tolist()])

    assert 0.035 < passed < 0.065


def test_tango_fails_equal_models_hardly_ever():
    draws = np.random.default_rng(2).multinomial(1000, [0.025, 0.025, 0.95], 3000)

    failed = np.mean([tango_z(won, lost, 1000, 0.01) < -1.645 for won, lost, _rest in draws.tolist()])

    assert failed < 0.005


@settings(max_examples=60)
@given(won=st.integers(0, 40), lost=st.integers(0, 40), rest=st.integers(1, 500))
def test_tango_interval_holds_the_gain_and_inverts_the_test(won, lost, rest):
    rows = won + lost + rest

    interval = tango_interval(won, lost, rows, 0.9)

    assert -1 <= interval.lower <= (won - lost) / rows <= interval.upper <= 1
    if interval.lower < 0:
        assert tango_z(won, lost, rows, -interval.lower) == pytest.approx(1.6448536, abs=1e-3)


def test_tango_keeps_its_level_at_the_margin():
    rows, loss, flips = 1000, 0.01, 0.05
    shares = [(flips - loss) / 2, (flips + loss) / 2, 1 - flips]
    cells = np.random.default_rng(5).multinomial(rows, shares, 3000)

    passed = np.mean([tango_z(int(won), int(lost), rows, loss) > 1.645 for won, lost, _rest in cells])

    assert 0.035 < passed < 0.065


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (3, 9), (9, 3), (12, 16), (400, 380), (6, 0)])
def test_mcnemar_is_the_exact_binomial_test(won, lost):
    expected = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0

    assert mcnemar_exact(won, lost) == pytest.approx(expected, rel=1e-9)


def test_chi_square_agrees_with_scipy():
    assert chi2_quantile(0.95, 9) == pytest.approx(stats.chi2.ppf(0.95, 9))
    assert chi2_tail(16.9, 9) == pytest.approx(stats.chi2.sf(16.9, 9))


def test_benjamini_hochberg_rejects_what_scipy_adjusts_below_the_rate():
    p_values = [0.001, 0.8, 0.012, 0.04, 0.03, 0.2]

    expected = (stats.false_discovery_control(p_values) <= 0.05).tolist()
    assert benjamini_hochberg(p_values, 0.05) == expected
    assert benjamini_hochberg([], 0.05) == []


def test_bootstrap_of_a_skewed_mean_is_the_interval_that_scipy_gives():
    values = np.random.default_rng(3).lognormal(size=80)

    interval = bootstrap(lambda rows: float(values[rows].mean()), len(values), resamples=4000, seed=1)

    expected = stats.bootstrap((values,), np.mean, n_resamples=4000, rng=np.random.default_rng(2))
    width = expected.confidence_interval.high - expected.confidence_interval.low
    assert interval.lower == pytest.approx(expected.confidence_interval.low, abs=0.05 * width)
    assert interval.upper == pytest.approx(expected.confidence_interval.high, abs=0.05 * width)


def test_bootstrap_gives_the_same_interval_for_the_same_seed():
    values = np.arange(30.0)

    first, second = (bootstrap(lambda rows: float(values[rows].mean()), 30, seed=7) for _ in range(2))

    assert first == second


def test_bootstrap_has_no_interval_for_one_row_or_an_undefined_statistic():
    assert math.isnan(bootstrap(lambda _rows: 1.0, 1).lower)
    assert math.isnan(bootstrap(lambda _rows: math.nan, 10, resamples=50).upper)


def test_bootstrap_survives_a_few_undefined_resamples_but_not_many():
    draws = np.append(np.linspace(0, 1, 99), np.nan)
    left_out = np.linspace(0.4, 0.6, 10)

    assert bca_interval(0.5, draws, left_out).lower < 0.1
    assert math.isnan(bca_interval(0.5, np.append(draws, np.full(10, np.nan)), left_out).lower)


def test_holm_steps_down_and_never_falls():
    adjusted = holm([0.01, 0.04, math.nan, 0.03, 0.005])

    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 raised to what came before.
    assert adjusted[:2] == pytest.approx([0.03, 0.06])
    assert math.isnan(adjusted[2])
    assert adjusted[3:] == pytest.approx([0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_that_of_statsmodels(seed):
    p_values = np.random.default_rng(seed).random(17) ** 2

    assert holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_confidence_below_a_number_is_what_the_ends_of_the_interval_invert_to():
    generator = np.random.default_rng(0)
    values = generator.exponential(1, 80)
    draws = generator.choice(values, (4000, 80)).mean(axis=1)
    left_out = (values.sum() - values) / 79

    for confidence in (0.8, 0.9, 0.95):
        corrected = bca_interval(values.mean(), draws, left_out, confidence)
        plain = percentile_interval(draws, 80, confidence)
        tails = [(1 - confidence) / 2, (1 + confidence) / 2]
        for tail, end, other in zip(
            tails, (corrected.lower, corrected.upper), (plain.lower, plain.upper), strict=True
        ):
            assert bca_confidence(values.mean(), draws, left_out, end) == pytest.approx(tail, abs=2e-3)
            assert percentile_confidence(values.mean(), draws, 80, other) == pytest.approx(tail, abs=2e-3)


def test_the_percentile_interval_is_as_much_wider_as_students_t():
    draws = np.random.default_rng(1).normal(0, 1, 200_000)

    few, many = (percentile_interval(draws, units, 0.9) for units in (5, 10**6))

    assert (many.lower, many.upper) == pytest.approx((-1.645, 1.645), abs=0.02)
    # t(4) = 2.132 at 95 %, times sqrt(5 / 4).
    assert (few.lower, few.upper) == pytest.approx((-2.383, 2.383), abs=0.04)


def test_beyond_all_resamples_the_tail_is_normal_and_no_resample_is_no_confidence():
    draws = np.random.default_rng(2).normal(0, 1, 1000)

    for confidence in (
        bca_confidence(0.0, draws, draws[:50], 8.0),
        percentile_confidence(0.0, draws, 1000, 8.0),
    ):
        assert 1 - 1e-9 < confidence <= 1
    same = np.full(100, 3.0)
    assert [bca_confidence(3.0, same, same, limit) for limit in (2.0, 3.0, 4.0)] == [0.0, 0.0, 1.0]
    undefined = np.where(np.arange(100) < 90, 3.0, math.nan)
    assert math.isnan(bca_confidence(3.0, undefined, same, 2.0))
    assert math.isnan(percentile_confidence(3.0, undefined, 100, 2.0))


def test_the_distance_of_two_samples_is_that_of_scipy() -> None:
    generator = np.random.default_rng(3)
    for shift in (0.0, 0.2, 2.0):
        first, second = generator.normal(size=400), generator.normal(shift, size=300).round(2)
        expected = stats.ks_2samp(first, second, method="asymp")
        found = ks_two_sample(first, second)
        assert found[0] == pytest.approx(expected.statistic)
        assert found[1] == pytest.approx(expected.pvalue, rel=0.15, abs=1e-12)


def test_without_numbers_there_is_no_distance() -> None:
    assert all(map(math.isnan, ks_two_sample(np.empty(0), np.ones(3))))
