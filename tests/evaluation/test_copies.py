import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.evaluation.copies import equal_copies
from mlx_platform.evaluation.scored import Classified, Predicted, Ranked


def test_copies_of_two_models_disagree_as_they_do_and_neither_is_better(classified):
    ours, theirs = classified(rows=800, right=0.9), classified(rows=800, right=0.6)

    pairs = list(equal_copies(ours, theirs, count=60, seed=1))

    gains = [(one.answer == one.truth).mean() - (two.answer == two.truth).mean() for _rows, one, two in pairs]
    flips = [((one.answer == one.truth) != (two.answer == two.truth)).mean() for _rows, one, two in pairs]
    expected = ((ours.answer == ours.truth) != (theirs.answer == theirs.truth)).mean()
    assert abs(np.mean(gains)) < 3 * np.std(gains) / np.sqrt(60)
    assert np.mean(flips) == pytest.approx(expected, abs=0.01)


def test_a_model_alone_is_copied_within_its_classes(classified):
    scored = classified(rows=900, right=0.8)

    _rows, one, two = next(equal_copies(scored, None, count=1, seed=0))

    for code in range(scored.classes):
        of_class = one.truth == code
        together = np.sort(np.concatenate([one.answer[of_class], two.answer[of_class]]))
        assert len(np.unique(together)) > 1
    assert not np.array_equal(one.answer, two.answer)
    assert np.array_equal(one.truth, two.truth)
    assert two.probabilities is not None
    assert np.array_equal(two.probabilities.argmax(axis=1), two.answer)


def test_a_regression_alone_is_copied_with_its_errors(predicted):
    scored = predicted(rows=500)

    _rows, one, two = next(equal_copies(scored, None, count=1, seed=0))

    errors = np.concatenate([one.answer - one.truth, two.answer - two.truth])
    assert np.std(errors) == pytest.approx(np.std(scored.answer - scored.truth), rel=0.15)
    assert not np.array_equal(one.answer, two.answer)


def test_a_group_that_is_drawn_twice_is_two_groups():
    groups = np.repeat(np.arange(50), 4)
    truth = np.arange(200) % 2
    scored = Classified(truth, truth, None, 2, groups=groups)

    rows, one, _two = next(equal_copies(scored, scored, count=1, seed=3))

    assert one.units == 50
    assert one.rows == 200
    for unit in range(50):
        assert len(np.unique(groups[rows[one.groups == unit]])) == 1


def test_queries_stay_whole():
    queries = np.repeat(np.arange(40), 5)
    generator = np.random.default_rng(0)
    scored = Ranked(generator.integers(0, 2, 200).astype(float), generator.normal(size=200), queries)

    rows, one, two = next(equal_copies(scored, scored, count=1, seed=3))

    assert one.units == two.units == 40
    assert all(len(np.unique(queries[rows[one.queries == code]])) == 1 for code in np.unique(one.queries))


def test_a_ranking_needs_another_version():
    scored = Ranked(np.ones(4), np.ones(4), np.arange(4))

    with pytest.raises(UsageError, match="another version"):
        next(equal_copies(scored, None, count=1, seed=0))


def test_copies_are_the_same_for_a_seed():
    scored = Predicted(np.arange(30.0), np.arange(30.0) + np.sin(np.arange(30)))
    answers = [
        [one.answer for _rows, one, _two in equal_copies(scored, None, count=2, seed=s)] for s in (1, 1, 2)
    ]

    assert np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])
