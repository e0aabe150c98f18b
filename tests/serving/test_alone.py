import pytest

from mlx_platform.serving.alone import Loneliness


def value(watch):
    (sample,) = watch.samples()
    return sample.value


def test_runs_of_one_row_while_others_wait_are_a_fault_that_is_told_once(caplog):
    watch = Loneliness(lambda: "it was told to")
    for _ in range(199):
        watch.observe(1, others=5)
    assert (watch.fault, value(watch)) == ("", 0)
    for _ in range(500):
        watch.observe(1, others=5)
    assert (watch.fault, value(watch)) == ("it was told to", 1)
    assert caplog.text.count("every run has one row: it was told to.") == 1


@pytest.mark.parametrize("others", [0, 1])
def test_runs_of_one_row_are_right_while_hardly_anybody_waits(others):
    watch = Loneliness(lambda: "?")
    for _ in range(1000):
        watch.observe(1, others=others)
    assert value(watch) == 0


def test_two_rows_in_one_run_end_the_fault():
    watch = Loneliness(lambda: "?")
    for _ in range(300):
        watch.observe(1, others=5)
    watch.observe(2, others=5)
    assert (watch.fault, value(watch)) == ("", 0)
    for _ in range(199):
        watch.observe(1, others=5)
    assert value(watch) == 0
