import pytest

from mlx_platform.serving.job import HIGH, LOW, NORMAL, Group, Job
from mlx_platform.serving.waiting import Waiting


def job(group, rows=1, priority=NORMAL, admitted=0.0):
    made = Job({"x": rows}, rows, ("y",), 10.0, admitted, None, group, priority, 0, 8 * rows)
    made.cost = 0.5 * rows
    return made


def filled(*jobs):
    waiting = Waiting()
    for one in jobs:
        waiting.add(one)
    return waiting


def test_the_urgent_come_first_and_the_others_in_the_order_they_came():
    group = Group(joins=True)
    jobs = [job(group, priority=priority) for priority in (NORMAL, LOW, HIGH, NORMAL, HIGH)]
    waiting = filled(*jobs)
    assert group.head() is jobs[2]
    assert waiting.take(group, 100) == [jobs[2], jobs[4], jobs[0], jobs[3], jobs[1]]
    assert not waiting


def test_a_batch_ends_before_the_first_that_does_not_fit_so_that_nobody_is_passed():
    group = Group(joins=True)
    jobs = [job(group, rows) for rows in (3, 2, 4, 1)]
    waiting = filled(*jobs)
    assert waiting.take(group, 6) == jobs[:2]
    assert waiting.take(group, 6) == jobs[2:]


def test_one_that_is_longer_than_a_run_goes_alone():
    group = Group(joins=True)
    jobs = [job(group, 9), job(group, 1)]
    waiting = filled(*jobs)
    assert waiting.take(group, 4) == jobs[:1]
    assert waiting.take(group, 4) == jobs[1:]


def test_those_who_share_no_run_are_taken_one_by_one():
    waiting = Waiting()
    jobs = [job(waiting.alone) for _ in range(3)]
    for one in jobs:
        waiting.add(one)
    assert [waiting.take(waiting.alone, 100) for _ in jobs] == [[one] for one in jobs]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_leaves_is_passed_over_and_counted_out(gone):
    group = Group(joins=True)
    jobs = [job(group, 2) for _ in range(3)]
    waiting = filled(*jobs)
    assert waiting.remove(jobs[gone])
    assert not waiting.remove(jobs[gone])
    assert jobs[gone].feeds == {}
    assert (waiting.rows, waiting.nbytes, waiting.seconds, group.rows) == (4, 32, 2.0, 4)
    rest = [one for one in jobs if one is not jobs[gone]]
    assert group.head() is rest[0]
    assert list(waiting) == waiting.take(group, 100) == rest


def test_when_all_have_left_nothing_is_left_of_them():
    group = Group(joins=True)
    jobs = [job(group) for _ in range(3)]
    waiting = filled(*jobs)
    for one in jobs:
        waiting.remove(one)
    assert not waiting
    assert group.head() is None
    assert (waiting.rows, waiting.nbytes, waiting.seconds) == (0, 0, 0.0)
    assert not any(group.lines)


def test_groups_in_which_nobody_waits_are_forgotten_when_there_are_many():
    waiting = Waiting()
    busy = Group(joins=True)
    waiting.remember("busy", busy)
    waiting.add(job(busy))
    for number in range(1000):
        waiting.remember(number, Group(joins=True))
    assert waiting.find("busy") is busy
    assert waiting.find(999) is not None
    assert waiting.find(0) is None
