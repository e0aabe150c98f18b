import pytest

from mlx_platform.serving.batch_size import BatchSize
from mlx_platform.serving.signature import Signature
from mlx_platform.serving.warmup import WarmUp, warm_up


def warmed(model):
    return warm_up(model, Signature.of(model.spec.inputs, model.spec.outputs), 32)


def test_a_small_model_is_timed_and_runs_on_the_event_loop(load):
    warm = warmed(load("table"))
    assert sorted(warm.seconds) == [1, 8, 32]
    assert warm.rowwise
    assert warm.inline_cells == 32 * 4


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [
        ({1: 0.0002, 32: 0.001}, 32),
        ({1: 0.0004, 32: 0.001}, 0),
        ({1: 0.0002, 8: 0.001, 32: 0.003}, 8),
        ({}, 0),
    ],
)
def test_only_runs_that_were_seen_to_be_fast_happen_on_the_event_loop(seconds, rows):
    assert WarmUp(seconds, rowwise=True, size=BatchSize(32), cells=5).inline_cells == 5 * rows


def test_a_model_that_mixes_rows_is_found_out(load):
    assert not warmed(load("column_mean")).rowwise


def test_a_model_with_a_fixed_number_of_rows_is_never_joined(load):
    warm = warmed(load("double_pair"))
    assert not warm.rowwise
    assert list(warm.seconds) == [2]


def test_where_no_input_can_be_made_nothing_is_concluded(load):
    warm = warmed(load("kinds"))
    assert warm == WarmUp({}, rowwise=True, size=BatchSize(32))
