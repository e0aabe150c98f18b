import numpy as np
import pytest

from mlx_platform.quantize.latency import race, summarize


def test_the_speedup_is_the_ratio_of_medians_with_its_interval() -> None:
    rng = np.random.default_rng(0)
    after = rng.normal(10, 0.3, 80)
    found = summarize(np.column_stack([2 * rng.normal(10, 0.3, 80), after]))

    assert found.speedup == pytest.approx(2.0, abs=0.05)
    assert found.lower < found.speedup < found.upper
    assert found.upper - found.lower < 0.1
    assert found.runs == 80


def test_one_slow_moment_does_not_move_the_median() -> None:
    pairs = np.full((31, 2), 5.0)
    pairs[7] = [5.0, 500.0]

    assert summarize(pairs).speedup == 1.0


def test_both_run_in_turns_and_as_often() -> None:
    order: list[str] = []
    found = race(lambda: order.append("a"), lambda: order.append("b"), seconds=5, most=6)

    assert found.runs == 6
    assert order.count("a") == order.count("b") == 11
    assert order[-4:] == ["a", "b", "b", "a"]


def test_a_spent_budget_still_leaves_five_pairs() -> None:
    found = race(lambda: None, lambda: None, seconds=0)

    assert found.runs == 5
