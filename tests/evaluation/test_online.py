import math

import numpy as np
import pytest

from mlx_platform.core.statistics import wilson
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.compare import Margin
from mlx_platform.evaluation.online import Estimate, difference, judge_gap

TWO_POINTS = Margin(0.02)


def rate(right: int, rows: int, confidence: float = 0.95) -> Estimate:
    interval = wilson(right, rows, confidence)
    return Estimate(right / rows, interval.lower, interval.upper, confidence)


@pytest.mark.parametrize(
    ("first", "second", "lower", "upper"),
    [
        # Newcombe (1998), table II, method 10: the paper's own examples.
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((10, 10), (0, 20), 0.6791, 1.0000),
    ],
)
def test_the_interval_of_a_difference_of_rates_is_that_of_newcombe(first, second, lower, upper):
    found = difference(rate(*first), rate(*second))

    assert found.lower == pytest.approx(lower, abs=5e-5)
    assert found.upper == pytest.approx(upper, abs=5e-5)


@pytest.mark.parametrize(
    ("online", "offline", "verdict"),
    [
        ((9000, 10_000), (9010, 10_000), Verdict.PASS),
        ((8000, 10_000), (9010, 10_000), Verdict.FAIL),
        (
            (9700, 10_000),
            (9010, 10_000),
            Verdict.FAIL,
        ),  # better than was ever measured is a difference as well
        ((90, 100), (9010, 10_000), Verdict.UNDECIDED),
        ((8800, 10_000), (9010, 10_000), Verdict.UNDECIDED),
    ],
)
def test_a_difference_passes_fails_or_stays_open(online, offline, verdict):
    assert judge_gap(rate(*online), rate(*offline), TWO_POINTS, online[1]).verdict is verdict


def test_what_is_open_says_how_many_labels_would_decide_it():
    open_gap = judge_gap(rate(450, 500), rate(9000, 10_000), TWO_POINTS, 500)

    needed = open_gap.labels_needed
    assert f"{needed:,} labels probably would" in open_gap.message
    assert (
        judge_gap(rate(round(0.9 * needed), needed), rate(9000, 10_000), TWO_POINTS, needed).verdict
        is Verdict.PASS
    )


def test_a_small_offline_evaluation_is_what_is_in_the_way():
    gap = judge_gap(rate(9000, 10_000), rate(90, 100), TWO_POINTS, 10_000)

    assert (gap.verdict, gap.labels_needed) == (Verdict.UNDECIDED, 0)
    assert "offline evaluation has too few rows" in gap.message


def test_a_missing_interval_is_never_a_pass():
    assert (
        judge_gap(rate(9, 10), Estimate(0.9, math.nan, math.nan), TWO_POINTS, 10).verdict is Verdict.UNDECIDED
    )


def test_a_relative_margin_is_a_share_of_the_offline_value():
    online, offline = Estimate(10.1, 10.05, 10.15), Estimate(10.0, 9.95, 10.05)

    assert judge_gap(online, offline, Margin(0.02, relative=True), 1000).margin == pytest.approx(0.2)
    assert judge_gap(online, offline, Margin(0.02, relative=True), 1000).verdict is Verdict.PASS


def test_an_interval_at_another_level_is_that_of_a_normal_estimate():
    wide = Estimate(0.5, 0.402, 0.598).at(0.99)

    assert wide.lower == pytest.approx(0.5 - 0.098 * 2.5758 / 1.96, abs=1e-4)


@pytest.mark.parametrize(
    "numbers",
    [
        {"accuracy": {"value": 0.9, "lower": 0.8, "upper": 0.95}},
        {"accuracy": 0.9, "accuracy.lower": 0.8, "accuracy.upper": 0.95},
    ],
)
def test_the_numbers_of_evidence_are_read_in_both_forms(numbers):
    assert Estimate.read(numbers, "accuracy", 0.95) == Estimate(0.9, 0.8, 0.95)


@pytest.mark.parametrize("held", [None, "0.9", True, {"value": None}, {}])
def test_what_is_no_number_in_evidence_is_none(held):
    assert Estimate.read({"accuracy": held}, "accuracy", 0.95) is None


def test_at_a_true_difference_of_the_margin_alarms_and_passes_are_both_rare():
    """2,000 nights with 1,500 labels each: either error is made in 2.5 % of them at most, and noise."""
    generator = np.random.default_rng(7)
    online = generator.binomial(1500, 0.92, 2000)
    offline = generator.binomial(5000, 0.90, 2000)
    verdicts = [
        judge_gap(rate(int(a), 1500), rate(int(b), 5000), TWO_POINTS, 1500).verdict
        for a, b in zip(online, offline, strict=True)
    ]

    assert verdicts.count(Verdict.FAIL) / 2000 < 0.035
    assert verdicts.count(Verdict.PASS) / 2000 < 0.035


def test_a_loss_of_six_points_is_found_with_a_few_hundred_labels():
    generator = np.random.default_rng(7)
    verdicts = [
        judge_gap(rate(int(a), 1000), rate(4500, 5000), TWO_POINTS, 1000).verdict
        for a in generator.binomial(1000, 0.84, 500)
    ]

    assert verdicts.count(Verdict.FAIL) / 500 > 0.85
