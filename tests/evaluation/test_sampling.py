import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.evaluation.sampling import OTHERS, PrioritySample, StratifiedSample


def drawn(rows, count, seed=0):
    sample = PrioritySample(count, seed)
    for key, weight in rows:
        sample.offer(key, weight, lambda key=key: key)
    return sample.take(count)


def test_sums_over_the_drawn_rows_estimate_those_over_all_without_bias():
    generator = np.random.default_rng(1)
    weights = generator.pareto(2, 400) + 0.01
    values = weights * generator.uniform(0.5, 1.5, 400)
    rows = [(str(number), weight) for number, weight in enumerate(weights)]

    estimates = [
        sum(values[int(each.key)] / each.probability for each in drawn(rows, 40, seed)) for seed in range(400)
    ]

    # Twenty standard errors would be a bias of a fifth; four are noise.
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - values.sum()) < 4 * error
    assert np.std(estimates) < 0.2 * values.sum()


def test_equal_weights_draw_each_row_alike():
    rows = [(str(number), 1.0) for number in range(100)]

    counts = np.zeros(100)
    for seed in range(1000):
        for each in drawn(rows, 10, seed):
            counts[int(each.key)] += 1

    assert counts.min() > 60
    assert counts.max() < 140


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 40), st.integers(0, 5), st.randoms())
def test_neither_the_order_nor_repetitions_change_what_is_drawn(keys, count, seed, shuffler):
    rows = [(str(key), 1.0 + key) for key in keys]
    once = [(str(key), 1.0 + key) for key in set(keys)]
    shuffler.shuffle(once)

    found = drawn(rows, count, seed)

    assert [(each.key, each.probability) for each in found] == [
        (each.key, each.probability) for each in drawn(once, count, seed)
    ]
    assert len(found) == min(count, len(set(keys)))
    assert all(0 < each.probability <= 1 for each in found)


def test_a_row_that_comes_again_is_counted_as_repeated():
    sample = PrioritySample(5)
    for key in "abcab":
        sample.offer(key, 1.0, str)

    assert (sample.offered, sample.repeated, len(sample)) == (5, 2, 3)


def test_when_all_can_be_drawn_all_are_and_surely():
    assert [each.probability for each in drawn([("a", 1.0), ("b", 100.0)], 2)] == [1.0, 1.0]


def test_nothing_is_made_of_rows_that_are_not_kept():
    made = []
    sample = PrioritySample(3)
    for number in range(10_000):
        sample.offer(str(number), 1.0, lambda number=number: made.append(number))

    assert len(made) < 100


def test_strata_share_a_sample_equally_and_small_ones_leave_their_part():
    sample = StratifiedSample(30)
    rows = [("rare", number) for number in range(4)] + [("a", number) for number in range(500)]
    rows += [("b", number) for number in range(900)]
    random.Random(0).shuffle(rows)  # noqa: S311 - any order will do
    for stratum, number in rows:
        sample.offer(stratum, f"{stratum}{number}", 1.0, lambda stratum=stratum: stratum)

    found = sample.take(30)

    counts = {stratum: [each for each in found if each.item == stratum] for stratum in ("rare", "a", "b")}
    assert {stratum: len(each) for stratum, each in counts.items()} == {"rare": 4, "a": 13, "b": 13}
    assert all(each.probability == 1 for each in counts["rare"])
    assert sum(1 / each.probability for each in counts["b"]) == pytest.approx(900, rel=0.6)


def test_many_strata_share_one_in_the_end():
    sample = StratifiedSample(10, strata=2)
    for stratum in "abcd":
        sample.offer(stratum, stratum, 1.0, str)

    assert set(sample._strata) == {"a", "b", OTHERS}
    assert len(sample.take(10)) == 4
