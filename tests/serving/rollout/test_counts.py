import json
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from mlx_platform.serving.rollout.counts import (
    BUCKETS,
    ArmCounts,
    LatencyHistogram,
    Moments,
    Window,
    slower_p,
)

TIMES = np.random.default_rng(7).lognormal(math.log(0.02), 1.0, 4000)


def histogram(times: object) -> LatencyHistogram:
    found = LatencyHistogram()
    for time in np.asarray(times).tolist():
        found.observe(time)
    return found


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_quantiles_are_known_to_a_bucket(share: float) -> None:
    assert histogram(TIMES).quantile(share) == pytest.approx(np.quantile(TIMES, share), rel=0.05)


def test_nothing_has_no_quantile_and_the_shortest_and_longest_times_are_counted() -> None:
    assert math.isnan(LatencyHistogram().quantile(0.99))
    found = histogram([0.0, -1.0, 1e-9, 1e9])
    assert found.total == 4
    assert max(found.buckets) == BUCKETS - 1
    assert found.quantile(1.0) > 1000


@given(st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 10**9)))
def test_a_histogram_comes_back_from_its_text(buckets: dict[int, int]) -> None:
    found = LatencyHistogram.decode(LatencyHistogram(buckets).encode())

    assert found == LatencyHistogram(buckets)
    assert found.total == sum(buckets.values())


@pytest.mark.parametrize("text", ["x", "5.-1", "5.0", "-1.3", "400.1.1.1.1.1.1.1.1.1.1.1", "1.~x.2", "3."])
def test_text_that_is_no_histogram_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whichever; the caller takes them all
        LatencyHistogram.decode(text)


@pytest.mark.parametrize("factor", [1.0, 1.2, 1.3, 2.0])
def test_ranks_are_compared_as_scipy_does_on_times_divided_by_one_point_two(factor: float) -> None:
    ours, theirs = TIMES[:400] * factor, TIMES[400:1500]
    expected = mannwhitneyu(ours / 1.2, theirs, alternative="greater").pvalue

    assert slower_p(histogram(ours), histogram(theirs)) == pytest.approx(expected, rel=0.25, abs=1e-6)


def test_ties_are_taken_as_ties() -> None:
    ours, theirs = LatencyHistogram({10: 30, 12: 70}), LatencyHistogram({10: 60, 12: 40})
    expected = mannwhitneyu([10] * 30 + [12] * 70, [10] * 60 + [12] * 40, alternative="greater").pvalue

    assert slower_p(ours, theirs, shift=0) == pytest.approx(expected, rel=1e-9)
    assert slower_p(LatencyHistogram({4: 100}), LatencyHistogram({0: 100})) == 1.0
    assert slower_p(LatencyHistogram(), theirs) == slower_p(ours, LatencyHistogram()) == 1.0


def test_outcomes_of_servers_add_up_to_those_of_one() -> None:
    drawn = random.Random(3)  # noqa: S311 - a seed, not a secret
    values = [drawn.gauss(1e6, 2.0) for _ in range(300)]
    parts = [Moments(), Moments(), Moments()]
    for index, value in enumerate(values):
        parts[index % 2].observe(value)
    total = Moments()
    for part in parts:
        total.add(part)

    assert total.count == 300
    assert total.mean == pytest.approx(statistics.fmean(values))
    assert total.variance == pytest.approx(statistics.variance(values), rel=1e-6)
    assert not total.binary


def test_yes_and_no_are_a_share_until_a_number_comes() -> None:
    found = Moments()
    for value in (True, False, True, 1.0):
        found.observe(value)

    assert (found.binary, found.successes, found.count) == (True, 3, 4)
    found.observe(0.5)
    assert not found.binary


def arm(seed: int) -> ArmCounts:
    drawn, found = random.Random(seed), ArmCounts()  # noqa: S311 - a seed, not a secret
    for _ in range(200):
        found.observe(drawn.lognormvariate(-4, 1), failed=drawn.random() < 0.1)
        found.compare([name for name in ("label", "score") if drawn.random() < 0.2])
        found.outcome("clicked", drawn.random() < 0.3)
        found.outcome("minutes", drawn.expovariate(0.1))
    return found


def test_a_window_comes_back_from_json_and_servers_add_up_in_any_order() -> None:
    one, two = (Window(3, {"stable": arm(1), "canary": arm(2)}), Window(3, {"canary": arm(3)}))
    read = Window.from_document(3, json.loads(json.dumps(one.document())))
    assert read.document() == one.document()

    left, right = Window(3), Window(3)
    for window in (one, two):
        left.add(window)
    for window in (two, one):
        right.add(window)

    assert left.arms["canary"].requests == 400
    assert left.arms["canary"].by_output["label"] == sum(arm(seed).by_output["label"] for seed in (2, 3))
    assert left.arms["canary"].latency == right.arms["canary"].latency
    assert left.arms["canary"].outcomes["clicked"].count == 400
    assert one.arms["canary"] == arm(2)  # what was added is not changed
    with pytest.raises(ValueError, match="two windows"):
        left.add(Window(4))


def test_three_arms_of_a_busy_server_fit_into_a_tag() -> None:
    spread = LatencyHistogram({index: 40_000 + 997 * index for index in range(60, 310)})
    arms = {
        name: ArmCounts(10**8, 10**6, spread, 10**7, 10**5, {"label": 10**5}) for name in ("stable", "canary")
    }
    window = Window(1, {**arms, "shadow": arms["canary"]})

    assert len(json.dumps(window.document())) < 5000


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"n": -1},
        {"n": True},
        {"n": 1, "e": 2},
        {"c": 1, "d": 2},
        {"n": 1 << 60},
        {"l": 5},
        {"o": []},
        {"f": {"x": [1, 2]}},
        {"f": {"x": [1, float("inf"), 0, 1]}},
        {"f": {"x": [1, 0, -1, 1]}},
        {"f": 3},
    ],
)
def test_what_are_no_counts_is_refused(document: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whichever; the caller takes them all
        ArmCounts.from_document(document)
    with pytest.raises(ValueError):  # noqa: PT011
        Window.from_document(0, {"canary": document} if document is not None else None)
