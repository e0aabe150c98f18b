import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.metrics import METRICS, metric_of, metrics_of
from mlx_platform.evaluation.scored import Tagged

LEFT_OUT = np.nan  # what scikit-learn is to make of a class that is nowhere
ORACLES = {
    "subset_accuracy": sklearn_metrics.accuracy_score,
    "hamming_loss": sklearn_metrics.hamming_loss,
    "jaccard": lambda t, a, **k: sklearn_metrics.jaccard_score(t, a, average="samples", zero_division=1, **k),
    "f1_micro": lambda t, a, **k: sklearn_metrics.f1_score(t, a, average="micro", **k),
    "precision_micro": lambda t, a, **k: sklearn_metrics.precision_score(t, a, average="micro", **k),
    "recall_micro": lambda t, a, **k: sklearn_metrics.recall_score(t, a, average="micro", **k),
    "f1_macro": lambda t, a, **k: sklearn_metrics.f1_score(
        t, a, average="macro", zero_division=LEFT_OUT, **k
    ),
}


def _tagged(rows=200, weights=None, seed=0):
    generator = np.random.default_rng(seed)
    truth = generator.random((rows, 5)) < [0.5, 0.2, 0.1, 0.3, 0.0]
    answer = np.where(generator.random((rows, 5)) < 0.15, ~truth, truth)
    answer[:, 4] = False
    return Tagged(truth, answer, None, weights, labels=tuple("abcde"))


@pytest.mark.parametrize("name", ORACLES)
def test_weighted_metrics_of_tags_equal_those_of_scikit_learn(name):
    weights = np.random.default_rng(1).uniform(0.1, 4, 200)

    for weight in (None, weights):
        scored = _tagged(weights=weight)
        expected = ORACLES[name](scored.truth, scored.answer, sample_weight=weight)
        metric = metric_of(name, "multilabel")
        assert metric.of(scored) == pytest.approx(expected)


def test_every_metric_of_tags_lies_within_its_interval():
    measured = measure_scored(_tagged())

    assert list(measured) == [metric.name for metric in metrics_of("multilabel")]
    for one in measured.values():
        assert one.lower < one.value < one.upper


@pytest.mark.parametrize("score", ["precision", "recall", "f1"])
def test_a_single_class_is_measured_by_its_name(score):
    scored = _tagged()
    oracle = getattr(sklearn_metrics, f"{score}_score")(
        scored.truth, scored.answer, average=None, zero_division=0
    )

    for code, label in enumerate("abcd"):
        metric = metric_of(f"{score}[{label}]", "multilabel", labels=scored.labels)
        assert metric.of(scored) == pytest.approx(oracle[code])
    nowhere = measure_scored(scored, metrics=[f"{score}[e]"])[f"{score}[e]"]
    assert math.isnan(nowhere.value)
    assert "class" in nowhere.reason


def test_rows_without_any_class_are_right_when_they_get_no_answer():
    nothing = np.zeros((4, 3), bool)

    measured = measure_scored(Tagged(nothing, nothing, None))

    assert measured["subset_accuracy"].value == 1
    assert measured["jaccard"].value == 1
    assert "any class" in measured["f1_micro"].reason
    assert "any class" in measured["f1_macro"].reason


def test_metrics_of_one_name_share_unit_and_direction():
    for task in ("classification", "multilabel", "regression", "ranking"):
        for metric in metrics_of(task):
            first = METRICS[metric.name]
            assert (first.unit, first.higher_is_better) == (metric.unit, metric.higher_is_better)
