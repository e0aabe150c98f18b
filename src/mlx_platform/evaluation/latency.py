"""How fast a model answers, and how its times compare with the baseline's: numbers out of timed calls."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlx_platform.core.statistics import Interval, bca_interval
from mlx_platform.core.text import plural
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.ratio import Ratio

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Statistic = Callable[[Floats], Floats]

_RESAMPLES = 1000
_JACKKNIFE_GROUPS = 50
_TAIL = 0.95


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of calls, each taken beside the same call to the baseline where there is one.

    Attributes:
        seconds: of the candidate [calls], in the order they were made.
        baseline: of the baseline [calls]; None without one.
        batch: rows of one call.
        device: where the candidate ran.
        threads: threads of one call.
    """

    seconds: Floats
    baseline: Floats | None = None
    batch: int = 1
    device: str = "cpu"
    threads: int = 1

    @property
    def calls(self) -> int:
        return len(self.seconds)

    @property
    def told(self) -> str:
        """How the times were taken, for people."""
        turns = "" if self.baseline is None else ", in turns with the baseline"
        calls = f"{plural(self.calls, 'call')} of {plural(self.batch, 'row')}"
        return f"{calls} on {self.device} with {plural(self.threads, 'thread')}{turns}"

    def document(self) -> dict[str, int | str | bool]:
        """How the times were taken, JSON-ready."""
        return {
            "calls": self.calls,
            "rows_per_call": self.batch,
            "device": self.device,
            "threads": self.threads,
            "beside_baseline": self.baseline is not None,
        }


@dataclass(frozen=True, slots=True)
class _Speed:
    """A number made of times in seconds [..., calls]; `quantile` where it is one."""

    name: str
    unit: str
    higher_is_better: bool
    quantile: float | None = None

    def of(self, seconds: Floats, batch: int) -> Floats:
        if self.quantile is not None:
            quantiles: Floats = 1000 * np.quantile(seconds, self.quantile, axis=-1)
            return quantiles
        mean: Floats = seconds.mean(axis=-1)
        return batch / mean if self.higher_is_better else 1000 * mean


_SPEEDS = (
    _Speed("latency_p50_ms", "ms", higher_is_better=False, quantile=0.5),
    _Speed("latency_p95_ms", "ms", higher_is_better=False, quantile=_TAIL),
    _Speed("latency_mean_ms", "ms", higher_is_better=False),
    _Speed("throughput_rps", "rows/s", higher_is_better=True),
)
LATENCY_METRICS = tuple(speed.name for speed in _SPEEDS)


def calls_for_tail(confidence: float = 0.95) -> int:
    """The fewest calls whose largest time bounds the 95th percentile from above."""
    return math.ceil(math.log((1 - confidence) / 2) / math.log(_TAIL))


def time_in_turns(
    candidate: Callable[[int], object],
    baseline: Callable[[int], object] | None = None,
    *,
    seconds: float,
    patience: float,
    least: int,
    most: int,
    advance: Callable[[int], object] = lambda _done: None,
) -> tuple[Floats, Floats | None]:
    """Time calls, each beside the same call to the baseline, and swap who goes first.

    Args:
        candidate: makes call number i.
        baseline: the same for the other model.
        seconds: how long to go on once `least` calls are made.
        patience: seconds after which it ends with fewer.
        least: calls.
        most: calls.
        advance: hears of every call that was made.

    Returns:
        Seconds [calls] of both.
    """
    sides = [candidate] if baseline is None else [candidate, baseline]
    times: list[list[float]] = [[] for _ in sides]
    began = time.perf_counter()
    for call in range(most):
        spent = time.perf_counter() - began
        if call and (spent > patience or (call >= least and spent > seconds)):
            break
        order = range(len(sides)) if call % 2 else reversed(range(len(sides)))
        for side in order:
            times[side].append(_timed(sides[side], call))
        advance(1)
    return np.array(times[0]), np.array(times[1]) if baseline else None


def _timed(call: Callable[[int], object], number: int) -> float:
    began = time.perf_counter()
    call(number)
    return time.perf_counter() - began


def measure_timings(
    timings: Timings, *, confidence: float = 0.95, seed: int = 0, baseline: bool = False
) -> dict[str, Measurement]:
    """Percentiles, mean and throughput with their intervals.

    Percentiles have the interval between two order statistics (David and Nagaraja, Order Statistics, 3rd
    edition, 7.1), which holds for any distribution. Mean and throughput have a bootstrap of blocks of
    neighbouring calls, since a busy moment of the machine lasts longer than one of them. The 95th percentile
    of so few calls that none is likely to lie beyond it is not measured.

    Args:
        timings: of both models.
        confidence: two-sided.
        seed: of the resampling.
        baseline: measure the baseline's times instead of the candidate's.
    """
    seconds = timings.baseline if baseline else timings.seconds
    if seconds is None:
        raise ValueError("a baseline that was not timed")
    return {speed.name: _measurement(speed, seconds, timings.batch, confidence, seed) for speed in _SPEEDS}


def _measurement(speed: _Speed, seconds: Floats, batch: int, confidence: float, seed: int) -> Measurement:
    calls = len(seconds)
    reason = _too_few(speed, calls, confidence)
    value, interval, method = math.nan, Interval(math.nan, math.nan), ""
    if not reason:
        value = float(speed.of(seconds, batch))
        if speed.quantile is not None:
            ends = order_interval(seconds, speed.quantile, confidence)
            interval, method = Interval(1000 * ends.lower, 1000 * ends.upper), "order statistics"
        else:
            interval = _bootstrap(lambda index: speed.of(seconds[index], batch), calls, confidence, seed)
            method = "BCa of blocks"
        method = f"{method}, {plural(calls, 'call')} of {plural(batch, 'row')}"
    return Measurement(
        speed.name,
        value,
        interval.lower,
        interval.upper,
        calls,
        speed.unit,
        speed.higher_is_better,
        reason,
        "" if math.isnan(interval.lower) else method,
    )


def latency_ratios(timings: Timings, *, confidence: float = 0.95, seed: int = 0) -> dict[str, Ratio]:
    """Candidate over baseline of each number; both are resampled by the same blocks of calls.

    The ends of the interval are one-sided bounds at `confidence`, as gates on a difference have them.
    """
    theirs = timings.baseline
    if theirs is None:
        return {}
    return {speed.name: _ratio(speed, timings, theirs, confidence, seed) for speed in _SPEEDS}


def _ratio(speed: _Speed, timings: Timings, theirs: Floats, confidence: float, seed: int) -> Ratio:
    ours, batch, calls = timings.seconds, timings.batch, timings.calls
    if reason := _too_few(speed, calls, confidence):
        return Ratio(math.nan, math.nan, math.nan, math.nan, math.nan, calls, reason)
    new, old = float(speed.of(ours, batch)), float(speed.of(theirs, batch))
    interval = _bootstrap(
        lambda index: speed.of(ours[index], batch) / speed.of(theirs[index], batch),
        calls,
        2 * confidence - 1,
        seed,
    )
    if math.isnan(interval.lower):
        # A ratio without an interval is an exact one, and this one is not.
        reason = f"{calls:,} timed calls are too few to compare"
        return Ratio(math.nan, math.nan, math.nan, math.nan, math.nan, calls, reason)
    return Ratio(new / old, interval.lower, interval.upper, new, old, calls)


def _too_few(speed: _Speed, calls: int, confidence: float) -> str:
    needed = calls_for_tail(confidence) if speed.quantile == _TAIL else 2
    return "" if calls >= needed else f"{calls:,} timed calls are too few; {needed:,} are needed"


def order_interval(values: Floats, quantile: float, confidence: float = 0.95) -> Interval:
    """The interval of a quantile between two order statistics of independent values [n].

    With B the binomial count of values below the quantile, it runs from the last order statistic with
    P(B < l) <= a/2 to the first with P(B >= u) <= a/2. Ends are NaN where there are too few values.
    """
    from scipy.special import bdtr

    count = len(values)
    if count == 0:
        return Interval(math.nan, math.nan)
    tail = (1 - confidence) / 2
    below = bdtr(np.arange(count, dtype=np.float64), count, quantile)  # P(B <= k)
    lower = int(np.searchsorted(below, tail, side="right"))
    upper = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    if lower < 1 or upper > count:
        return Interval(math.nan, math.nan)
    ordered = np.sort(values)
    return Interval(float(ordered[lower - 1]), float(ordered[upper - 1]))


def _bootstrap(statistic: Callable[[Indices], Floats], calls: int, confidence: float, seed: int) -> Interval:
    """A circular bootstrap of blocks of n^(1/3) calls (Hall, Horowitz and Jing, Biometrika 82, 1995).

    Few blocks vary less than they should; the level is raised as much as Student's t is wider than the normal
    (Hesterberg, The American Statistician 69, 2015). Ends are NaN where so few calls reach no such level.
    """
    from scipy.special import ndtr, stdtrit

    length = max(1, round(calls ** (1 / 3)))
    blocks = max(2, calls // length)
    width = stdtrit(blocks - 1, 0.5 + confidence / 2) * math.sqrt(blocks / (blocks - 1))
    raised = float(2 * ndtr(width) - 1)
    if 0.5 + raised / 2 >= 1:
        return Interval(math.nan, math.nan)
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, calls, (_RESAMPLES, math.ceil(calls / length), 1))
    drawn = ((starts + np.arange(length)) % calls).reshape(_RESAMPLES, -1)[:, :calls]
    every = np.arange(calls)
    groups = np.array_split(every, min(calls, _JACKKNIFE_GROUPS))
    left_out = np.array([float(statistic(np.delete(every, group))) for group in groups])
    return bca_interval(float(statistic(every)), statistic(drawn), left_out, raised)
