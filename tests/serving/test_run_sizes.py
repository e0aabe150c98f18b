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


def test_a_few_runs_or_one_that_was_held_up_tell_nothing():
    assert after(KNEE, times=4).most is None
    sizes = after({1: 1.0, 8: 0.5})
    sizes.learn(8, 800.0)
    assert sizes.most is None


def test_a_size_that_was_left_alone_is_tried_again_in_the_end():
    sizes = after(KNEE)
    for _ in range(1001):
        sizes.learn(8, 8 * 0.8)
    assert sizes.most is None
