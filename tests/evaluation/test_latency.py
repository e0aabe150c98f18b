import math

import numpy as np
import pytest
from scipy.stats import binom

from mlx_platform.evaluation.latency import (
    LATENCY_METRICS,
    Timings,
    _bootstrap,
    calls_for_tail,
    latency_ratios,
    measure_timings,
    order_interval,
    time_in_turns,
)


def seconds(calls, *, seed=0):
    """Times like real ones: positive, with a long tail, and busy spells that last."""
    generator = np.random.default_rng(seed)
    spells = np.repeat(generator.normal(0, 0.2, math.ceil(calls / 8)), 8)[:calls]
    return 0.01 * np.exp(spells + generator.normal(0, 0.1, calls))


def test_percentiles_mean_and_throughput_are_those_of_the_calls():
    times = seconds(400)

    found = measure_timings(Timings(times, batch=4))

    assert set(found) == set(LATENCY_METRICS)
    assert found["latency_p50_ms"].value == pytest.approx(1000 * np.median(times))
    assert found["latency_p95_ms"].value == pytest.approx(1000 * np.quantile(times, 0.95))
    assert found["latency_mean_ms"].value == pytest.approx(1000 * times.mean())
    assert found["throughput_rps"].value == pytest.approx(4 * 400 / times.sum())
    assert all(one.lower < one.value < one.upper and one.rows == 400 for one in found.values())
    assert (found["latency_p95_ms"].unit, found["latency_p95_ms"].higher_is_better) == ("ms", False)
    assert (found["throughput_rps"].unit, found["throughput_rps"].higher_is_better) == ("rows/s", True)


@pytest.mark.parametrize(("quantile", "count"), [(0.5, 20), (0.5, 101), (0.95, 100), (0.95, 1000)])
def test_the_interval_of_a_percentile_has_the_binomial_coverage_and_is_the_narrowest_with_it(quantile, count):
    interval = order_interval(np.arange(1, count + 1) / 1.0, quantile, 0.95)
    lower, upper = int(interval.lower), int(interval.upper)

    assert binom.cdf(lower - 1, count, quantile) <= 0.025 < binom.cdf(lower, count, quantile)
    assert binom.sf(upper - 1, count, quantile) <= 0.025 < binom.sf(upper - 2, count, quantile)


def test_the_median_of_twenty_lies_between_the_sixth_and_the_fifteenth():
    # Conover, Practical Nonparametric Statistics, 3rd edition, table A3.
    interval = order_interval(np.arange(1, 21) / 1.0, 0.5)

    assert (interval.lower, interval.upper) == (6, 15)


def test_a_tail_that_no_call_bounds_is_not_measured():
    assert calls_for_tail() == 72
    few, enough = (measure_timings(Timings(seconds(calls))) for calls in (71, 72))

    assert math.isnan(few["latency_p95_ms"].value)
    assert few["latency_p95_ms"].reason == "71 timed calls are too few; 72 are needed"
    assert few["latency_p50_ms"].value > 0
    assert enough["latency_p95_ms"].upper == pytest.approx(1000 * seconds(72).max())


def test_ratios_are_of_the_same_calls_and_do_not_see_what_slows_both_down():
    generator = np.random.default_rng(1)
    shared = seconds(400)
    ours, theirs = (shared * factor * np.exp(generator.normal(0, 0.02, 400)) for factor in (1.2, 1.0))

    ratio = latency_ratios(Timings(ours, theirs))["latency_mean_ms"]

    assert ratio.value == pytest.approx(ours.mean() / theirs.mean())
    assert (ratio.candidate, ratio.baseline) == pytest.approx((1000 * ours.mean(), 1000 * theirs.mean()))
    assert 1.19 < ratio.lower < ratio.value < ratio.upper < 1.21
    assert ratio.samples == 400
    alone = measure_timings(Timings(ours))["latency_mean_ms"]
    assert (alone.upper - alone.lower) / alone.value > 4 * (ratio.upper - ratio.lower)


def test_a_ratio_of_too_few_calls_says_so_and_one_without_a_baseline_is_none():
    ratio = latency_ratios(Timings(seconds(50), seconds(50, seed=1)))["latency_p95_ms"]

    assert math.isnan(ratio.value)
    assert "72 are needed" in ratio.reason
    assert latency_ratios(Timings(seconds(50))) == {}


def test_intervals_hold_as_often_as_they_say_whatever_spells_there_are():
    generator = np.random.default_rng(2)
    held = 0
    for repeat in range(300):
        shared = seconds(100, seed=repeat)
        ours, theirs = (shared * np.exp(generator.normal(0, 0.2, 100)) for _ in range(2))
        interval = _bootstrap(
            lambda rows, ours=ours, theirs=theirs: ours[rows].mean(axis=-1) / theirs[rows].mean(axis=-1),
            100,
            0.9,
            repeat,
        )
        held += interval.lower <= 1 <= interval.upper

    # Four standard errors of a share of 0.9 are 0.069.
    assert held / 300 == pytest.approx(0.9, abs=0.069)


def test_the_same_seed_gives_the_same_interval():
    timings = Timings(seconds(200), seconds(200, seed=1))

    assert latency_ratios(timings, seed=3) == latency_ratios(timings, seed=3)
    assert latency_ratios(timings, seed=3) != latency_ratios(timings, seed=4)


def test_calls_are_made_in_turns_and_each_side_goes_first_as_often():
    made: list[tuple[str, int]] = []
    heard: list[int] = []

    ours, theirs = time_in_turns(
        lambda number: made.append(("ours", number)),
        lambda number: made.append(("theirs", number)),
        seconds=0,
        patience=100,
        least=4,
        most=100,
        advance=heard.append,
    )

    assert [side for side, _ in made] == ["theirs", "ours", "ours", "theirs"] * 2
    assert [number for _, number in made] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(ours) == len(heard) == 4
    assert theirs is not None
    assert len(theirs) == 4


@pytest.mark.parametrize(("patience", "most", "calls"), [(0, 100, 1), (100, 3, 3)])
def test_timing_ends_when_patience_or_calls_are_used_up(patience, most, calls):
    ours, theirs = time_in_turns(
        lambda _number: None, None, seconds=100, patience=patience, least=10, most=most
    )

    assert (len(ours), theirs) == (calls, None)


def test_how_times_were_taken_is_told():
    timings = Timings(seconds(2), seconds(2), batch=8, device="cpu", threads=1)

    assert timings.told == "2 calls of 8 rows on cpu with 1 thread, in turns with the baseline"
    assert timings.document() == {
        "calls": 2,
        "rows_per_call": 8,
        "device": "cpu",
        "threads": 1,
        "beside_baseline": True,
    }


@pytest.mark.parametrize("calls", [2, 4, 5])
def test_so_few_calls_that_no_level_is_reached_have_a_mean_and_no_ratio(calls):
    timings = Timings(seconds(calls), seconds(calls, seed=1))

    mean = measure_timings(timings)["latency_mean_ms"]
    ratio = latency_ratios(timings)["latency_mean_ms"]

    assert mean.value == pytest.approx(1000 * timings.seconds.mean())
    assert math.isnan(mean.lower)
    assert math.isnan(ratio.value)
    assert ratio.reason == f"{calls} timed calls are too few to compare"
