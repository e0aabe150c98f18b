import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from mlx_platform.evaluation.measure import measure_scored, resample_metrics
from mlx_platform.evaluation.metrics import METRICS, metric_of
from mlx_platform.evaluation.scored import Predicted

ORACLES = {
    "mae": sklearn_metrics.mean_absolute_error,
    "rmse": sklearn_metrics.root_mean_squared_error,
    "r2": sklearn_metrics.r2_score,
    "mape": sklearn_metrics.mean_absolute_percentage_error,
    "pinball[0.9]": lambda t, a, **k: sklearn_metrics.mean_pinball_loss(t, a, alpha=0.9, **k),
    "pinball[.25]": lambda t, a, **k: sklearn_metrics.mean_pinball_loss(t, a, alpha=0.25, **k),
}


@pytest.mark.parametrize("name", ORACLES)
def test_weighted_metrics_of_numbers_equal_those_of_scikit_learn(name, predicted):
    scored = predicted()
    weights = np.random.default_rng(2).uniform(0, 4, scored.rows)

    for weight in (None, weights):
        expected = ORACLES[name](scored.truth, scored.answer, sample_weight=weight)
        weighed = Predicted(scored.truth, scored.answer, weight)
        assert metric_of(name, "regression").of(weighed) == pytest.approx(expected)


@pytest.mark.parametrize("rows", [1, 2, 7, 3001])
def test_the_median_error_is_the_median_of_the_errors(rows, predicted):
    scored = predicted(rows=rows)

    expected = np.median(np.abs(scored.answer - scored.truth))
    assert METRICS["median_ae"].of(scored) == pytest.approx(expected)


def test_the_resampled_median_spreads_as_far_as_single_rows_say():
    generator = np.random.default_rng(4)
    error = generator.exponential(size=4000)
    scored = Predicted(np.zeros(4000), error)

    resampled = resample_metrics(scored, [METRICS["median_ae"]], seed=0)["median_ae"]

    medians = [np.median(generator.choice(error, 4000)) for _ in range(400)]
    assert resampled.error == pytest.approx(np.std(medians), rel=0.12)
    assert resampled.draws.mean() == pytest.approx(np.mean(medians), abs=resampled.error / 3)


def test_a_share_of_a_zero_is_not_measured_and_symmetric_shares_are():
    scored = Predicted(np.array([0.0, 0.0, 2.0]), np.array([0.0, 1.0, 1.0]))

    measured = measure_scored(scored, metrics=["mape", "smape"])

    assert math.isnan(measured["mape"].value)
    assert "zero" in measured["mape"].reason
    assert measured["smape"].value == pytest.approx((0 + 2 + 2 / 3) / 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_answer_that_is_no_number_leaves_nothing_to_measure(bad, predicted):
    scored = predicted()
    scored.answer[5] = bad

    for measured in measure_scored(scored).values():
        assert math.isnan(measured.value)
        assert measured.reason


def test_rows_without_weight_have_no_largest_error():
    scored = Predicted(np.zeros(3), np.array([1.0, 9.0, 2.0]), weights=np.array([1.0, 0.0, 1.0]))

    assert METRICS["max_error"].of(scored) == 2


ROWS = st.lists(
    st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 3)), min_size=1, max_size=30
).filter(lambda rows: any(weight for *_, weight in rows))


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 1000))
def test_a_weight_is_a_number_of_rows_and_order_does_not_matter(rows, seed):
    truth, answer, weights = (np.array(column) for column in zip(*rows, strict=True))
    weighed = Predicted(truth / 2, answer / 2, weights.astype(float))
    repeated = Predicted(np.repeat(truth / 2, weights), np.repeat(answer / 2, weights))
    shuffled = weighed.take(np.random.default_rng(seed).permutation(len(truth)))

    for name in ("mae", "rmse", "bias", "median_ae", "max_error", "smape"):
        value = METRICS[name].of(weighed)
        assert METRICS[name].of(repeated) == pytest.approx(value)
        assert METRICS[name].of(shuffled) == pytest.approx(value)
