import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from mlx_platform.core.errors import UsageError
from mlx_platform.evaluation.metrics import METRICS, confusion, metric_of, metrics_of
from mlx_platform.evaluation.scored import Classified, Predicted

SKLEARN = {
    "accuracy": sklearn_metrics.accuracy_score,
    "balanced_accuracy": sklearn_metrics.balanced_accuracy_score,
    "precision_macro": lambda t, a: sklearn_metrics.precision_score(t, a, average="macro", zero_division=0),
    "recall_macro": lambda t, a: sklearn_metrics.recall_score(t, a, average="macro", zero_division=0),
    "f1_macro": lambda t, a: sklearn_metrics.f1_score(t, a, average="macro", zero_division=0),
    "mae": sklearn_metrics.mean_absolute_error,
    "rmse": sklearn_metrics.root_mean_squared_error,
    "r2": sklearn_metrics.r2_score,
    "max_error": sklearn_metrics.max_error,
}


@pytest.mark.parametrize(
    "name", ["accuracy", "balanced_accuracy", "precision_macro", "recall_macro", "f1_macro"]
)
@pytest.mark.parametrize("classes", [2, 5, 12])
def test_metrics_of_labels_equal_those_of_scikit_learn(name, classes, classified):
    scored = classified(rows=90, classes=classes)

    assert METRICS[name].of(scored) == pytest.approx(SKLEARN[name](scored.truth, scored.answer), abs=1e-12)


def test_a_class_that_is_never_true_or_never_answered_counts_as_scikit_learn_counts_it():
    scored = Classified(np.array([0, 0, 1, 1, 3]), np.array([0, 2, 1, 0, 0]), None, 5)

    for name in ("precision_macro", "recall_macro", "f1_macro"):
        assert METRICS[name].of(scored) == pytest.approx(SKLEARN[name](scored.truth, scored.answer))


@pytest.mark.parametrize("classes", [2, 3])
def test_log_loss_and_brier_equal_those_of_scikit_learn(classes, classified):
    scored = classified(classes=classes)
    labels = list(range(classes))

    log_loss = sklearn_metrics.log_loss(scored.truth, scored.probabilities, labels=labels)
    brier = sklearn_metrics.brier_score_loss(
        scored.truth, scored.probabilities if classes > 2 else scored.probabilities[:, 1], labels=labels
    )
    assert METRICS["log_loss"].of(scored) == pytest.approx(log_loss)
    assert METRICS["brier"].of(scored) == pytest.approx(brier)


def test_log_loss_of_an_impossible_truth_is_large_and_finite():
    scored = Classified(np.array([1]), np.array([0]), np.array([[1.0, 0.0]]), 2)

    assert METRICS["log_loss"].of(scored) == pytest.approx(36.04, abs=0.01)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy():
    probabilities = np.tile([0.9, 0.1], (10, 1))
    truth = np.array([0] * 6 + [1] * 4)

    assert METRICS["ece"].of(Classified(truth, np.zeros(10, int), probabilities, 2)) == pytest.approx(0.3)


def test_calibration_error_keeps_bins_apart():
    probabilities = np.array([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    truth = np.array([0] * 7 + [1] * 3 + [0] * 8 + [1] * 2)

    # Both gaps are 0.2, in opposite directions; one bin for all would find none.
    assert METRICS["ece"].of(Classified(truth, np.zeros(20, int), probabilities, 2)) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["mae", "rmse", "r2", "max_error"])
def test_metrics_of_numbers_equal_those_of_scikit_learn(name, predicted):
    scored = predicted()

    assert METRICS[name].of(scored) == pytest.approx(SKLEARN[name](scored.truth, scored.answer))


def test_bias_is_signed_and_has_no_better_direction():
    scored = Predicted(np.array([1.0, 2.0]), np.array([1.5, 2.1]))

    assert METRICS["bias"].of(scored) == pytest.approx(0.3)
    assert METRICS["bias"].higher_is_better is None


def test_r2_is_exact_far_from_zero():
    truth = 1e9 + np.array([0.0, 1.0, 2.0, 3.0])

    assert METRICS["r2"].of(Predicted(truth, truth + 0.5)) == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["balanced_accuracy", "precision_macro", "recall_macro", "f1_macro"])
def test_averages_over_classes_are_undefined_on_one_class(name):
    scored = Classified(np.zeros(50, int), np.zeros(50, int), None, 3)

    assert math.isnan(METRICS[name].of(scored))


def test_r2_of_a_constant_truth_is_undefined():
    assert math.isnan(METRICS["r2"].of(Predicted(np.full(20, 0.1), np.linspace(0, 1, 20))))


@pytest.mark.parametrize("name", ["log_loss", "brier", "ece"])
def test_metrics_of_probabilities_are_undefined_without_them(name):
    assert math.isnan(METRICS[name].of(Classified(np.array([0, 1]), np.array([0, 1]), None, 2)))


def test_a_nan_answer_makes_a_metric_undefined_rather_than_good():
    numbers = Predicted(np.array([1.0, 2.0]), np.array([1.0, np.nan]))
    probabilities = np.array([[0.5, 0.5], [np.nan, np.nan]])
    labels = Classified(np.array([0, 1]), np.array([0, 0]), probabilities, 2)

    assert all(math.isnan(METRICS[name].of(numbers)) for name in ("mae", "rmse", "r2", "bias", "max_error"))
    assert all(math.isnan(METRICS[name].of(labels)) for name in ("log_loss", "brier"))


def test_every_task_has_a_primary_metric_and_raw_tensors_have_none():
    assert metrics_of("classification")[0].name == "accuracy"
    assert metrics_of("regression")[0].name == "rmse"
    assert metrics_of("tensors") == ()


def test_an_unknown_metric_is_answered_with_the_closest_one():
    with pytest.raises(UsageError) as refusal:
        metric_of("acuracy", "classification")

    assert "'accuracy'" in refusal.value.hint


def test_a_metric_of_another_task_is_refused_with_the_ones_there_are():
    with pytest.raises(UsageError, match="belongs to regression") as refusal:
        metric_of("rmse", "classification")

    assert "f1_macro" in refusal.value.hint


def test_confusion_counts_answers_by_true_class():
    scored = Classified(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0]), None, 3)

    assert confusion(scored).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
