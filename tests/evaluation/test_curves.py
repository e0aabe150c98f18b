import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from mlx_platform.evaluation.measure import measure_scored, resample_metrics
from mlx_platform.evaluation.metric import NO_PROBABILITIES, ONE_CLASS
from mlx_platform.evaluation.metrics import METRICS
from mlx_platform.evaluation.scored import Classified

ORACLES = {"roc_auc": roc_auc_score, "pr_auc": average_precision_score}


def _binary(score, truth, weights=None):
    return Classified(truth, (score >= 0.5).astype(int), np.stack([1 - score, score], axis=1), 2, weights)


def _drawn(rows, *, share=0.3, seed=0):
    generator = np.random.default_rng(seed)
    truth = (generator.random(rows) < share).astype(int)
    return 1 / (1 + np.exp(-generator.normal(truth * 1.5 - 1, 1))), truth


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("rows", [60, 5000])
@pytest.mark.parametrize("digits", [1, 12])
def test_areas_equal_those_of_scikit_learn_with_ties_and_weights(name, rows, digits):
    score, truth = _drawn(rows)
    score = np.round(score, digits)
    weights = np.random.default_rng(5).uniform(0, 3, rows)

    for weight in (None, weights):
        expected = ORACLES[name](truth, score, sample_weight=weight)
        assert METRICS[name].of(_binary(score, truth, weight)) == pytest.approx(expected)


def test_the_average_area_of_each_class_against_the_others_equals_that_of_scikit_learn(classified):
    scored = classified(rows=700, classes=5, right=0.4)
    weights = np.random.default_rng(5).uniform(0, 3, 700)

    for weight in (None, weights):
        expected = roc_auc_score(
            scored.truth, scored.probabilities, multi_class="ovr", average="macro", sample_weight=weight
        )
        weighed = Classified(scored.truth, scored.answer, scored.probabilities, 5, weight)
        assert METRICS["roc_auc_ovr"].of(weighed) == pytest.approx(expected)


def test_a_class_that_the_truth_lacks_is_left_out_of_the_average(classified):
    scored = classified(rows=300, classes=3, right=0.4)
    wider = np.concatenate([scored.probabilities, np.zeros((300, 1))], axis=1)

    assert METRICS["roc_auc_ovr"].of(Classified(scored.truth, scored.answer, wider, 4)) == pytest.approx(
        METRICS["roc_auc_ovr"].of(scored)
    )


@pytest.mark.parametrize("name", ["roc_auc", "pr_auc"])
@pytest.mark.parametrize("truth", [np.zeros(9, int), np.ones(9, int)])
def test_one_class_has_no_area_and_says_so(name, truth):
    measured = measure_scored(_binary(np.linspace(0, 1, 9), truth), metrics=[name])[name]

    assert math.isnan(measured.value)
    assert "two classes" in measured.reason


@pytest.mark.parametrize("name", ["roc_auc", "pr_auc", "roc_auc_ovr", "log_loss", "brier", "ece"])
def test_a_probability_that_is_no_number_leaves_nothing_to_measure(name, classified):
    scored = classified(classes=3 if name == "roc_auc_ovr" else 2)
    scored.probabilities[7, 0] = np.nan

    measured = measure_scored(scored, metrics=[name])[name]

    assert math.isnan(measured.value)
    assert "finite probabilities" in measured.reason


def _standard_error(score, truth):
    """DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988."""
    positive, negative = score[truth == 1], score[truth == 0]
    order = (positive[:, None] > negative) + (positive[:, None] == negative) / 2
    return math.sqrt(
        order.mean(axis=1).var(ddof=1) / len(positive) + order.mean(axis=0).var(ddof=1) / len(negative)
    )


@pytest.mark.parametrize("rows", [200, 4000])
def test_resampled_areas_spread_as_far_as_theory_says(rows):
    score, truth = _drawn(rows)

    resampled = resample_metrics(_binary(score, truth), [METRICS["roc_auc"]], seed=0)["roc_auc"]

    assert resampled.value == METRICS["roc_auc"].of(_binary(score, truth))
    assert resampled.draws.mean() == pytest.approx(resampled.value, abs=resampled.error / 4)
    assert resampled.error == pytest.approx(_standard_error(score, truth), rel=0.12)


def test_cells_of_scores_change_no_resample_by_more_than_a_trifle(monkeypatch):
    score, truth = _drawn(400)
    scored = _binary(score, truth)
    metrics = [METRICS["roc_auc"], METRICS["pr_auc"]]

    rounded = resample_metrics(scored, metrics, seed=0)
    monkeypatch.setattr("mlx_platform.evaluation.curves._CELLS", 1000)
    exact = resample_metrics(scored, metrics, seed=0)

    # The same 400 blocks are drawn either way.
    for name in ORACLES:
        assert rounded[name].draws == pytest.approx(exact[name].draws, abs=exact[name].error / 10)


def test_a_class_of_two_rows_is_in_every_resample():
    score, truth = _drawn(400, share=0)
    truth[[3, 300]] = 1

    resampled = resample_metrics(_binary(score, truth), [METRICS["roc_auc"]], seed=0)["roc_auc"]

    assert np.isfinite(resampled.draws).all()


def test_many_classes_are_measured_without_an_interval(monkeypatch, classified):
    monkeypatch.setattr("mlx_platform.evaluation.curves._MOST_CLASSES", 3)

    measured = measure_scored(classified(classes=4), metrics=["roc_auc_ovr"])["roc_auc_ovr"]

    assert measured.value > 0.5
    assert math.isnan(measured.lower)


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 3)), min_size=2, max_size=30)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 1000))
def test_a_weight_is_a_number_of_rows_and_order_does_not_matter(rows, seed):
    score, truth, weights = (np.array(column) for column in zip(*rows, strict=True))
    weighed = _binary(score / 4, truth, weights.astype(float))
    repeated = _binary(np.repeat(score / 4, weights), np.repeat(truth, weights))
    shuffled = weighed.take(np.random.default_rng(seed).permutation(len(truth)))

    for name in ORACLES:
        value = METRICS[name].of(weighed)
        assert METRICS[name].of(repeated) == pytest.approx(value, nan_ok=True)
        assert METRICS[name].of(shuffled) == pytest.approx(value, nan_ok=True)


def test_one_class_is_all_that_is_said_to_be_missing_where_there_are_probabilities():
    scored = _binary(np.linspace(0.1, 0.9, 20), np.ones(20, int))

    assert measure_scored(scored, metrics=["roc_auc"])["roc_auc"].reason == ONE_CLASS
    without = replace(scored, probabilities=None)
    assert measure_scored(without, metrics=["roc_auc"])["roc_auc"].reason == NO_PROBABILITIES
