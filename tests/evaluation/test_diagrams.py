import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, precision_recall_curve
from sklearn.metrics import roc_curve as reference_roc

from mlx_platform.evaluation.diagrams import (
    most_confused,
    precision_curve,
    reliability,
    residuals,
    roc_curve,
)
from mlx_platform.evaluation.scored import Classified, Predicted, Tagged


def binary(rows: int = 4000, *, weighted: bool = False) -> Classified:
    draw = np.random.default_rng(0)
    score = draw.random(rows)
    truth = (draw.random(rows) < score).astype(np.int64)
    probabilities = np.stack([1 - score, score], axis=1)
    weights = draw.random(rows) if weighted else None
    return Classified(truth, (score > 0.5).astype(np.int64), probabilities, 2, weights=weights)


def test_the_bins_of_two_classes_are_those_of_scikit_learn() -> None:
    scored = binary()
    bins = reliability(scored)

    observed, predicted = calibration_curve(scored.truth, scored.probabilities[:, 1], n_bins=15)  # type: ignore[index]
    assert [one.observed for one in bins] == pytest.approx(observed)
    assert [one.predicted for one in bins] == pytest.approx(predicted)
    assert sum(one.rows for one in bins) == scored.rows
    assert all(one.low < one.observed < one.high for one in bins)


def test_an_empty_bin_has_no_share() -> None:
    scored = Classified(np.array([0, 1]), np.array([0, 1]), np.array([[0.99, 0.01], [0.02, 0.98]]), 2)
    first, second, *_others, last = reliability(scored)

    assert (first.rows, second.rows, last.rows) == (1, 0, 1)
    assert math.isnan(second.observed)


def test_weights_count_in_bins_and_widen_their_intervals() -> None:
    scored = binary(weighted=True)
    whole = reliability(binary())
    last = reliability(scored)[-1]

    rows = scored.probabilities[:, 1] > 14 / 15  # type: ignore[index]
    assert last.observed == pytest.approx(np.average(scored.truth[rows], weights=scored.weights[rows]))  # type: ignore[index]
    assert last.high - last.low > whole[-1].high - whole[-1].low


def test_more_classes_are_judged_by_the_confidence_in_the_answer_and_tags_one_by_one() -> None:
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2]])
    many = Classified(np.array([0, 0]), np.array([0, 1]), probabilities, 3)
    mask = np.array([[True, False, False], [False, False, True]])
    tags = Tagged(mask, mask, probabilities)

    (met,) = [one for one in reliability(many) if one.rows]
    assert (met.rows, met.observed) == (2, 0.5)
    assert sum(one.rows for one in reliability(tags)) == 6


def test_without_finite_probabilities_nothing_is_drawn() -> None:
    codes = np.array([0, 1])
    for probabilities in (None, np.array([[np.nan, 1.0], [0.5, 0.5]])):
        scored = Classified(codes, codes, probabilities, 2)
        assert reliability(scored) == ()
        assert roc_curve(scored) is None
        assert precision_curve(scored) is None


@pytest.mark.parametrize("weighted", [False, True])
def test_the_curves_enclose_the_areas_of_scikit_learn(weighted: bool) -> None:
    scored = binary(weighted=weighted)
    told = {"sample_weight": scored.weights}
    score = scored.probabilities[:, 1]  # type: ignore[index]
    false, true, _ = reference_roc(scored.truth, score, **told)
    precision, recall, _ = precision_recall_curve(scored.truth, score, **told)
    roc, pr = roc_curve(scored), precision_curve(scored)

    assert roc is not None
    assert pr is not None
    assert auc(roc.x, roc.y) == pytest.approx(auc(false, true), abs=2e-3)
    assert auc(pr.x, pr.y) == pytest.approx(auc(recall, precision), abs=5e-3)
    assert (roc.x[0], roc.y[0], roc.x[-1], roc.y[-1]) == (0, 0, 1, 1)
    assert len(roc.x) <= 1000


def test_a_truth_of_one_class_has_no_curve() -> None:
    codes = np.zeros(3, np.int64)
    assert roc_curve(Classified(codes, codes, np.full((3, 2), 0.5), 2)) is None


def test_errors_are_counted_whole_and_drawn_in_part() -> None:
    draw = np.random.default_rng(1)
    truth = draw.normal(size=5000)
    error = draw.standard_t(2, size=5000)
    found = residuals(Predicted(truth, truth + error))

    assert found is not None
    assert sum(found.counts) == 5000
    assert len(found.answer) == len(found.error) == 1000
    assert dict(found.quantiles)[0.5] == pytest.approx(np.median(error))
    assert found.edges[0] == pytest.approx(np.quantile(error, 0.005))


def test_errors_that_are_all_the_same_or_no_numbers_break_nothing() -> None:
    same = residuals(Predicted(np.ones(4), np.ones(4)))

    assert same is not None
    assert sum(same.counts) == 4
    assert residuals(Predicted(np.ones(2), np.full(2, np.nan))) is None


def test_the_most_confused_pair_comes_first() -> None:
    counts = np.array([[5, 3, 0], [0, 9, 1], [7, 0, 3]])
    found = most_confused(counts, 2)

    assert [(one.truth, one.answer, one.rows) for one in found] == [(2, 0, 7), (0, 1, 3)]
    assert found[0].share == 0.7
    assert most_confused(np.eye(3, dtype=np.int64), 5) == ()
