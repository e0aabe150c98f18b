import math

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.compare import Margin, better, compare, no_worse, rows_needed
from mlx_platform.evaluation.scored import Classified, Predicted


def _pair(rows, won, lost, *, right=0.8):
    """Two binary classifiers of which `won` rows are right only now and `lost` rows only before."""
    truth = np.arange(rows) % 2
    correct_before = np.zeros(rows, bool)
    correct_before[: int(right * rows)] = True
    correct_now = correct_before.copy()
    correct_now[:lost] = False
    correct_now[rows - won :] = True
    now, before = (
        Classified(truth, np.where(correct, truth, 1 - truth), None, 2)
        for correct in (correct_now, correct_before)
    )
    return now, before


def test_flips_are_counted_on_both_sides():
    comparison = compare(*_pair(700, won=28, lost=37))

    flips = comparison.flips
    assert (flips.won, flips.lost, flips.rows) == (28, 37, 700)
    assert flips.agreement == pytest.approx(635 / 700)
    assert comparison.differences["accuracy"].value == pytest.approx(-9 / 700)
    assert flips.p_value == pytest.approx(0.32, abs=0.005)


@pytest.mark.parametrize(
    ("rows", "won", "lost", "verdict"),
    [
        (700, 28, 37, Verdict.UNDECIDED),  # -1.3 points, between -3.6 and +1.0
        (700, 70, 275, Verdict.FAIL),
        (700, 0, 0, Verdict.PASS),
        (200, 0, 0, Verdict.UNDECIDED),  # nothing changed, on too few rows to be sure
        (5000, 60, 62, Verdict.PASS),
        (700, 50, 28, Verdict.PASS),
    ],
)
def test_a_loss_of_one_point_is_ruled_out_shown_or_left_open(rows, won, lost, verdict):
    outcome = no_worse(compare(*_pair(rows, won, lost)), "accuracy", Margin(0.01))

    assert outcome.verdict is verdict
    assert outcome.lower <= outcome.gain <= outcome.upper


def test_an_open_question_says_how_many_rows_would_decide():
    few, many = (no_worse(compare(*_pair(rows, 10, 10)), "accuracy", Margin(0.01)) for rows in (400, 3000))

    # 5 % of the rows changed: 618 * 5.
    assert few.rows_needed == pytest.approx(3090, rel=0.002)
    assert (many.verdict, many.rows_needed) == (Verdict.PASS, 0)


@pytest.mark.parametrize(("flips", "rows"), [(0.02, 1240), (0.05, 3090), (0.10, 6180)])
def test_rows_for_80_percent_power_follow_the_share_of_flips(flips, rows):
    assert rows_needed(300, math.sqrt(flips / 300), 0.01, 0.0) == pytest.approx(rows, rel=0.005)
    assert rows_needed(300, math.sqrt(flips / 300), 0.02, 0.0) == pytest.approx(rows / 4, rel=0.01)


def test_rows_needed_looks_at_the_observed_loss_once_there_are_enough_for_none():
    error = math.sqrt(0.02 / 2000)

    assert rows_needed(2000, error, 0.01, -0.005) == pytest.approx(4 * 1236, rel=0.005)
    assert rows_needed(2000, error, 0.01, -0.01) == 0
    assert rows_needed(100, 0.0, 0.01, 0.0, least=268) == 268


def test_superiority_needs_a_gain_that_is_not_chance():
    assert better(compare(*_pair(700, 40, 10)), "accuracy").verdict is Verdict.PASS
    assert better(compare(*_pair(700, 12, 10)), "accuracy").verdict is Verdict.UNDECIDED
    assert better(compare(*_pair(700, 10, 40)), "accuracy").verdict is Verdict.FAIL


def test_the_same_package_cannot_differ_whatever_the_rows():
    now, before = _pair(20, 0, 0)
    comparison = compare(now, before, identical=True)

    assert no_worse(comparison, "accuracy", Margin(0.01)).verdict is Verdict.PASS
    assert better(comparison, "accuracy").verdict is Verdict.FAIL
    assert all(math.isnan(one.lower) and math.isnan(one.upper) for one in comparison.differences.values())


def test_a_relative_margin_is_a_share_of_the_baseline():
    comparison = compare(*_pair(20_000, 100, 300, right=0.5))

    assert no_worse(comparison, "accuracy", Margin(0.05, relative=True)).margin == pytest.approx(0.025)
    assert no_worse(comparison, "accuracy", Margin(0.01, relative=True)).verdict is Verdict.FAIL
    assert no_worse(comparison, "accuracy", Margin(0.05, relative=True)).verdict is Verdict.PASS


def test_a_share_of_nothing_is_no_margin():
    now, before = _pair(400, 0, 0, right=0.0)

    outcome = no_worse(compare(now, before), "accuracy", Margin(0.05, relative=True))

    assert outcome.verdict is Verdict.ERROR
    assert "0.01abs" in outcome.message


def _numbers(rows, worse=0.0, seed=0):
    generator = np.random.default_rng(seed)
    truth = generator.normal(100, 10, rows)
    error = generator.normal(0, 1, rows)
    return Predicted(truth, truth + error * (1 + worse)), Predicted(truth, truth + error)


@pytest.mark.parametrize(
    ("worse", "verdict"),
    [(0.0, Verdict.PASS), (0.01, Verdict.PASS), (0.2, Verdict.FAIL), (-0.1, Verdict.PASS)],
)
def test_a_rising_error_is_judged_by_the_paired_bootstrap(worse, verdict):
    comparison = compare(*_numbers(500, worse))

    outcome = no_worse(comparison, "rmse", Margin(0.05, relative=True))

    assert outcome.verdict is verdict
    assert outcome.gain == pytest.approx(-comparison.differences["rmse"].value)


def test_the_floor_tolerates_a_small_loss_beside_a_tiny_baseline():
    comparison = compare(*_numbers(500, 0.04))

    assert no_worse(comparison, "rmse", Margin(0.01, relative=True)).verdict is Verdict.FAIL
    assert no_worse(comparison, "rmse", Margin(0.01, relative=True, floor=0.1)).verdict is Verdict.PASS


def test_too_few_rows_never_carry_a_bootstrap():
    for worse in (0.0, 0.5, -0.5):
        outcome = no_worse(compare(*_numbers(20, worse)), "mae", Margin(0.02, relative=True))

        assert outcome.verdict is Verdict.UNDECIDED
        assert outcome.rows_needed >= 30


def test_unchanged_answers_on_few_rows_do_not_show_an_unchanged_metric():
    few, many = (compare(*_pair(rows, 0, 0)) for rows in (100, 400))

    assert no_worse(few, "f1_macro", Margin(0.01)).verdict is Verdict.UNDECIDED
    assert no_worse(few, "f1_macro", Margin(0.01)).rows_needed == 268
    assert no_worse(many, "f1_macro", Margin(0.01)).verdict is Verdict.PASS


def test_what_one_side_cannot_measure_is_undecided(classified):
    scored = classified()
    blind = Classified(scored.truth, scored.answer, None, scored.classes)

    outcome = no_worse(compare(scored, blind), "log_loss", Margin(0.1, relative=True))

    assert outcome.verdict in (Verdict.UNDECIDED, Verdict.ERROR)
    assert "baseline" in outcome.message


def test_the_largest_error_has_no_paired_test():
    outcome = no_worse(compare(*_numbers(500)), "max_error", Margin(1.0))

    assert outcome.verdict is Verdict.UNDECIDED
    assert "no paired test" in outcome.message


def test_the_test_of_no_loss_keeps_its_level_for_a_resampled_metric():
    passed = 0
    for seed in range(150):
        generator = np.random.default_rng(seed)
        error = generator.exponential(size=200)
        # Mean absolute error 1 before and 1.1 now; the margin is exactly the loss.
        changed = error * 1.1 * generator.lognormal(-0.045, 0.3, 200)
        sides = (Predicted(np.zeros(200), answer) for answer in (changed, error))
        outcome = no_worse(compare(*sides, metrics=["mae"]), "mae", Margin(0.1))
        passed += outcome.verdict is Verdict.PASS

    assert 0.01 < passed / 150 < 0.11


def test_different_rows_cannot_be_compared(classified, predicted):
    with pytest.raises(UsageError, match="same rows"):
        compare(classified(seed=1), classified(seed=2))
    with pytest.raises(UsageError, match="one task"):
        compare(classified(), predicted())


def test_regression_has_no_flips(predicted):
    assert compare(predicted(), predicted()).flips is None


@pytest.mark.parametrize("weights", [None, np.linspace(0.9, 1.1, 300)])
def test_answers_that_never_change_rule_out_a_share_of_the_baseline_only_with_enough_rows(weights):
    truth = np.arange(300) % 3
    answer = np.where(np.arange(300) % 10 == 0, (truth + 1) % 3, truth)
    scored = Classified(truth, answer, None, 3, weights)
    some = scored.take(np.arange(60))

    for metric in ("accuracy", "f1_macro"):
        few = no_worse(compare(some, some, metrics=[metric]), metric, Margin(0.02, relative=True))
        many = no_worse(compare(scored, scored, metrics=[metric]), metric, Margin(0.02, relative=True))

        assert (few.verdict, many.verdict) == (Verdict.UNDECIDED, Verdict.PASS)
        assert 60 < few.rows_needed <= 300
