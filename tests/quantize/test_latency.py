import time
from collections.abc import Callable

import numpy as np
import pytest

from mlx_platform.quantize.latency import ROUNDS, clock_of, race, summarize


def rounds_of(shifts: list[float], pairs: int = 20) -> list[np.ndarray]:
    """Rounds of a model that takes 20 ms and another of 10 ms, which is as much slower in a round as told."""
    rng = np.random.default_rng(0)
    return [
        np.column_stack([rng.normal(20, 0.3, pairs), shift * rng.normal(10, 0.3, pairs)]) for shift in shifts
    ]


def test_the_speedup_is_that_of_neighbouring_runs_with_its_interval() -> None:
    found = summarize(rounds_of([1.0] * ROUNDS))

    assert found.speedup == pytest.approx(2.0, abs=0.03)
    assert found.lower < found.speedup < found.upper
    assert found.upper - found.lower < 0.1
    assert found.runs == 20 * ROUNDS
    assert (found.before_ms, found.after_ms) == pytest.approx((20, 10), abs=0.2)


def test_what_differs_from_round_to_round_widens_the_interval_however_many_pairs_there_are() -> None:
    found = summarize(rounds_of([1.0, 1.2, 0.9, 1.1, 1.0, 0.8], pairs=2000))

    assert found.lower < 1.8
    assert found.upper > 2.2


def test_a_machine_that_slows_down_slows_both() -> None:
    slower = [pairs * (1 + number) for number, pairs in enumerate(rounds_of([1.0] * ROUNDS))]

    assert summarize(slower).speedup == pytest.approx(summarize(rounds_of([1.0] * ROUNDS)).speedup)


def test_the_interval_holds_the_truth_nineteen_times_of_twenty() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        noise = np.exp(rng.normal(0, 0.05, ROUNDS))
        found = summarize([np.column_stack([np.full(9, 10.0), np.full(9, 10.0 * each)]) for each in noise])
        held += found.lower <= 1 <= found.upper

    assert 0.92 < held / 400 < 0.98


def test_one_slow_moment_does_not_move_the_speedup() -> None:
    rounds = [np.full((31, 2), 5.0) for _ in range(ROUNDS)]
    rounds[2][7] = [5.0, 500.0]

    assert summarize(rounds).speedup == 1.0


def test_both_run_in_turns_and_as_often() -> None:
    order: list[str] = []
    found = race(lambda: order.append("a"), lambda: order.append("b"), seconds=5, most=2 * ROUNDS)

    assert found.runs == 2 * ROUNDS
    assert order.count("a") == order.count("b")
    assert order[-8:] == ["a", "b", "b", "a", "b", "a", "a", "b"]


def test_a_spent_budget_still_leaves_a_pair_a_round_and_neither_always_goes_first() -> None:
    order: list[str] = []
    found = race(lambda: order.append("a"), lambda: order.append("b"), seconds=0)

    assert found.runs == ROUNDS
    assert len(order) == 2 * (ROUNDS + 1)
    assert order[-4:] == ["a", "b", "b", "a"]


def test_a_clock_that_stands_still_divides_nothing_by_zero() -> None:
    found = race(lambda: None, lambda: None, seconds=0, clock=lambda: 7.0)

    assert (found.speedup, found.lower, found.upper) == (1.0, 1.0, 1.0)


def busy(spent: list[float], seconds: float) -> Callable[[], None]:
    """A call that takes so long by a clock that only it moves."""

    def call() -> None:
        spent[0] += seconds

    return call


def test_the_clock_says_how_long_a_call_takes() -> None:
    spent = [0.0]
    found = race(busy(spent, 0.003), busy(spent, 0.002), seconds=5, clock=lambda: spent[0])

    assert found.speedup == pytest.approx(1.5)
    assert (found.before_ms, found.after_ms) == pytest.approx((3, 2))


def test_one_thread_is_timed_by_what_it_computes_and_several_by_the_wall() -> None:
    assert clock_of(1) is time.thread_time
    assert clock_of(2) is time.perf_counter
