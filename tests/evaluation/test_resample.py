import numpy as np
import pytest

from mlx_platform.evaluation import resample as module
from mlx_platform.evaluation.metrics import METRICS
from mlx_platform.evaluation.resample import Blocks, block_limit, draw, make_blocks
from mlx_platform.evaluation.scored import Predicted


def _resampled(name, scored, seed=0, most=5000):
    metric = METRICS[name]
    blocks = make_blocks(scored.rows, most=most, seed=seed)
    return draw(blocks.count, seed=seed).apply(metric.parts(scored, blocks), [metric.value])[0]


def test_blocks_add_up_rows_and_count_codes():
    blocks = Blocks(np.array([0, 1, 0]), 2)

    assert blocks.sums(np.array([1.0, 2.0, 4.0]), np.array([1, 1, 1])).tolist() == [[5, 2], [2, 1]]
    assert blocks.counts(np.array([1, 0, 1]), 2).tolist() == [[0, 2], [1, 0]]
    assert blocks.counts(np.array([1, 0, 1]), 2, np.array([True, False, False])).tolist() == [[0, 1], [0, 0]]


def test_few_rows_are_drawn_one_by_one_and_many_in_random_blocks_of_equal_size():
    few, many = make_blocks(100, most=5000, seed=0), make_blocks(12_345, most=5000, seed=0)

    assert few.index.tolist() == list(range(100))
    assert many.count == 5000
    assert set(np.bincount(many.index)) == {2, 3}
    assert many.index[:50].tolist() != list(range(50))


def test_wide_sums_are_kept_in_fewer_blocks():
    assert block_limit(1) == module.MAX_BLOCKS
    assert block_limit(300) == 1666
    assert block_limit(10**6) == module.MIN_BLOCKS


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "log_loss", "ece"])
def test_the_value_of_resampled_sums_is_the_metric_itself(name, classified):
    scored = classified(rows=6000)

    resampled = _resampled(name, scored)

    assert resampled.value == pytest.approx(METRICS[name].of(scored))
    assert len(resampled.draws) == module.RESAMPLES
    assert len(resampled.left_out) == 100


def test_blocks_of_rows_have_the_spread_of_single_rows(predicted):
    scored = predicted(rows=4000)

    by_row, by_block = (_resampled("rmse", scored, most=most).error for most in (5000, 500))

    assert by_block == pytest.approx(by_row, rel=0.15)


def test_the_same_seed_draws_the_same_resamples():
    draws = draw(400, seed=3)

    assert np.array_equal(draws.counts, draw(400, seed=3).counts)
    assert not np.array_equal(draws.counts, draw(400, seed=4).counts)
    assert (draws.counts.sum(axis=1) == 400).all()


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(11)
    held = 0
    for seed in range(150):
        error = generator.exponential(size=120)
        scored = Predicted(np.zeros(120), error)
        interval = _resampled("mae", scored, seed=seed).interval(0.9)
        held += interval.lower <= 1.0 <= interval.upper

    assert 0.83 <= held / 150 <= 0.96


def test_groups_stay_whole_and_weights_count():
    groups = np.array([7, 3, 7, 3, 9])
    blocks = make_blocks(5, most=100, seed=0, groups=groups, weights=np.array([1.0, 2, 3, 4, 0]))

    assert blocks.count == 3
    assert blocks.index.tolist() == [1, 0, 1, 0, 2]
    assert blocks.sums(np.ones(5), np.arange(5)).tolist() == [[6, 14], [4, 6], [0, 0]]
    assert blocks.counts(np.array([0, 1, 1, 1, 0]), 2).tolist() == [[0, 6], [1, 3], [0, 0]]


def test_many_groups_are_put_together_at_random_without_breaking_any():
    groups = np.repeat(np.arange(1000), 3)

    blocks = make_blocks(3000, most=50, seed=0, groups=groups)

    assert blocks.count == 50
    assert all(len(set(blocks.index[groups == group])) == 1 for group in range(0, 1000, 90))
    assert set(np.bincount(blocks.index)) == {60}


def test_what_must_be_kept_is_in_every_draw():
    rare = np.array([4, 17])

    without, kept = draw(60, seed=1), draw(60, seed=1, kept=[rare])

    missing = ~without.counts[:, rare].any(axis=1)
    assert 0.08 < missing.mean() < 0.2
    assert kept.counts[:, rare].any(axis=1).all()
    assert (kept.counts.sum(axis=1) == 60 + missing).all()


def test_a_function_of_rows_is_drawn_like_the_sums_of_blocks():
    values = np.random.default_rng(0).normal(size=300)
    blocks = make_blocks(300, most=70, seed=0)
    draws = draw(blocks.count, seed=0)

    by_sums = draws.apply(blocks.sums(np.ones(300), values), [lambda sums: sums[..., 1] / sums[..., 0]])[0]
    by_rows = draws.call(lambda rows: float(values[rows].mean()), blocks, resamples=200)

    assert by_rows.value == pytest.approx(by_sums.value)
    assert by_rows.draws == pytest.approx(by_sums.draws[:200])
    assert by_rows.left_out == pytest.approx(by_sums.left_out)
