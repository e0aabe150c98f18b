"""Batches that fail: by one request, by many, by the device, by memory, by hanging."""

import asyncio
import threading
import time
from typing import Any

import pytest
from batching import POISON, Recorder, Small, ask, run

from mlx_platform.core.errors import DeadlineError, UnavailableError, UsageError
from mlx_platform.serving.batcher import Batcher


@pytest.mark.parametrize("culprits", [[0], [5], [15], [3, 4], list(range(16))])
def test_only_the_culprits_of_a_failing_batch_get_an_error(culprits):
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        jobs = [ask(batcher, POISON if index in culprits else index) for index in range(16)]
        for index, job in enumerate(jobs):
            if index in culprits:
                with pytest.raises(UsageError, match="poison"):
                    await job.future
            else:
                assert (await job.future).outputs["y"].tolist() == [[2 * index]]
        assert batcher.split_batches == 1

    run(scenario, model)
    assert len(model.runs) <= 31


def test_the_first_error_of_a_split_request_answers_for_all_of_it():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        neighbour = ask(batcher, 1)
        with pytest.raises(UsageError):
            await ask(batcher, *[float(value) for value in range(10)], POISON, POISON).future
        assert (await neighbour.future).outputs["y"].tolist() == [[2]]

    run(scenario, model, max_rows=3)


def test_a_lone_run_may_take_all_the_time_that_is_left_and_a_shared_one_half_of_it():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        await ask(batcher, 0, wait=8.0).future
        await asyncio.gather(ask(batcher, 1, wait=8.0).future, ask(batcher, 2, wait=4.0).future)

    run(scenario, model)
    assert model.timeouts[0] == pytest.approx(8, abs=1)
    assert model.timeouts[1] == pytest.approx(2, abs=1)


def test_a_run_that_hangs_costs_its_neighbours_nothing():
    calls = []

    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        calls.append(len(feeds["x"]))
        if (feeds["x"] == POISON).any():
            time.sleep(min(timeout, 0.2))
            raise DeadlineError("ended by the watchdog")
        return {"y": 2 * feeds["x"]}

    async def scenario(batcher: Batcher) -> None:
        good = [ask(batcher, value) for value in range(7)]
        bad = ask(batcher, POISON, wait=2.0)
        for value, job in enumerate(good):
            assert (await job.future).outputs["y"].tolist() == [[2 * value]]
        with pytest.raises(DeadlineError):
            await bad.future

    run(scenario, model)
    assert calls[0] == 8


def test_a_run_that_hangs_leaves_time_to_those_behind_it_and_is_tried_again_after_them():
    runs = []

    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        runs.append((feeds["x"].reshape(-1).tolist(), timeout))
        if (feeds["x"] == POISON).any():
            raise DeadlineError("ended by the watchdog")
        return {"y": 2 * feeds["x"]}

    async def scenario(batcher: Batcher) -> None:
        bad, good = ask(batcher, POISON, wait=8.0), ask(batcher, 1, wait=8.0)
        assert (await good.future).outputs["y"].tolist() == [[2]]
        with pytest.raises(DeadlineError):
            await bad.future

    run(scenario, model)
    assert [rows for rows, _ in runs] == [[POISON, 1], [POISON], [1], [POISON]]
    assert [timeout for _, timeout in runs] == pytest.approx([4, 4, 4, 8], abs=1)


def test_outputs_without_the_rows_of_the_inputs_make_every_request_run_alone(caplog):
    runs = []

    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        runs.append(len(feeds["x"]))
        return {"y": feeds["x"].mean(axis=0, keepdims=True)}

    async def scenario(batcher: Batcher) -> None:
        jobs = [ask(batcher, 1, 3), ask(batcher, 5, 7)]
        assert [(await job.future).outputs["y"].tolist() for job in jobs] == [[[2]], [[6]]]
        jobs = [ask(batcher, 1, 3), ask(batcher, 5, 7), ask(batcher, *range(9))]
        assert [(await job.future).outputs["y"].tolist() for job in jobs] == [[[2]], [[6]], [[4]]]

    run(scenario, model, max_rows=4)
    assert runs == [4, 2, 2, 2, 2, 9]
    assert len(caplog.records) == 1


def test_a_split_request_that_is_not_rowwise_is_run_again_as_a_whole():
    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        return {"y": feeds["x"].mean(axis=0, keepdims=True)}

    async def scenario(batcher: Batcher) -> None:
        assert (await ask(batcher, *range(9)).future).outputs["y"].tolist() == [[4]]

    run(scenario, model, max_rows=4)


def test_when_memory_runs_out_the_batch_is_halved_and_the_limit_kept(caplog):
    model = Small(3)

    async def scenario(batcher: Batcher) -> None:
        for _ in range(2):
            jobs = [ask(batcher, value) for value in range(16)]
            for value, job in enumerate(jobs):
                assert (await job.future).outputs["y"].tolist() == [[2 * value]]
        other = [ask(batcher, value, width=2) for value in range(3)]
        await asyncio.gather(*[job.future for job in other])
        assert batcher.starved_batches == 3
        assert batcher.split_batches == 0

    run(scenario, model, max_rows=16)
    sizes = [len(rows) for rows in model.runs]
    assert sizes == [16, 8, 4, *[2] * 8, *[2] * 8, 3]
    assert len(caplog.records) == 3


def test_a_long_request_for_which_memory_runs_out_is_taken_in_parts_and_put_together():
    model = Small(3)

    async def scenario(batcher: Batcher) -> None:
        for _ in range(2):
            answer = await ask(batcher, *range(20)).future
            assert answer.outputs["y"][:, 0].tolist() == [2 * value for value in range(20)]

    run(scenario, model, max_rows=8)
    assert max(len(rows) for rows in model.runs[-10:]) == 2


def test_parts_of_parts_leave_the_queue_with_their_request():
    model = Small(3)

    async def scenario(batcher: Batcher) -> None:
        gone = ask(batcher, *range(16))
        while not any(part.parts for part in gone.parts):  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0)
        batcher.abandon(gone)
        model.runs.clear()
        assert batcher.queued_rows == 0
        assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[2]]

    run(scenario, model, max_rows=8)
    assert model.runs[-1] == [1]
    assert len(model.runs) <= 2  # one may have begun already


def test_a_single_row_for_which_memory_runs_out_fails_alone():
    model = Small(0)

    async def scenario(batcher: Batcher) -> None:
        jobs = [ask(batcher, value) for value in range(4)]
        for job in jobs:
            with pytest.raises(MemoryError):
                await job.future
        model.fits = 100
        assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[2]]

    run(scenario, model)


def test_what_finds_no_memory_alone_is_run_once_more_with_nothing_beside_it():
    model = Small(0)
    together = []
    running: set[int] = set()

    def watched(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        running.add(me := threading.get_ident())
        try:
            together.append((feeds["x"][0, 0], len(running)))
            if feeds["x"][0, 0] == 7:
                return model(feeds, outputs, timeout)
            time.sleep(0.05)
            return {"y": feeds["x"]}
        finally:
            running.discard(me)

    async def scenario(batcher: Batcher) -> None:
        others = [ask(batcher, value, width=2 + value) for value in range(3)]
        large = ask(batcher, 7)
        others += [ask(batcher, value, width=2 + value) for value in range(3, 6)]
        with pytest.raises(MemoryError):
            await large.future
        await asyncio.gather(*[job.future for job in others])

    run(scenario, watched, workers=3)
    tries = [count for value, count in together if value == 7]
    assert len(tries) == 2
    assert tries[1] == 1
    assert max(count for _, count in together) > 1


def test_larger_batches_are_tried_again_in_time(monkeypatch):
    model = Small(3)

    async def scenario(batcher: Batcher) -> None:
        await asyncio.gather(*[ask(batcher, value).future for value in range(8)])
        model.fits = 100
        monkeypatch.setattr("mlx_platform.serving.grouping._RECOVERY_SECONDS", -1.0)
        await asyncio.gather(*[ask(batcher, value).future for value in range(4)])  # the limit is still young
        for group in batcher._waiting._groups.values():
            group.limit_until = 0.0
        model.runs.clear()
        await asyncio.gather(*[ask(batcher, value).future for value in range(12)])

    run(scenario, model, max_rows=8)
    assert [len(rows) for rows in model.runs] == [4, 8]


def test_several_culprits_cost_no_more_than_a_run_for_each_and_a_short_search():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        jobs = [ask(batcher, POISON if value % 2 else value) for value in range(32)]
        results = await asyncio.gather(*[job.future for job in jobs], return_exceptions=True)
        for value, result in enumerate(results):
            if value % 2:
                assert isinstance(result, UsageError)
            else:
                assert result.outputs["y"].tolist() == [[2 * value]]

    run(scenario, model)
    assert len(model.runs) <= 32 + 11


def test_where_most_batches_fail_nobody_searches_and_still_nobody_suffers_for_others():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        for _ in range(6):
            model.runs.clear()
            jobs = [ask(batcher, POISON if value == 3 else value) for value in range(8)]
            results = await asyncio.gather(*[job.future for job in jobs], return_exceptions=True)
            assert [isinstance(result, UsageError) for result in results] == [
                value == 3 for value in range(8)
            ]

    run(scenario, model)
    assert [len(rows) for rows in model.runs] == [8, *[1] * 8]


def test_a_device_that_mostly_fails_is_not_asked_again_for_every_request():
    calls = []

    def broken(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        calls.append(len(feeds["x"]))
        raise UnavailableError("The device is gone.")

    async def scenario(batcher: Batcher) -> None:
        for _ in range(6):
            calls.clear()
            jobs = [ask(batcher, value) for value in range(8)]
            for job in jobs:
                with pytest.raises(UnavailableError):
                    await job.future

    run(scenario, broken)
    assert calls == [8]
