import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.metrics import METRICS, metric_of
from mlx_platform.evaluation.scored import Classified


def _scores(name, **options):
    function = getattr(sklearn_metrics, f"{name}_score")
    return lambda t, a, w: function(t, a, sample_weight=w, zero_division=0, **options)


ORACLES = {
    "accuracy": lambda t, a, w: sklearn_metrics.accuracy_score(t, a, sample_weight=w),
    "balanced_accuracy": lambda t, a, w: sklearn_metrics.balanced_accuracy_score(t, a, sample_weight=w),
    "mcc": lambda t, a, w: sklearn_metrics.matthews_corrcoef(t, a, sample_weight=w),
    "precision_macro": _scores("precision", average="macro"),
    "recall_macro": _scores("recall", average="macro"),
    "f1_macro": _scores("f1", average="macro"),
    "precision_weighted": _scores("precision", average="weighted"),
    "recall_weighted": _scores("recall", average="weighted"),
    "f1_weighted": _scores("f1", average="weighted"),
}
BINARY_ORACLES = {
    "precision": _scores("precision"),
    "recall": _scores("recall"),
    "f1": _scores("f1"),
    "specificity": _scores("recall", pos_label=0),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("classes", [2, 6])
def test_weighted_metrics_of_labels_equal_those_of_scikit_learn(name, classes, classified):
    scored = classified(rows=200, classes=classes)
    weights = np.random.default_rng(1).uniform(0.1, 5, 200)

    for weight in (None, weights):
        weighed = Classified(scored.truth, scored.answer, None, classes, weight)
        assert METRICS[name].of(weighed) == pytest.approx(ORACLES[name](scored.truth, scored.answer, weight))


@pytest.mark.parametrize("name", BINARY_ORACLES)
def test_metrics_of_the_positive_class_equal_those_of_scikit_learn(name, classified):
    scored = classified(rows=200, classes=2, right=0.6)
    weights = np.random.default_rng(1).uniform(0.1, 5, 200)

    for weight in (None, weights):
        weighed = Classified(scored.truth, scored.answer, None, 2, weight)
        assert METRICS[name].of(weighed) == pytest.approx(
            BINARY_ORACLES[name](scored.truth, scored.answer, weight)
        )


def test_the_other_class_can_be_the_positive_one(classified):
    scored = classified(rows=200, classes=2)
    other = Classified(scored.truth, scored.answer, None, 2, positive=0)

    assert METRICS["recall"].of(other) == pytest.approx(METRICS["specificity"].of(scored))
    assert METRICS["specificity"].of(other) == pytest.approx(METRICS["recall"].of(scored))


@pytest.mark.parametrize("score", ["precision", "recall", "f1"])
def test_a_single_class_is_measured_by_its_name(score, classified):
    scored = classified(rows=300, classes=3)
    labels = ("cat", "dog", "a[b]")

    oracle = _scores(score, average=None)(scored.truth, scored.answer, None)
    for code, label in enumerate(labels):
        metric = metric_of(f"{score}[{label}]", "classification", labels=labels)
        assert metric.of(scored) == pytest.approx(oracle[code])


def test_a_class_without_rows_or_without_answers_is_not_measured():
    scored = Classified(np.array([0, 1, 0]), np.array([0, 0, 0]), None, 3)
    labels = ("a", "b", "c")

    def of(name):
        metric = metric_of(name, "classification", labels=labels)
        return metric.of(scored), metric.undefined

    assert math.isnan(of("recall[c]")[0])
    assert "no row is of the class" in of("recall[c]")[1]
    assert math.isnan(of("precision[b]")[0])
    assert "never answered" in of("precision[b]")[1]
    assert math.isnan(of("f1[c]")[0])
    assert of("f1[b]")[0] == 0


def test_correlation_is_zero_for_one_answer_and_undefined_for_one_truth():
    mixed, alone = np.array([0, 1, 0, 1]), np.zeros(4, int)

    assert METRICS["mcc"].of(Classified(mixed, alone, None, 2)) == 0
    assert math.isnan(METRICS["mcc"].of(Classified(alone, mixed, None, 2)))


def test_metrics_of_two_classes_do_not_apply_to_three(classified):
    scored = classified(classes=3)

    assert "two classes" in METRICS["recall"].obstacle(scored)
    assert math.isnan(METRICS["recall"].of(scored))
    assert METRICS["roc_auc_ovr"].applies(scored)


def test_rows_without_weight_are_no_rows():
    nothing = Classified(np.array([0, 1]), np.array([0, 1]), None, 2, weights=np.zeros(2))

    assert math.isnan(METRICS["accuracy"].of(nothing))
    assert "zero" in METRICS["accuracy"].obstacle(nothing)


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40
).filter(lambda rows: any(weight for *_, weight in rows))


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 1000))
def test_order_does_not_matter_and_a_weight_is_a_number_of_rows(rows, seed):
    truth, answer, weights = (np.array(column) for column in zip(*rows, strict=True))
    weighed = Classified(truth, answer, None, 4, weights.astype(float))
    shuffled = weighed.take(np.random.default_rng(seed).permutation(len(truth)))
    repeated = Classified(np.repeat(truth, weights), np.repeat(answer, weights), None, 4)

    for name in ORACLES:
        value = METRICS[name].of(weighed)
        assert METRICS[name].of(shuffled) == pytest.approx(value, nan_ok=True)
        assert METRICS[name].of(repeated) == pytest.approx(value, nan_ok=True)


def test_an_average_over_classes_lies_in_its_interval_when_wrong_answers_are_never_true() -> None:
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 26, 900)
    wrong = generator.random(900) < 0.05
    answer = np.where(wrong, generator.integers(26, 200, 900), truth)
    measured = measure_scored(Classified(truth=truth, answer=answer, probabilities=None, classes=200))

    for name in ("precision_macro", "recall_macro", "f1_macro"):
        one = measured[name]
        assert one.lower <= one.value <= one.upper
        assert one.upper - one.lower < 0.05
