from dataclasses import replace

import numpy as np
import pytest

from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.scored import Predicted, Ranked, Tagged, effective


def test_taking_rows_takes_every_array_and_nothing_else(classified):
    scored = classified(rows=50)
    numbers = np.arange(50)
    scored = replace(
        scored, weights=numbers / 1, groups=numbers // 5, labels=("a", "b", "c", "d"), positive=2
    )

    some, masked = scored.take(np.array([3, 3, 7])), scored.take(scored.truth == 1)

    assert some.truth.tolist() == scored.truth[[3, 3, 7]].tolist()
    assert some.probabilities.shape == (3, 4)
    assert (some.weights.tolist(), some.groups.tolist()) == ([3, 3, 7], [0, 0, 1])
    assert (some.labels, some.positive, some.classes) == (("a", "b", "c", "d"), 2, 4)
    assert (masked.truth == 1).all()
    assert masked.rows == (scored.truth == 1).sum()


def test_all_rows_measure_the_same_as_what_they_were_taken_from(classified):
    scored = classified(rows=120, classes=2)

    assert measure_scored(scored.take(np.arange(120))) == measure_scored(scored)


def test_what_is_independent_is_counted_in_rows_groups_or_queries():
    numbers = np.arange(6.0)
    groups = np.array([0, 0, 1, 1, 2, 2])

    assert Predicted(numbers, numbers).units == 6
    assert Predicted(numbers, numbers, groups=groups).units == 3
    assert Ranked(numbers, numbers, queries=np.array([5, 5, 5, 9, 9, 9])).units == 2
    assert Ranked(numbers, numbers, queries=groups, groups=np.zeros(6, int)).units == 1


def test_weights_are_worth_fewer_rows_than_there_are_unless_they_are_equal():
    numbers = np.arange(4.0)

    assert Predicted(numbers, numbers).effective_rows == 4
    assert Predicted(numbers, numbers, weights=np.full(4, 7.0)).effective_rows == pytest.approx(4)
    assert Predicted(numbers, numbers, weights=np.array([1.0, 1, 0, 0])).effective_rows == pytest.approx(2)
    assert effective(np.zeros(3)) == 0


def test_the_number_of_classes_of_tags_is_their_width():
    mask = np.zeros((2, 7), bool)

    assert Tagged(mask, mask, None).classes == 7
