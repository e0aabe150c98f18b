"""Copies: every one is accounted for, and whatever the candidate does with them, callers do not notice."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from rollout_stage import ROW, make_rollout, play, shuffled, until

from mlx_platform.core.errors import UnavailableError
from mlx_platform.serving.devices.standby import FALLBACK_ARM
from mlx_platform.serving.identity import Identity
from mlx_platform.serving.protocol_v2 import InferRequest
from mlx_platform.serving.rollout import replays
from mlx_platform.serving.rollout import shadow as module
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.writer import TrafficWriter


@pytest.fixture
def folders(packages):
    return packages["table"], packages["table"]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(replays, "_SECONDS", 0.01)


def sums(stage):
    return {
        (sample.name.removeprefix("mlx_rollout_copies_"), *dict(sample.labels).values()): sample.value
        for sample in stage.arms._shadow.samples()
    }


def test_each_request_is_copied_and_the_same_answers_agree(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        for number in range(20):
            assert await stage.ask(request_id=f"r-{number}") == 200
        await stage.settle()
        return stage.arms.window, stage.candidate.runs, sums(stage), stage.arms.differences()

    window, runs, counts, differences = play(folders, scenario)
    shadow = window.arm("shadow")
    assert (shadow.requests, shadow.errors, shadow.compared, shadow.disagreed) == (20, 0, 20, 0)
    assert shadow.latency.total == 20
    assert window.arm("stable").requests == 20
    assert "canary" not in window.arms
    assert counts[("sent",)] == 20
    assert 10 <= runs <= 20  # two copies may share a run
    assert differences == []


def test_a_copy_is_made_after_the_turn_in_which_the_answer_is_written(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        await stage.ask()
        shadow = stage.arms._shadow
        noted = (len(shadow._fresh), len(shadow._queue), shadow.sent)
        await stage.settle()
        return noted, shadow.sent

    assert play(folders, scenario) == ((1, 0, 0), 1)


def test_other_labels_are_disagreements_and_the_worst_of_them_are_kept(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.change = shuffled
        for number in range(5):
            assert await stage.ask(request_id=f"r-{number}") == 200
        await stage.settle()
        return stage.arms.window.arm("shadow"), stage.arms.differences()

    counts, differences = play(folders, scenario)
    assert (counts.compared, counts.disagreed, counts.errors) == (5, 5, 0)
    assert counts.by_output["label"] == 5
    assert len(differences) == 5
    assert differences[0]["stable"]["label"] != differences[0]["candidate"]["label"]


def test_tensors_are_copied_with_the_outputs_that_were_asked_for(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.change = shuffled
        served = stage.pair[0]
        exchange = served.open("r", "infer", {}, None)
        feeds = {"x": np.float32([[1, 2, 3, 4]])}
        await served.infer(InferRequest(None, feeds, {}, ("probabilities",), frozenset(), None), exchange)
        stage.router.finish(served, exchange, status=200, error="")
        await stage.settle()
        return stage.arms.window.arm("shadow")

    counts = play(folders, scenario)
    assert (counts.compared, counts.disagreed) == (1, 1)
    assert counts.by_output == {"probabilities": 1}


@pytest.mark.parametrize("broken", [UnavailableError("The device is gone."), ValueError("A fault.")])
def test_a_candidate_that_breaks_is_counted_and_no_caller_hears_of_it(folders, broken, caplog):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.error = broken
        statuses = [await stage.ask(request_id=f"r-{number}") for number in range(5)]
        await stage.settle()
        return statuses, stage.arms.window

    statuses, window = play(folders, scenario)
    assert statuses == [200] * 5
    shadow = window.arm("shadow")
    assert (shadow.requests, shadow.errors, shadow.compared) == (5, 5, 0)
    assert window.arm("stable").errors == 0


def test_an_answer_with_infinity_is_an_error_of_the_candidate(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.change = lambda array: array * np.float32("inf")
        await stage.ask()
        await stage.settle()
        return stage.arms.window.arm("shadow")

    counts = play(folders, scenario)
    assert (counts.errors, counts.compared) == (1, 0)


def test_a_request_that_the_candidate_does_not_take_is_a_disagreement(packages):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        await stage.ask()
        await stage.settle()
        return stage.arms.window.arm("shadow")

    counts = play((packages["table"], packages["lookup"]), scenario)
    assert (counts.requests, counts.errors, counts.by_output) == (1, 0, {"refused": 1})


def test_a_candidate_that_hangs_slows_nobody_and_the_rest_is_dropped(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.may_go.clear()
        statuses = [await stage.ask(request_id=f"r-{number}") for number in range(20)]
        await asyncio.sleep(0.05)
        hanging = sums(stage)
        await until(lambda: stage.arms.window.arm("shadow").errors > 0)  # their deadlines pass
        stage.candidate.may_go.set()
        return statuses, hanging, stage.arms.window.arm("stable")

    statuses, hanging, stable = play(
        folders, scenario, request_timeout_ms=300.0, shadow={"max_copies": 4, "max_in_flight": 2}
    )
    assert statuses == [200] * 20
    assert hanging[("in_flight",)] <= 2
    assert hanging[("waiting",)] <= 4
    assert hanging["dropped", "queue"] == 20 - hanging[("waiting",)] - hanging[("sent",)] > 0
    assert (stable.requests, stable.errors) == (20, 0)


def test_copies_wait_while_the_stable_version_has_work(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.stable.may_go.clear()
        waiting = asyncio.ensure_future(stage.ask(request_id="slow"))
        await asyncio.sleep(0.02)
        workers = stage.pair[0].engine.batcher.policy.workers
        more = [asyncio.ensure_future(stage.ask(request_id=f"s-{n}")) for n in range(workers)]
        await asyncio.sleep(0.02)
        served = stage.pair[0]
        answered = served.open("r", "predict", {}, None)
        answered.inputs = {name: np.array([float(value)]) for name, value in ROW.items()}
        stage.arms.copy(served, answered)
        await asyncio.sleep(0.1)
        held = sums(stage)
        stage.stable.may_go.set()
        await asyncio.gather(waiting, *more)
        await stage.settle()
        return held, sums(stage)

    held, after = play(folders, scenario)
    assert (held[("sent",)], held[("waiting",)]) == (0, 1)
    assert after[("waiting",)] == 0
    assert after[("sent",)] >= 1


def test_on_a_server_that_is_never_idle_a_copy_goes_now_and_then(folders, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.0)

    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        shadow = stage.arms._shadow
        monkeypatch.setattr(shadow, "_is_idle", lambda: False)
        for number in range(5):
            await stage.ask(request_id=f"r-{number}")
        await asyncio.sleep(0.1)
        once = shadow.sent
        shadow._busy_again = 0.0
        await asyncio.sleep(0.1)
        return once, shadow.sent, shadow.waiting

    assert play(folders, scenario) == (1, 2, 3)


class Untouchable(np.ndarray):
    """An array that nobody may copy."""

    def copy(self, *_):
        raise MemoryError


def test_what_does_not_fit_is_not_even_copied(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        served = stage.pair[0]
        exchange = served.open("r", "predict", {}, None)
        await served.predict([ROW], exchange)
        exchange.outputs = {"x": np.zeros(20_000).view(Untouchable)}
        stage.router.finish(served, exchange, status=200, error="")
        await stage.settle()
        return sums(stage)

    assert play(folders, scenario, shadow={"max_bytes": 40_000})["dropped", "bytes"] == 1


def test_copies_that_hold_too_much_memory_are_dropped(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.may_go.clear()
        rows = [ROW] * 200
        for number in range(10):
            await stage.ask(rows, request_id=f"r-{number}")
        await asyncio.sleep(0.05)
        shadow = stage.arms._shadow
        held = shadow._held
        stage.candidate.may_go.set()
        await stage.settle()
        return sums(stage), held, shadow._held

    counts, held, after = play(folders, scenario, shadow={"max_bytes": 40_000})
    assert counts["dropped", "bytes"] > 0
    assert 0 < held <= 40_000
    assert after == 0


def test_a_share_of_the_requests_is_copied_always_the_same_one(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(shadow=30.0), stage.pair)
        for number in range(200):
            await stage.ask(request_id=f"r-{number}")
        await stage.settle()
        first = stage.arms.window.arm("shadow").requests
        for number in range(200):
            await stage.ask(request_id=f"r-{number}")
        await stage.settle()
        return first, stage.arms.window.arm("shadow").requests

    first, both = play(folders, scenario)
    assert 35 <= first <= 85
    assert both == 2 * first


def test_what_the_stable_version_did_not_say_itself_is_not_copied(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        served = stage.pair[0]
        for change in (
            {"cache": "semantic"},
            {"identity": Identity.of(served.engine.model, FALLBACK_ARM, "fallback")},
        ):
            exchange = served.open("r", "predict", {}, None)
            await served.predict([ROW], exchange)
            for name, value in change.items():
                setattr(exchange, name, value)
            stage.router.finish(served, exchange, status=200, error="")
        assert await stage.ask([{"a": "x", "b": 1, "c": 1, "d": 1}]) == 400
        await stage.settle()
        return sums(stage)

    counts = play(folders, scenario)
    assert counts[("sent",)] == 0
    assert sum(value for name, value in counts.items() if name[0] == "dropped") == 0


def test_copies_go_past_the_cache_and_behind_everybody_else(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        seen = []
        answer = stage.pair[1].engine.answer

        async def look(columns, exchange, began):
            seen.append((exchange.skip_cache, exchange.priority, exchange.arm))
            return await answer(columns, exchange, began)

        stage.pair[1].engine.answer = look
        await stage.ask()
        await stage.settle()
        return seen

    assert play(folders, scenario) == [(True, 2, "shadow")]


def test_the_answers_to_copies_are_in_the_traffic_log_under_the_same_request(folders, tmp_path):
    def writer(version):
        return TrafficWriter(
            tmp_path / "traffic", model="table", version=version, queue_bytes=2**26, disk_bytes=2**30
        )

    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        await stage.ask(request_id="r-1")
        await stage.settle()

    writers = (writer("1"), writer("2"))
    play(folders, scenario, writers=writers)
    for each in writers:
        each.close()
    records, _ = read_log(tmp_path / "traffic")
    found = {(record.request_id, record.version, record.arm): record for record in records}
    assert set(found) == {("r-1", "1", "production"), ("r-1", "2", "shadow")}
    ours, theirs = found["r-1", "1", "production"], found["r-1", "2", "shadow"]
    assert ours.inputs == theirs.inputs
    assert ours.outputs == theirs.outputs
    assert theirs.timings_ms["total"] > 0


def test_when_the_copying_ends_nothing_more_is_counted_and_what_waited_is(folders):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.may_go.clear()
        for number in range(6):
            await stage.ask(request_id=f"r-{number}")
        await asyncio.sleep(0.05)
        shadow = stage.arms._shadow
        stage.arms.follow(make_rollout(state="STEP", step=1, window=2, weight=5.0, shadow=0.0), stage.pair)
        await stage.ask(request_id="more")
        stage.candidate.may_go.set()
        await asyncio.sleep(0.05)
        return shadow.sent, shadow.dropped["closed"], shadow.waiting, shadow.in_flight, stage.arms.window

    sent, closed, waiting, in_flight, window = play(folders, scenario)
    assert (waiting, in_flight, closed) == (0, 0, 6)
    assert 1 <= sent <= 2
    assert list(window.arms) == ["stable"]


def test_a_copy_of_an_earlier_window_does_not_count_in_the_next(folders):
    async def scenario(stage):
        rollout = make_rollout()
        stage.arms.follow(rollout, stage.pair)
        stage.candidate.may_go.clear()
        await stage.ask()
        await asyncio.sleep(0.05)
        stage.arms.follow(replace(rollout, window=2), stage.pair)
        stage.candidate.may_go.set()
        await stage.settle()
        await stage.ask(request_id="r-2")
        await stage.settle()
        return stage.arms.window

    assert play(folders, scenario).arm("shadow").requests == 1


def test_the_warm_up_of_the_copies_is_left_out_of_every_count(folders):
    async def scenario(stage):
        rollout = make_rollout()
        stage.arms.follow(replace(rollout, plan=replace(rollout.plan, warmup_requests=3)), stage.pair)
        for number in range(5):
            await stage.ask(request_id=f"r-{number}")
        await stage.settle()
        return stage.arms.window.arm("shadow")

    counts = play(folders, scenario)
    assert (counts.requests, counts.compared) == (2, 2)


def test_a_large_answer_is_compared_beside_the_loop(packages):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        stage.candidate.change = lambda array: array + 1
        served = stage.pair[0]
        exchange = served.open("r", "infer", {}, None)
        feeds = {"x": np.zeros((2, 50_000), np.float32)}
        await served.infer(InferRequest(None, feeds, {}, ("y",), frozenset(), None), exchange)
        stage.router.finish(served, exchange, status=200, error="")
        await stage.settle()
        return stage.arms.window.arm("shadow"), stage.arms.differences()

    counts, (difference,) = play((packages["identity"], packages["identity"]), scenario)
    assert (counts.compared, counts.disagreed) == (1, 1)
    assert difference["severity"] == 1.0


def test_a_text_weighs_what_it_holds(folders):
    weigh = module._weight
    texts = np.array(["a" * 1000, b"b" * 500, None], object)
    assert weigh(texts) >= 1500
    assert weigh(np.zeros((10, 10), np.float32)) == 400


def test_copies_are_counted_some_at_a_time(folders, monkeypatch):
    monkeypatch.setattr(replays, "_SECONDS", 3600.0)

    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        shadow, seen = stage.arms._shadow, set()
        for number in range(32):
            await stage.ask(request_id=f"r-{number}")
            await until(lambda: not shadow.waiting and not shadow.in_flight)
            await until(lambda: shadow._replays._task is None)
            seen.add(stage.arms.window.arm("shadow").requests)
        return seen, shadow._held

    assert play(folders, scenario) == ({0, 16, 32}, 0)


def test_a_fault_in_one_comparison_does_not_take_the_others_along(folders, monkeypatch, caplog):
    async def scenario(stage):
        stage.arms.follow(make_rollout(), stage.pair)
        compare = stage.arms._comparer.compare
        faults = iter([True])

        def falter(ours, theirs):
            if next(faults, False):
                raise ValueError("A fault.")
            return compare(ours, theirs)

        monkeypatch.setattr(stage.arms._comparer, "compare", falter)
        for number in range(3):
            await stage.ask(request_id=f"r-{number}")
        await stage.settle()
        return stage.arms.window.arm("shadow").compared, stage.arms._shadow._held

    assert play(folders, scenario) == (2, 0)
    assert "could not be counted" in caplog.text
