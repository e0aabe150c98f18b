import math

import pytest

from mlx_platform.workflows.watching.figures import Interval, figures
from mlx_platform.workflows.watching.scrape import Scrape


def look(moment, **samples):
    return Scrape(moment, {name: tuple(rows) for name, rows in samples.items()})


def buckets(*counts, **labels):
    bounds = ("0.001", "0.01", "0.1", "+Inf")
    return [(labels | {"le": bound}, count) for bound, count in zip(bounds, counts, strict=True)]


def test_a_rate_is_what_counters_grew_by_in_a_second():
    before = look(10.0, runs=[({"worker": "0"}, 100.0), ({"worker": "1"}, 50.0)])
    after = look(12.0, runs=[({"worker": "0"}, 140.0), ({"worker": "1"}, 60.0)])
    assert Interval(before, after).rate("runs") == 25.0
    assert Interval(before, after).rate("runs", worker="1") == 5.0
    assert Interval(before, after).rate("walks") == 0.0


def test_a_process_that_started_anew_makes_no_rate_negative():
    before = look(10.0, runs=[({"worker": "0"}, 100.0), ({"worker": "1"}, 50.0)])
    after = look(11.0, runs=[({"worker": "0"}, 110.0), ({"worker": "1"}, 7.0), ({"worker": "2"}, 3.0)])
    assert Interval(before, after).grown("runs") == 10 + 7 + 3


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((0, 0, 10, 10), 0.5, 0.055),  # halfway through the third bucket
        ((10, 10, 10, 10), 0.5, 0.0005),
        ((5, 10, 10, 10), 0.75, 0.0055),
        ((0, 0, 0, 10), 0.5, 0.1),  # beyond the last bound: that bound, as Prometheus says
        ((0, 0, 0, 0), 0.5, math.nan),
    ],
)
def test_a_percentile_is_interpolated_within_its_bucket(counts, share, expected):
    interval = Interval(look(0.0), look(1.0, took_bucket=buckets(*counts)))
    assert interval.quantile(share, "took") == pytest.approx(expected, nan_ok=True)


def test_a_percentile_is_of_what_happened_in_between_and_over_all_processes():
    before = look(0.0, took_bucket=buckets(1000, 1000, 1000, 1000, worker="0"))
    after = look(
        1.0,
        took_bucket=[*buckets(1000, 1000, 1005, 1005, worker="0"), *buckets(0, 0, 5, 5, worker="1")],
    )
    assert Interval(before, after).quantile(0.5, "took") == pytest.approx(0.055)
    assert math.isnan(Interval(before, before).quantile(0.5, "took"))


def test_a_mean_is_the_sum_by_the_count():
    before = look(0.0, rows_sum=[({}, 10.0)], rows_count=[({}, 10.0)])
    after = look(1.0, rows_sum=[({}, 90.0)], rows_count=[({}, 20.0)])
    assert Interval(before, after).mean("rows") == 8.0
    assert math.isnan(Interval(after, after).mean("rows"))


def test_the_features_that_moved_most_are_told_with_their_version():
    rows = [
        ({"version": "2", "feature": f"p{number}"}, value)
        for number, value in enumerate((0.1, 0.9, -0.2, 0.3, 0.0, 0.2, 0.4))
    ]

    found = figures(Interval(look(0.0), look(1.0, mlx_drift_psi_adjusted=rows)))["drift"]

    assert [each["feature"] for each in found] == ["p1", "p6", "p3", "p5", "p0"]
    assert found[0] == {"version": "2", "feature": "p1", "worker": "", "psi_adjusted": 0.9}


def test_gpus_that_several_processes_see_are_told_once():
    def seen(value):
        return [({"gpu": "0", "name": "H200", "worker": str(number)}, value) for number in range(3)]

    after = look(1.0, mlx_gpu_utilization_ratio=seen(0.5), mlx_gpu_memory_used_bytes=seen(7.0))
    (gpu,) = figures(Interval(look(0.0), after))["gpus"]
    assert gpu == {"gpu": "0", "name": "H200", "utilization_ratio": 0.5, "memory_used_bytes": 7.0}


@pytest.mark.parametrize(
    ("ready", "expected"), [((1.0, 1.0), (True, 2)), ((1.0, 0.0), (False, 2)), ((), (False, 0))]
)
def test_a_server_is_ready_when_all_its_processes_are(ready, expected):
    rows = [({"worker": str(number)}, value) for number, value in enumerate(ready)]
    found = figures(Interval(look(0.0), look(1.0, **({"mlx_ready": rows} if rows else {}))))
    assert (found["ready"], found["processes"]) == expected
