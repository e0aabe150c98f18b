import pytest

from mlx_platform.serving.costs import Costs
from mlx_platform.serving.job import Group

FLAT = {1: 0.010, 8: 0.011, 32: 0.014}  # a run costs much, a row little
STEEP = {1: 0.010, 8: 0.080, 32: 0.320}  # a row costs the same in any company


def group(costs, cells=100):
    made = Group(joins=True, cells=cells)
    costs.expect(made)
    return made


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 0.010), (8, 0.011), (20, 0.0125), (32, 0.014), (64, 0.028), (6400, 2.8)]
)
def test_between_measured_runs_lie_straight_lines_and_beyond_them_proportion(rows, seconds):
    costs = Costs(FLAT, 100, 32)
    assert costs.seconds(group(costs), rows) == pytest.approx(seconds)


def test_fewer_rows_than_were_ever_timed_cost_as_much_as_those():
    costs = Costs({4: 0.1}, 100, 32)
    assert costs.seconds(group(costs), 1) == pytest.approx(0.1)


def test_longer_rows_are_expected_to_take_longer_until_they_were_seen():
    costs = Costs(FLAT, 100, 32)
    long = group(costs, cells=400)
    assert costs.seconds(long, 8) == pytest.approx(0.044)
    costs.learn(long, 8, 0.022)
    assert costs.seconds(long, 8) == pytest.approx(0.022)
    assert costs.seconds(group(costs), 8) == pytest.approx(0.011)
    assert long.pace == pytest.approx(2 * 0.014 / 32)


def test_one_slow_run_changes_little_and_a_lasting_change_is_learnt():
    costs = Costs(FLAT, 100, 32)
    known = group(costs)
    costs.learn(known, 1, 0.010)
    costs.learn(known, 1, 0.110)
    assert costs.seconds(known, 1) == pytest.approx(0.020)
    for _ in range(60):
        costs.learn(known, 1, 0.110)
    assert costs.seconds(known, 1) == pytest.approx(0.110, rel=0.01)


def test_where_nothing_was_timed_nothing_is_expected_until_something_has_run():
    costs = Costs({}, 0, 32)
    first = group(costs)
    assert costs.seconds(first, 8) == first.pace == 0
    costs.learn(first, 4, 0.2)
    assert costs.seconds(first, 8) == pytest.approx(0.4)
    assert costs.seconds(group(costs), 2) == pytest.approx(0.1)


@pytest.mark.parametrize(("curve", "gains"), [(FLAT, True), (STEEP, False), ({}, True)])
def test_waiting_pays_where_a_row_is_cheaper_in_company(curve, gains):
    assert Costs(curve, 100, 32).gains_by_company(4) is gains


@pytest.mark.parametrize(("curve", "gains"), [(FLAT, False), (STEEP, True), ({}, True)])
def test_spreading_pays_where_a_row_costs_the_same_in_any_company(curve, gains):
    assert Costs(curve, 100, 32).gains_by_spreading(8, 4) is gains
