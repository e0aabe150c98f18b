import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.metrics import METRICS, metric_of
from mlx_platform.evaluation.scored import Ranked


def _ranked(queries=40, each=12, digits=12, seed=0):
    """Queries of equal length whose rows are mixed, as in a file that is in no order."""
    generator = np.random.default_rng(seed)
    relevance = generator.integers(0, 4, (queries, each)).astype(float)
    relevance[:, 0] = 1
    score = np.round(relevance + generator.normal(0, 2, (queries, each)), digits)
    order = generator.permutation(queries * each)
    codes = np.repeat(np.arange(queries) * 7, each)
    return Ranked(relevance.reshape(-1)[order], score.reshape(-1)[order], codes[order]), relevance, score


@pytest.mark.parametrize("cut", [1, 5, 10, 40])
@pytest.mark.parametrize("digits", [0, 12])
def test_discounted_gain_equals_that_of_scikit_learn_with_ties(cut, digits):
    scored, relevance, score = _ranked(digits=digits)

    expected = ndcg_score(relevance, score, k=cut)
    assert metric_of(f"ndcg@{cut}", "ranking").of(scored) == pytest.approx(expected)


def _by_permutations(relevance, score, value):
    """The average of a metric over all orders that the scores allow."""
    orders = [
        order
        for order in itertools.permutations(range(len(score)))
        if all(score[a] >= score[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean([value(np.array(relevance)[list(order)]) for order in orders])


@pytest.mark.parametrize(
    ("relevance", "score"),
    [
        ([0, 1, 0, 2], [4, 3, 2, 1]),
        ([0, 1, 0, 2, 0, 1], [3, 3, 2, 3, 2, 1]),
        ([1, 0, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1]),
        ([0, 0, 1, 0, 1, 1], [2, 2, 1, 1, 1, 1]),
    ],
)
def test_rows_with_equal_scores_count_as_the_average_over_their_orders(relevance, score):
    scored = Ranked(np.array(relevance, float), np.array(score, float), np.zeros(len(score), int))

    first = _by_permutations(relevance, score, lambda found: 1 / (np.flatnonzero(found)[0] + 1))
    share = _by_permutations(relevance, score, lambda found: (found[:3] > 0).sum() / (found > 0).sum())
    assert METRICS["mrr"].of(scored) == pytest.approx(first)
    assert metric_of("recall@3", "ranking").of(scored) == pytest.approx(share)


def test_a_query_without_a_relevant_row_is_left_out_and_only_such_ones_are_not_measured():
    truth, answer = np.array([1.0, 0, 0, 0]), np.array([2.0, 1, 2, 1])

    mixed = measure_scored(Ranked(truth, answer, np.array([0, 0, 1, 1])))
    nothing = measure_scored(Ranked(truth * 0, answer, np.array([0, 0, 1, 1])))

    assert mixed["mrr"].value == 1
    assert all(math.isnan(one.value) and "relevant" in one.reason for one in nothing.values())


def test_a_score_that_is_no_number_leaves_nothing_to_measure():
    scored = Ranked(np.array([1.0, 0]), np.array([np.nan, 1]), np.array([0, 0]))

    assert all(math.isnan(one.value) for one in measure_scored(scored).values())


def test_queries_are_resampled_rather_than_rows():
    scored, *_ = _ranked(queries=60)
    twice = scored.take(np.tile(np.arange(scored.rows), 3))  # three copies of a row tell nothing new

    once, thrice = (measure_scored(one, metrics=["mrr"])["mrr"] for one in (scored, twice))

    assert "60 groups" in once.method
    assert once.lower < once.value < once.upper
    assert thrice.upper - thrice.lower > 0.7 * (once.upper - once.lower)


def test_a_query_weighs_as_much_as_its_rows():
    scored, *_ = _ranked(queries=2)
    heavy = np.where(scored.queries == 0, 3.0, 1.0)

    first, second = (METRICS["mrr"].of(scored.take(scored.queries == code)) for code in (0, 7))
    weighed = Ranked(scored.truth, scored.answer, scored.queries, weights=heavy)
    assert METRICS["mrr"].of(weighed) == pytest.approx((3 * first + second) / 4)
