from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_platform.quantize.latency import Race
from mlx_platform.quantize.sensitivity import Distance
from mlx_platform.workflows.quantization.candidates import Candidate
from mlx_platform.workflows.quantization.tradeoffs import pareto


def candidate(size: int, speedup: float, divergence: float) -> Candidate:
    made: Any = SimpleNamespace(verified=SimpleNamespace(size_before=100, size_after=size), path=Path())
    race = Race(1.0, 1 / speedup, speedup, speedup, speedup, 10)
    return Candidate("it", made, Distance(divergence, 0.0), race, None)


def test_what_another_beats_in_everything_is_beaten() -> None:
    small, close, beaten = candidate(25, 1.5, 0.2), candidate(50, 1.0, 0.001), candidate(60, 0.9, 0.3)

    assert pareto([small, close, beaten]) == [True, True, False]


def test_what_is_best_in_one_thing_is_unbeaten() -> None:
    fast = candidate(90, 3.0, 0.9)

    assert pareto([candidate(25, 1.5, 0.1), fast]) == [True, True]


def test_equals_do_not_beat_each_other() -> None:
    assert pareto([candidate(25, 1.5, 0.1), candidate(25, 1.5, 0.1)]) == [True, True]


def test_half_the_size_is_worth_twice_the_speed() -> None:
    assert candidate(50, 1.0, 0.0).score == pytest.approx(candidate(100, 2.0, 0.0).score)
