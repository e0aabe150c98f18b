"""Two models raced against each other, run by run, so that a busy moment of the machine hits both."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Clock = Callable[[], float]
Pairs = npt.NDArray[np.float64]

ROUNDS = 6
_T = 2.5706  # of Student's distribution with ROUNDS - 1 degrees of freedom, 95 % two-sided
_WARM_UP = 3
_SHORTEST = 1e-9  # seconds: nothing takes no time, whatever a clock's steps are


@dataclass(frozen=True, slots=True)
class Race:
    """Medians in milliseconds; `speedup` is before / after with its 95 % interval."""

    before_ms: float
    after_ms: float
    speedup: float
    lower: float
    upper: float
    runs: int


def clock_of(threads: int) -> Clock:
    """The seconds of a model that runs on so many threads.

    One that runs on the caller's thread alone is timed by what that thread computes: other programs keep it
    waiting, and that says nothing about the model. Of several threads only the clock on the wall knows.
    """
    return time.thread_time if threads == 1 else time.perf_counter


def race(
    before: Callable[[], object],
    after: Callable[[], object],
    *,
    seconds: float = 2.0,
    most: int = 100,
    clock: Clock = time.perf_counter,
) -> Race:
    """Time two calls in turns, swapping who goes first.

    Args:
        before: the call with the original model.
        after: the same call with the other one.
        seconds: about how long it may take; a pair of runs a round, and one before, are made in any case.
        most: pairs of runs, about.
        clock: see `clock_of`.
    """
    warm = time.perf_counter() + seconds / 10
    for _ in range(_WARM_UP):
        before()
        after()
        if time.perf_counter() > warm:
            break
    pairs = math.ceil(most / ROUNDS)
    return summarize(
        [
            one_round(
                before, after, seconds=seconds / ROUNDS, most=pairs, clock=clock, swapped=bool(number % 2)
            )
            for number in range(ROUNDS)
        ]
    )


def one_round(
    before: Callable[[], object],
    after: Callable[[], object],
    *,
    seconds: float,
    most: int,
    clock: Clock,
    swapped: bool = False,
) -> Pairs:
    """The times of a few pairs of runs [pairs, 2] in milliseconds; `swapped` lets `after` go first."""
    end = time.perf_counter() + seconds
    pairs: list[tuple[float, float]] = []
    while len(pairs) < most and (not pairs or time.perf_counter() < end):
        if swapped:
            second = _timed(after, clock)
            pairs.append((_timed(before, clock), second))
        else:
            pairs.append((_timed(before, clock), _timed(after, clock)))
        swapped = not swapped
    return np.array(pairs)


def summarize(rounds: Sequence[Pairs]) -> Race:
    """The speed-up over `ROUNDS` rounds from `one_round`, with its interval.

    What is true of a round, such as the frequency of the processor or who shares its caches, holds for all
    pairs of it. The interval is therefore one of rounds, not of pairs: that of the mean of the logarithms of
    their median ratios (Student, Biometrika 6, 1908).
    """
    ratios = np.array([np.median(np.log(pairs[:, 0] / pairs[:, 1])) for pairs in rounds])
    middle, reach = ratios.mean(), _T * ratios.std(ddof=1) / math.sqrt(len(ratios))
    every = np.concatenate(rounds)
    before, after = np.median(every, axis=0)
    return Race(
        float(before),
        float(after),
        math.exp(middle),
        math.exp(middle - reach),
        math.exp(middle + reach),
        len(every),
    )


def _timed(call: Callable[[], object], clock: Clock) -> float:
    start = clock()
    call()
    return max(clock() - start, _SHORTEST) * 1000
