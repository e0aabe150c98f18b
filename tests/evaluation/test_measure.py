import math

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.statistics import wilson
from mlx_platform.core.tensors import text_column
from mlx_platform.evaluation.measure import measure, measure_scored
from mlx_platform.evaluation.metrics import METRICS, usual_metrics
from mlx_platform.evaluation.scored import Classified, Predicted


def test_every_metric_of_the_task_is_measured_inside_its_interval(classified, predicted):
    for scored in (classified(), classified(classes=2), predicted()):
        measured = measure_scored(scored)

        assert list(measured) == [metric.name for metric in usual_metrics(scored)]
        for name, measurement in measured.items():
            assert measurement.value == pytest.approx(METRICS[name].of(scored))
            if name != "max_error":
                assert measurement.lower < measurement.value < measurement.upper


def test_accuracy_has_the_score_interval_of_a_rate(classified):
    scored = classified(rows=200)

    accuracy = measure_scored(scored, metrics=["accuracy"], confidence=0.9)["accuracy"]

    expected = wilson(round(accuracy.value * 200), 200, 0.9)
    assert (accuracy.lower, accuracy.upper) == pytest.approx((expected.lower, expected.upper))
    assert (accuracy.rows, accuracy.unit, accuracy.higher_is_better) == (200, "share", True)


def test_the_largest_error_has_no_interval(predicted):
    measured = measure_scored(predicted(), metrics=["max_error"])["max_error"]

    assert measured.value > 0
    assert math.isnan(measured.lower)
    assert measured.reason == ""


def test_one_row_is_measured_without_an_interval_where_resampling_would_invent_one():
    scored = Predicted(np.array([1.0]), np.array([1.5]))

    measured = measure_scored(scored, metrics=["mae", "r2"])

    assert measured["mae"].value == 0.5
    assert math.isnan(measured["mae"].upper)
    assert "must vary" in measured["r2"].reason


def test_what_cannot_be_measured_says_why():
    scored = Classified(np.zeros(40, int), np.zeros(40, int), None, 2)

    measured = measure_scored(scored)

    assert measured["accuracy"].value == 1.0
    assert "two classes" in measured["f1_macro"].reason
    assert "probabilities" in measured["log_loss"].reason
    assert math.isnan(measured["log_loss"].value)


def test_a_wider_confidence_gives_a_wider_interval_and_a_seed_repeats_it(classified):
    scored = classified()

    narrow, wide, again = (
        measure_scored(scored, metrics=["f1_macro"], confidence=confidence)["f1_macro"]
        for confidence in (0.8, 0.99, 0.8)
    )

    assert wide.lower < narrow.lower < narrow.upper < wide.upper
    assert narrow == again


def test_columns_are_measured_as_they_come_from_a_file_and_a_model():
    truth = text_column(["b", "a", "a"])
    answers = {
        "label": text_column(["b", "a", "b"]),
        "probabilities": np.array([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]]),
    }

    measured = measure("classification", truth, answers, labels=("a", "b"), metrics=["accuracy", "brier"])

    assert measured["accuracy"].value == pytest.approx(2 / 3)
    assert measured["brier"].value == pytest.approx((0.01 + 0.04 + 0.36) / 3)


def test_a_metric_of_another_task_is_a_usage_error(classified):
    with pytest.raises(UsageError):
        measure_scored(classified(), metrics=["rmse"])
