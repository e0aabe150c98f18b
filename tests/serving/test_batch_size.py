import pytest

from mlx_platform.serving import memory
from mlx_platform.serving.batch_size import BatchSize, measure

GIB = 1024**3


@pytest.fixture
def machine(monkeypatch):
    """A machine with so much memory, in which a run leaves behind what it took."""

    def make(free, per_row):
        state = {"resident": 0}
        monkeypatch.setattr(memory, "available", lambda: free)
        monkeypatch.setattr(memory, "resident", lambda: state["resident"])

        def after(rows):
            state["resident"] = max(state["resident"], rows * per_row)

        return after

    return make


def choose(seconds, after=lambda _: None, *, longest=10.0, workers=1):
    def run(rows):
        after(rows)
        return seconds(rows)

    return measure(run, longest, workers)


def test_where_more_rows_save_nothing_the_smallest_batch_is_taken(machine):
    curve, size = choose(lambda rows: 0.001 * rows, machine(64 * GIB, 1))
    assert size == BatchSize(1, "throughput", 1)
    assert max(curve) == 4


def test_the_knee_of_the_curve_is_taken(machine):
    curve, size = choose(lambda rows: 0.001 + 0.0001 * rows, machine(64 * GIB, 0))
    assert size.bound == "throughput"
    # A row costs at most a tenth more than in the largest batch that was tried.
    assert curve[size.rows] / size.rows <= 1.1 * min(seconds / rows for rows, seconds in curve.items())
    assert curve[size.rows // 2] / (size.rows // 2) > 1.1 * min(s / r for r, s in curve.items())


def test_a_run_takes_no_longer_than_it_may_but_one_row_always_goes(machine):
    after = machine(64 * GIB, 0)
    assert choose(lambda rows: 0.1 + 0.01 * rows, after, longest=0.2)[1] == BatchSize(8, "time", 0)
    assert choose(lambda _: 0.5, after, longest=0.2)[1] == BatchSize(1, "time", 0)


@pytest.mark.parametrize(("workers", "rows"), [(1, 32), (2, 16), (4, 8)])
def test_batches_fit_into_memory_with_room_to_spare_for_all_workers(machine, workers, rows):
    free, per_row = GIB, 20 * 1024**2
    curve, size = choose(lambda _: 0.001, machine(free, per_row), workers=workers)
    assert size == BatchSize(rows, "memory", per_row)
    assert max(curve) * per_row * workers <= 0.85 * free


def test_measuring_ends_when_it_has_taken_long_enough(machine):
    curve, size = choose(lambda rows: 0.4 + 0.001 * rows, machine(64 * GIB, 0))
    assert size.bound == "budget"
    assert sum(curve.values()) < 3


def test_without_a_limit_that_is_known_memory_sets_none(machine, monkeypatch):
    after = machine(None, GIB)
    assert choose(lambda _: 0.001, after)[1] == BatchSize(1024, "throughput", GIB)


def test_this_machine_says_what_it_has():
    assert 10 * 1024**2 < memory.resident() < 100 * GIB
    free = memory.available()
    assert free is not None
    assert free > 0
