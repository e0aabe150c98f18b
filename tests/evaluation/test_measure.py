import math
from dataclasses import replace

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


def test_weights_widen_the_interval_of_a_rate_to_what_they_are_worth(classified):
    scored = classified(rows=300)
    weights = np.where(np.arange(300) < 100, 10.0, 1.0)

    accuracy = measure_scored(replace(scored, weights=weights), metrics=["accuracy"])["accuracy"]

    trials = weights.sum() ** 2 / (weights**2).sum()  # 142 rather than 300
    expected = wilson(accuracy.value * trials, trials)
    assert (accuracy.lower, accuracy.upper) == pytest.approx((expected.lower, expected.upper))
    same = measure_scored(replace(scored, weights=np.full(300, 2.0)), metrics=["accuracy"])["accuracy"]
    assert same == measure_scored(scored, metrics=["accuracy"])["accuracy"]


def test_the_rate_of_a_class_has_an_interval_of_its_own_rows(classified):
    scored = classified(rows=400, classes=2)

    recall = measure_scored(scored, metrics=["recall"])["recall"]

    hits, rows = ((scored.truth == 1) & (scored.answer == 1)).sum(), (scored.truth == 1).sum()
    expected = wilson(hits, rows)
    assert (recall.lower, recall.upper, recall.method) == (
        pytest.approx(expected.lower),
        pytest.approx(expected.upper),
        "Wilson",
    )


def _clustered(groups, each, generator):
    """Answers that are right more often in some groups than in others; 0.7 of them on average."""
    chance = generator.beta(2.1, 0.9, groups)
    right = generator.random(groups * each) < np.repeat(chance, each)
    truth = np.zeros(groups * each, int)
    codes = np.repeat(np.arange(groups), each)
    return Classified(truth, np.where(right, 0, 1), None, 2, groups=codes)


def test_rows_that_belong_together_tell_less_and_their_interval_says_so():
    generator = np.random.default_rng(3)
    held = {True: 0, False: 0}
    for _ in range(150):
        scored = _clustered(40, 15, generator)
        for grouped in held:
            one = scored if grouped else replace(scored, groups=None)
            accuracy = measure_scored(one, metrics=["accuracy"], confidence=0.9)["accuracy"]
            held[grouped] += accuracy.lower <= 0.7 <= accuracy.upper

    assert 0.82 <= held[True] / 150 <= 0.97
    assert held[False] / 150 < 0.7


def test_one_group_alone_has_no_interval():
    scored = Predicted(np.zeros(50), np.arange(50.0), groups=np.zeros(50, int))

    measured = measure_scored(scored, metrics=["mae"])["mae"]

    assert measured.value == 24.5
    assert math.isnan(measured.lower)
    assert measured.method == ""


def test_intervals_of_classes_drawn_at_random_hold_the_truth_as_often_as_they_say():
    # The positive class is a share of the rows, not a fixed number of them: so must it be in the resamples.
    f1 = 2 * 0.2 * 0.8 / (0.2 + 0.2 * 0.8 + 0.8 * 0.1)
    area = 0.8 * 0.9 + (0.8 * 0.1 + 0.2 * 0.9) / 2
    generator = np.random.default_rng(8)
    held = {"f1": 0, "roc_auc": 0}
    for seed in range(120):
        truth = (generator.random(250) < 0.2).astype(int)
        answer = (generator.random(250) < np.where(truth == 1, 0.8, 0.1)).astype(int)
        score = answer * 0.9 + 0.05
        scored = Classified(truth, answer, np.stack([1 - score, score], axis=1), 2)
        for name, one in measure_scored(scored, metrics=list(held), confidence=0.9, seed=seed).items():
            held[name] += one.lower <= {"f1": f1, "roc_auc": area}[name] <= one.upper

    assert all(0.82 <= count / 120 <= 0.97 for count in held.values()), held


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_no_rows_are_never_measured(task):
    nothing = np.zeros(0)
    codes = nothing.astype(int)
    scored = Predicted(nothing, nothing) if task == "regression" else Classified(codes, codes, None, 2)

    for one in measure_scored(scored).values():
        assert math.isnan(one.value)
        assert "no rows" in one.reason


def test_a_class_that_the_model_does_not_know_is_a_usage_error(classified):
    with pytest.raises(UsageError, match="unknown class") as refusal:
        measure_scored(replace(classified(), labels=("a", "b", "c", "d")), metrics=["recall[e]"])

    assert "Known: a, b, c, d" in refusal.value.hint
