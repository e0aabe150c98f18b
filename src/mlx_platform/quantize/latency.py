"""Two models raced against each other, run by run, so that a busy moment of the machine hits both."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlx_platform.core.statistics import bootstrap

_WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Race:
    """Medians in milliseconds; `speedup` is before / after with its 95 % interval."""

    before_ms: float
    after_ms: float
    speedup: float
    lower: float
    upper: float
    runs: int


def race(
    before: Callable[[], object], after: Callable[[], object], *, seconds: float = 2.0, most: int = 100
) -> Race:
    """Time two calls in turns, swapping who goes first.

    Args:
        before: the call with the original model.
        after: the same call with the other one.
        seconds: about how long it may take; at least five pairs are run whatever it takes.
        most: pairs of runs.
    """
    for _ in range(_WARM_UP):
        before()
        after()
    end = time.perf_counter() + seconds
    pairs: list[tuple[float, float]] = []
    while len(pairs) < most and (len(pairs) < 5 or time.perf_counter() < end):
        if len(pairs) % 2:
            second = _timed(after)
            pairs.append((_timed(before), second))
        else:
            pairs.append((_timed(before), _timed(after)))
    return summarize(np.array(pairs))


def summarize(pairs: npt.NDArray[np.float64]) -> Race:
    """The medians of paired times [runs, 2] in milliseconds, and a bootstrap interval of their ratio."""

    def ratio(rows: npt.NDArray[np.intp]) -> float:
        medians = np.median(pairs[rows], axis=0)
        return float(medians[0] / medians[1])

    medians = np.median(pairs, axis=0)
    interval = bootstrap(ratio, len(pairs), resamples=500)
    return Race(
        float(medians[0]),
        float(medians[1]),
        float(medians[0] / medians[1]),
        interval.lower,
        interval.upper,
        len(pairs),
    )


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000
