"""What is counted of a rollout, and what is not."""

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from rollout_stage import NOON, ROW, make_rollout, play, shuffled, until

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.serving.devices.standby import RULE_ARM
from mlx_platform.serving.identity import Identity
from mlx_platform.serving.rollout import observer as module
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.failing import failed
from mlx_platform.serving.rollout.plan import AbRule, MetricRule
from mlx_platform.serving.router import Split
from mlx_platform.traffic.feedback import Feedback

WEIGHT = {"state": "STEP", "step": 1, "weight": 50.0, "shadow": 0.0}
HALF = Split("r-1", 50.0, 0.0, b"", lambda _seed, key, _percent: key.endswith("1"))


@pytest.fixture
def folders(packages):
    return packages["table"], packages["table"]


def told(request_id="r", version="", **outcomes):
    return Feedback(request_id=request_id, outcomes=outcomes, time=NOON, version=version)


def with_business(rollout, *metrics):
    rules = tuple(MetricRule(name, "business", of=name, max_drop=0.1, on="weight") for name in metrics)
    return replace(rollout, plan=replace(rollout.plan, metrics=rules))


def test_each_request_counts_for_the_version_that_answered_it(folders):
    async def scenario(stage):
        stage.router.split = HALF
        stage.arms.follow(make_rollout(**WEIGHT), None)
        for number in range(10):
            await stage.ask(request_id=f"r-{number % 2}")
        return stage.arms.window

    window = play(folders, scenario)
    assert {name: counts.requests for name, counts in window.arms.items()} == {"stable": 5, "canary": 5}
    assert all(counts.errors == 0 for counts in window.arms.values())
    assert window.arm("canary").latency.total == 5


def test_nothing_is_counted_without_a_rollout_or_of_a_third_version(folders):
    async def scenario(stage):
        await stage.ask()
        stage.arms.follow(make_rollout(stable=7, candidate=8), None)
        await stage.ask()
        stage.arms.leave()
        await stage.ask()
        return stage.arms.window

    assert play(folders, scenario).arms == {}


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("The model cannot run these."), 400), (UnavailableError("no"), 503)]
)
def test_a_network_that_refuses_or_breaks_has_failed(folders, error, status):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        stage.stable.error = error
        found = await stage.ask()
        return found, stage.arms.window.arm("stable")

    found, counts = play(folders, scenario)
    assert found == status
    assert (counts.requests, counts.errors) == (1, 1)


def test_what_the_client_got_wrong_says_nothing_about_a_version(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        assert await stage.ask([{"a": "x", "b": 2, "c": 3, "d": 4}]) == 400
        return stage.arms.window

    assert play(folders, scenario).arms == {}


def test_an_answer_with_nan_has_failed_although_it_was_given(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        stage.stable.change = lambda array: array * np.float32("nan")
        await stage.ask()
        return stage.arms.window.arm("stable")

    counts = play(folders, scenario)
    assert (counts.requests, counts.errors) == (1, 1)


@pytest.mark.parametrize("rows", [1, module.LARGE_BYTES])
def test_a_long_answer_is_looked_through_beside_the_event_loop(folders, monkeypatch, rows):
    threads = []

    def noting(exchange, status):
        threads.append(threading.current_thread())
        return failed(exchange, status)

    monkeypatch.setattr(module, "failed", noting)

    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        served = stage.pair[0]
        exchange = served.open("r", "predict", {}, None)
        await served.predict([ROW], exchange)
        exchange.outputs = {"x": np.full(rows, np.nan)}
        stage.router.finish(served, exchange, status=200, error="")
        await until(lambda: not stage.arms._looking)
        return stage.arms.window.arm("stable")

    counts = play(folders, scenario)
    assert (counts.requests, counts.errors) == (1, 1)
    assert [thread is threading.current_thread() for thread in threads] == [rows == 1]


def test_a_long_answer_does_not_count_for_a_window_that_began_meanwhile(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        served = stage.pair[0]
        exchange = served.open("r", "predict", {}, None)
        await served.predict([ROW], exchange)
        exchange.outputs = {"x": np.zeros(module.LARGE_BYTES)}
        stage.router.finish(served, exchange, status=200, error="")
        stage.arms.follow(replace(make_rollout(**WEIGHT), window=2), None)
        await until(lambda: not stage.arms._looking)
        return stage.arms.window

    assert play(folders, scenario).arms == {}


def test_an_answer_of_a_fixed_rule_is_a_failure_of_the_version(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        served = stage.pair[0]
        exchange = served.open("r", "predict", {}, None)
        await served.predict([ROW], exchange)
        exchange.identity = Identity.of(served.engine.model, RULE_ARM, "rule")
        stage.router.finish(served, exchange, status=200, error="")
        return stage.arms.window.arm("stable")

    counts = play(folders, scenario)
    assert (counts.requests, counts.errors) == (1, 1)


def test_an_answer_out_of_the_cache_says_nothing_about_a_version(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        exchange = stage.pair[0].open("r", "predict", {}, None)
        await stage.pair[0].predict([ROW], exchange)
        exchange.cache = "hit"
        stage.router.finish(stage.pair[0], exchange, status=200, error="")
        return stage.arms.window

    assert play(folders, scenario).arms == {}


def test_a_request_for_a_version_by_name_is_not_counted(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        exchange = stage.pair[1].open("r", "predict", {}, None)
        exchange.pinned = True
        await stage.pair[1].predict([ROW], exchange)
        stage.router.finish(stage.pair[1], exchange, status=200, error="")
        return stage.arms.window

    assert play(folders, scenario).arms == {}


def test_the_first_requests_of_each_arm_are_left_out_in_each_window(folders):
    async def scenario(stage):
        stage.router.split = HALF
        rollout = make_rollout(**WEIGHT)
        rollout = replace(rollout, plan=replace(rollout.plan, warmup_requests=3))
        found = []
        for window in (1, 2):
            stage.arms.follow(replace(rollout, window=window), None)
            for number in range(10):
                await stage.ask(request_id=f"r-{number % 2}")
            arms = stage.arms.window.arms
            found.append((stage.arms.window.number, arms["stable"].requests, arms["canary"].requests))
        return found

    assert play(folders, scenario) == [(1, 2, 2), (2, 2, 2)]


def test_the_first_seconds_are_left_out_however_many_requests_they_bring(folders, monkeypatch):
    async def scenario(stage):
        rollout = make_rollout(**WEIGHT)
        stage.arms.follow(replace(rollout, plan=replace(rollout.plan, warmup_s=3600.0)), None)
        for _ in range(5):
            await stage.ask()
        before = dict(stage.arms.window.arms)
        stage.arms._opened -= 3600
        await stage.ask()
        return before, stage.arms.window.arm("stable").requests

    assert play(folders, scenario) == ({}, 1)


def test_nothing_counts_while_the_candidate_does_not_answer_its_share(folders):
    async def scenario(stage):
        rollout = with_business(make_rollout(**WEIGHT), "bought")
        stage.arms.divide(divided=False)
        stage.arms.follow(rollout, None)
        await stage.ask(request_id="early")
        stage.arms.divide(divided=True)
        await stage.ask(request_id="later")
        fates = [stage.arms.take(told(name, bought=True)) for name in ("early", "later")]
        return fates, stage.arms.window.arm("stable").requests

    assert play(folders, scenario) == (["unknown", "counted"], 1)


def test_what_became_of_requests_of_the_warm_up_counts_for_nothing(folders):
    async def scenario(stage):
        rollout = with_business(make_rollout(**WEIGHT), "bought")
        stage.arms.follow(replace(rollout, plan=replace(rollout.plan, warmup_requests=2)), None)
        names = [f"r-{number}" for number in range(4)]
        for name in names:
            await stage.ask(request_id=name)
        fates = [stage.arms.take(told(name, bought=True)) for name in names]
        return fates, stage.arms.window.arm("stable").requests

    assert play(folders, scenario) == (["unknown", "unknown", "counted", "counted"], 2)


def test_a_request_that_began_before_its_window_does_not_count(folders):
    async def scenario(stage):
        served = stage.pair[0]
        exchange = served.open("r", "predict", {}, None)
        await served.predict([ROW], exchange)
        stage.arms.follow(make_rollout(**WEIGHT), None)
        stage.router.finish(served, exchange, status=200, error="")
        return stage.arms.window

    assert play(folders, scenario).arms == {}


def test_another_state_of_the_same_window_goes_on_counting(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        await stage.ask()
        stage.arms.follow(make_rollout(**WEIGHT | {"state": "PAUSED"}), None)
        await stage.ask()
        return stage.arms.window.arm("stable").requests

    assert play(folders, scenario) == 2


def test_while_baking_the_candidate_is_counted_although_it_answers_everybody(folders):
    async def scenario(stage):
        stage.router.switch(stage.pair[1])
        stage.arms.follow(make_rollout(state="BAKING", step=1, weight=100.0, shadow=0.0), None)
        await stage.ask()
        return stage.arms.window

    window = play(folders, scenario)
    assert list(window.arms) == ["canary"]


def test_feedback_counts_once_for_the_arm_that_answered(folders):
    async def scenario(stage):
        stage.router.split = HALF
        stage.arms.follow(with_business(make_rollout(**WEIGHT), "bought"), None)
        for request_id in ("a-0", "a-1", "b-1"):
            await stage.ask(request_id=request_id)
        fates = [
            stage.arms.take(told("a-0", bought=True)),
            stage.arms.take(told("a-1", bought=True)),
            stage.arms.take(told("b-1", bought=False)),
            stage.arms.take(told("a-1", bought=True)),
            stage.arms.take(told("a-1", bought=False)),
            stage.arms.take(told("c-1", bought=True)),
            stage.arms.take(told("a-1", clicked=True)),
            stage.arms.take(told("b-1", label="low")),
            stage.arms.take(told("c-1", "2", bought=True)),
            stage.arms.take(told("c-1", "2", bought=True)),
            stage.arms.take(told("d-1", "9", bought=True)),
        ]
        return fates, stage.arms.window, dict(stage.arms.fates)

    fates, window, sums = play(folders, scenario)
    assert fates == [
        *("counted", "counted", "counted", "repeated", "contradicted", "unknown", "other", "other"),
        *("counted", "repeated", "unknown"),
    ]
    stable, canary = (window.arm(arm).outcomes["bought"] for arm in ("stable", "canary"))
    assert (stable.count, stable.mean, canary.count, canary.successes) == (1, 1.0, 3, 2)
    assert sums["counted"] == 4


def test_feedback_about_an_earlier_window_comes_too_late(folders):
    async def scenario(stage):
        rollout = with_business(make_rollout(**WEIGHT), "bought")
        stage.arms.follow(rollout, None)
        await stage.ask(request_id="a")
        await stage.ask(request_id="b")
        stage.arms.follow(replace(rollout, window=2), None)
        late = stage.arms.take(told("a", bought=True))
        stage.arms.leave()
        return late, stage.arms.take(told("b", bought=True)), stage.arms.take(told("c", "1", bought=True))

    assert play(folders, scenario) == ("late", "late", "unknown")


def test_what_became_of_a_request_before_the_window_is_late_whoever_answered_it(folders):
    async def scenario(stage):
        rollout = with_business(make_rollout(**WEIGHT), "bought")
        stage.arms.follow(replace(rollout, window=2, step_since=NOON + timedelta(seconds=1)), None)
        early = stage.arms.take(told("a", "2", bought=True))
        entry = replace(told("a", "2", bought=True), time=NOON + timedelta(seconds=1))
        return early, stage.arms.take(entry), stage.arms.window.arm("canary").outcomes["bought"].count

    assert play(folders, scenario) == ("late", "counted", 1)


def test_the_metric_of_an_ab_test_counts_numbers_and_keeps_their_spread(folders):
    async def scenario(stage):
        rollout = make_rollout(**WEIGHT)
        rollout = replace(rollout, plan=replace(rollout.plan, ab=AbRule("spent", deviation=5.0)))
        stage.arms.follow(rollout, None)
        for number, spent in enumerate((10.0, 20.0, 60)):
            await stage.ask(request_id=f"a-{number}")
            assert stage.arms.take(told(f"a-{number}", spent=spent)) == "counted"
        return stage.arms.window.arm("stable").outcomes["spent"]

    moments = play(folders, scenario)
    assert (moments.count, moments.mean, moments.binary) == (3, 30.0, False)
    assert moments.variance == pytest.approx(700)


def test_no_more_requests_are_remembered_than_the_settings_say(folders):
    async def scenario(stage):
        stage.arms.follow(with_business(make_rollout(**WEIGHT), "bought"), None)
        for number in range(60):
            await stage.ask(request_id=f"a-{number}")
        return [stage.arms.take(told(f"a-{number}", bought=True)) for number in range(60)]

    fates = play(folders, scenario, feedback={"remembered": 20})
    assert fates[-10:] == ["counted"] * 10
    assert fates[:40] == ["unknown"] * 40


def test_requests_that_nobody_can_tell_of_are_not_remembered(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        await stage.ask(request_id="a")
        return len(stage.arms._outcomes._answered)

    assert play(folders, scenario) == 0


def test_another_rollout_starts_with_nothing(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.change = shuffled
        await stage.ask()
        await stage.settle()
        shown = len(stage.arms.differences())
        stage.arms.follow(make_rollout(id="r-2", **WEIGHT), None)
        return shown, stage.arms.differences(), stage.arms.window

    assert play(folders, scenario) == (1, [], Window(1))


def test_the_sums_go_on_over_windows_and_rollouts(folders):
    async def scenario(stage):
        for name in ("r-1", "r-2"):
            stage.arms.follow(make_rollout(id=name), stage.pair)
            await stage.ask()
            await stage.settle()
        return {(sample.name, *dict(sample.labels).values()): sample.value for sample in stage.arms.samples()}

    samples = play(folders, scenario)
    assert samples["mlx_rollout_requests", "stable"] == samples["mlx_rollout_requests", "shadow"] == 2
    assert samples["mlx_rollout_errors", "shadow"] == 0
    assert samples["mlx_feedback", "unknown"] == 0


def test_who_leaves_before_the_answer_counts_with_the_time_it_waited(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(**WEIGHT), None)
        stage.stable.may_go.clear()
        served = stage.pair[0]
        exchange = served.open("r", "predict", {}, None)
        work = asyncio.ensure_future(served.predict([ROW], exchange))
        await asyncio.sleep(0.02)
        served.abandon(exchange)
        stage.stable.may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        stage.router.finish(served, exchange, status=499, error="The client left.")
        return stage.arms.window.arm("stable")

    counts = play(folders, scenario)
    assert (counts.requests, counts.errors) == (1, 0)
    assert counts.latency.quantile(0.5) >= 0.015


def test_a_fault_in_the_counting_costs_nobody_the_answer(folders, monkeypatch, caplog):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        monkeypatch.setattr(stage.arms, "_count", None)
        monkeypatch.setattr(stage.arms._shadow, "offer", None)
        return await stage.ask()

    assert play(folders, scenario) == 200
    assert "could not be counted" in caplog.text
    assert "could not be copied" in caplog.text
