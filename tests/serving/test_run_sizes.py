import pytest

from mlx_platform.serving.run_sizes import RunSizes

KNEE = {1: 1.0, 4: 0.9, 8: 0.8, 16: 1.0, 32: 1.6}  # seconds of a row by the rows of its run


def after(paces, times=5):
    sizes = RunSizes()
    for _ in range(times):
        for rows, pace in paces.items():
            sizes.learn(rows, rows * pace)
    return sizes


def test_runs_grow_no_larger_than_where_a_row_is_cheapest():
    assert after(KNEE).most == 15


@pytest.mark.parametrize(
    "paces",
    [
        pytest.param({1: 1.0, 8: 0.5, 32: 0.25}, id="more is cheaper"),
        pytest.param({1: 1.0, 8: 1.0, 32: 1.05}, id="more is as good"),
        pytest.param({32: 5.0}, id="nothing to compare with"),
    ],
)
def test_nothing_is_bounded_without_a_better_size(paces):
    assert after(paces).most is None


def test_one_run_of_each_size_or_one_that_was_held_up_tells_nothing():
    assert after(KNEE, times=1).most is None
    sizes = after({1: 1.0, 8: 0.5})
    sizes.learn(8, 800.0)
    assert sizes.most is None


def test_a_size_that_was_left_alone_is_tried_again_in_the_end():
    sizes = after(KNEE)
    for _ in range(201):
        sizes.learn(8, 8 * 0.8)
    assert sizes.most is None


def test_long_runs_begin_small_and_double_as_long_as_that_pays():
    sizes = RunSizes()
    sizes.begin(4)
    grown = []
    for _ in range(12):
        rows = sizes.most
        grown.append(rows)
        sizes.learn(rows, rows * {4: 1.0, 8: 0.9, 16: 0.8, 32: 0.8, 64: 0.8}.get(rows, 0.8))

    assert grown == [4, 4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 128]


def test_they_stop_growing_where_a_row_takes_longer():
    sizes = RunSizes()
    sizes.begin(4)
    for _ in range(20):
        rows = sizes.most
        sizes.learn(rows, rows * (1.0 if rows < 16 else 1.5))

    assert sizes.most == 15


def test_smaller_runs_than_may_be_let_nothing_grow():
    sizes = RunSizes()
    sizes.begin(8)
    for _ in range(50):
        sizes.learn(3, 3.0)

    assert sizes.most == 8
