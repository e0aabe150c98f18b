"""The batcher over models that are plain functions, so that every run can be watched and held up."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.core.errors import DeadlineError, UnavailableError, UsageError
from mlx_platform.serving.batcher import Batcher, BatchPolicy
from mlx_platform.serving.costs import Costs
from mlx_platform.serving.job import HIGH, LOW, NORMAL, Job, QueueFullError
from mlx_platform.serving.padding import Padding

LONG = 30.0
POISON = 666.0


class Recorder:
    """A model: y = 2 x, z = x + 1. Fails on poison, can be held up, and remembers its runs."""

    def __init__(self) -> None:
        self.runs: list[list[float]] = []
        self.outputs: list[tuple[str, ...]] = []
        self.timeouts: list[float] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def __call__(self, feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        x = feeds["x"]
        self.runs.append(x[:, 0].tolist())
        self.outputs.append(outputs)
        self.timeouts.append(timeout)
        self.started.set()
        self.gate.wait(10)
        if (x == POISON).any():
            raise UsageError("poison")
        return {name: {"y": 2 * x, "z": x + 1}[name] for name in outputs}


def nothing(*_: Any) -> None:
    pass


@contextmanager
def held(model: Recorder) -> Iterator[None]:
    """Nothing that has started ends before the block does."""
    model.gate.clear()
    try:
        yield
    finally:
        model.gate.set()


def ask(
    batcher: Batcher,
    *values: float,
    width: int = 1,
    outputs: tuple[str, ...] = ("y",),
    wait: float = LONG,
    priority: int = NORMAL,
) -> Job:
    x = np.repeat(np.array(values, np.float32)[:, np.newaxis], width, axis=1)
    deadline = time.monotonic() + wait
    return batcher.submit({"x": x}, len(values), outputs, deadline, joins=True, priority=priority)


def run(
    scenario: Callable[[Batcher], Awaitable[Any]],
    model: Any,
    *,
    inline: bool = False,
    parts: dict[str, Any] | None = None,
    **policy: Any,
) -> Any:
    """Play a scenario with a new batcher; in the end nothing may wait or run."""
    policy.setdefault("inline_cells", math.inf if inline else 0)

    async def main() -> Any:
        batcher = Batcher(model, BatchPolicy(**policy), nothing, **(parts or {}))
        try:
            return await asyncio.wait_for(scenario(batcher), 20)
        finally:
            await batcher.close(5.0)
            assert batcher.in_flight == batcher.queued_rows == 0

    return asyncio.run(main())


async def started(model: Recorder) -> None:
    await asyncio.get_running_loop().run_in_executor(None, model.started.wait, 10)


@pytest.mark.parametrize("inline", [True, False])
def test_what_arrives_together_runs_together_and_each_gets_its_own_rows(inline):
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        jobs = [ask(batcher, value, value + 0.5) for value in range(3)]
        answers = [await job.future for job in jobs]
        assert [answer.outputs["y"][:, 0].tolist() for answer in answers] == [[0, 1], [2, 3], [4, 5]]
        assert {answer.batch_rows for answer in answers} == {6}

    run(scenario, model, inline=inline)
    assert model.runs == [[0, 0.5, 1, 1.5, 2, 2.5]]


def test_a_lone_request_leaves_at_once_whatever_the_delay():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        for value in range(5):
            answer = await ask(batcher, value).future
            assert answer.queue_seconds < 5

    run(scenario, model, max_delay=10.0)
    assert [len(rows) for rows in model.runs] == [1] * 5


def test_a_full_batch_leaves_before_the_delay_is_over_and_no_batch_is_larger():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            first = ask(batcher, 0)
            await started(model)
            rest = [ask(batcher, value) for value in range(1, 11)]
        await asyncio.gather(*[job.future for job in (first, *rest)])

    run(scenario, model, max_rows=5, max_delay=10.0)
    assert [len(rows) for rows in model.runs] == [1, 5, 5]


def test_while_company_is_expected_the_oldest_waits_for_the_delay_and_no_longer():
    model = Recorder()

    async def scenario(batcher: Batcher) -> float:
        await asyncio.gather(*[ask(batcher, value).future for value in range(8)])
        one, other = ask(batcher, 1), None
        await asyncio.sleep(0.01)
        other = ask(batcher, 2)
        answers = await asyncio.gather(one.future, other.future)
        return answers[0].queue_seconds

    waited = run(scenario, model, max_delay=0.05)
    assert model.runs[1:] == [[1, 2]]
    assert waited >= 0.025


def test_groups_never_mix_shapes_or_requested_outputs():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        jobs = [
            ask(batcher, 1, width=1),
            ask(batcher, 2, width=2),
            ask(batcher, 3, width=1, outputs=("z",)),
            ask(batcher, 4, width=2),
        ]
        answers = [await job.future for job in jobs]
        assert [list(answer.outputs) for answer in answers] == [["y"], ["y"], ["z"], ["y"]]
        assert [answer.batch_rows for answer in answers] == [1, 2, 1, 2]

    run(scenario, model)
    assert model.runs == [[1], [2, 4], [3]]
    assert model.outputs == [("y",), ("y",), ("z",)]


@pytest.mark.parametrize("inline", [True, False])
def test_a_long_request_is_split_and_put_together_in_order(inline):
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        values = [float(value) for value in range(11)]
        answer = await ask(batcher, *values).future
        assert answer.outputs["y"][:, 0].tolist() == [2 * value for value in values]
        assert answer.batch_rows == 4

    run(scenario, model, max_rows=4, inline=inline)
    assert sorted(len(rows) for rows in model.runs) == [3, 4, 4]


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


def test_a_request_that_would_overfill_the_queue_is_refused_and_one_that_fits_is_not():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            running = ask(batcher, 0)
            await started(model)
            waiting = [ask(batcher, 1, 2, 3)]
            with pytest.raises(QueueFullError) as caught:
                ask(batcher, 4, 5)
            assert caught.value.retry_after >= 1
            waiting.append(ask(batcher, 6))
            assert batcher.queued_rows == 4
        await asyncio.gather(*[job.future for job in (running, *waiting)])
        long = await ask(batcher, *range(9)).future
        assert len(long.outputs["y"]) == 9

    run(scenario, model, max_queue_rows=4, max_rows=4)


def test_what_expires_in_the_queue_is_told_so_and_never_runs():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            running = ask(batcher, 0)
            await started(model)
            late = ask(batcher, 1, wait=0.01)
            patient = ask(batcher, 2)
            with pytest.raises(DeadlineError):
                await late.future
            assert batcher.queued_rows == 1
        await asyncio.gather(running.future, patient.future)
        assert batcher.expired == 1

    run(scenario, model)
    assert model.runs == [[0], [2]]


def test_callers_of_a_run_that_takes_too_long_are_told_before_it_ends():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            slow = ask(batcher, 0, wait=0.05)
            with pytest.raises(DeadlineError):
                await slow.future
            assert not batcher.stuck
        assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[2]]

    run(scenario, model)


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


def test_a_run_that_is_slow_after_all_moves_to_a_thread_with_its_neighbours():
    threads = []

    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        threads.append(threading.current_thread() is threading.main_thread())
        if (feeds["x"] == POISON).any() and timeout < 1:
            raise DeadlineError("ended by the watchdog")
        return {"y": 2 * feeds["x"]}

    async def scenario(batcher: Batcher) -> None:
        assert batcher.inline
        assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[2]]
        jobs = [ask(batcher, 2), ask(batcher, POISON), ask(batcher, 3)]
        answers = [(await job.future).outputs["y"].tolist() for job in jobs]
        assert answers == [[[4]], [[2 * POISON]], [[6]]]
        assert not batcher.inline
        assert (await ask(batcher, 4).future).outputs["y"].tolist() == [[8]]

    run(scenario, model, inline=True)
    assert threads == [True, True, False, False]


def test_an_abandoned_request_is_not_run_and_leaves_room_at_once():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            running = ask(batcher, 0)
            await started(model)
            gone, long_gone = ask(batcher, 1), ask(batcher, 2, 3, 4, 5, 6)
            stays = ask(batcher, 7)
            batcher.abandon(gone)
            batcher.abandon(long_gone)
            assert batcher.queued_rows == 1
            batcher.abandon(running)
        assert (await stays.future).outputs["y"].tolist() == [[14]]
        assert gone.future.cancelled()
        assert long_gone.future.cancelled()
        assert batcher.abandoned == 3

    run(scenario, model, max_rows=4)
    assert model.runs == [[0], [7]]


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


def test_requests_that_must_not_join_run_alone_and_as_they_are():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        x = np.ones((6, 1), np.float32)
        jobs = [batcher.submit({"x": x}, 6, ("y",), time.monotonic() + LONG, joins=False) for _ in range(3)]
        for job in jobs:
            assert (await job.future).batch_rows == 6

    run(scenario, model, max_rows=4)
    assert [len(rows) for rows in model.runs] == [6, 6, 6]


def test_an_exception_that_nobody_expects_reaches_the_caller_and_the_batcher_lives_on():
    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        if (feeds["x"] == POISON).any():
            raise SystemExit
        return {"y": feeds["x"]}

    async def scenario(batcher: Batcher) -> None:
        with pytest.raises(SystemExit):
            await ask(batcher, POISON).future
        assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[1]]

    run(scenario, model)


def test_a_fault_in_forming_a_batch_fails_those_who_wait_and_nobody_later(monkeypatch, caplog):
    async def scenario(batcher: Batcher) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(batcher._waiting, "take", None)
            with pytest.raises(TypeError):
                await ask(batcher, 1).future
        assert batcher.restarts == 1
        assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[2]]

    run(scenario, Recorder())
    assert "could not form" in caplog.text


def test_closing_finishes_what_was_taken_and_takes_nothing_new():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            jobs = [ask(batcher, 0)]
            await started(model)
            jobs += [ask(batcher, value) for value in range(1, 4)]
            closing = asyncio.ensure_future(batcher.close(10.0))
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError):
                ask(batcher, 9)
        await closing
        assert [job.future.result().outputs["y"].tolist() for job in jobs] == [[[0]], [[2]], [[4]], [[6]]]

    run(scenario, model, max_delay=60.0)


def test_closing_gives_up_in_the_end():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            running = ask(batcher, 0)
            await started(model)
            waiting = ask(batcher, 1)
            await batcher.close(0.01)
            for job in (running, waiting):
                with pytest.raises(UnavailableError):
                    await job.future

    run(scenario, model)


def test_the_urgent_pass_those_who_wait_and_share_a_run_with_them_where_there_is_room():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            jobs = [ask(batcher, 0)]
            await started(model)
            jobs += [
                ask(batcher, 1),
                ask(batcher, 2, priority=LOW),
                ask(batcher, 3),
                ask(batcher, 4, width=2),
            ]
            jobs += [ask(batcher, 5, priority=HIGH), ask(batcher, 6, width=2, priority=HIGH)]
        await asyncio.gather(*[job.future for job in jobs])

    run(scenario, model, max_rows=3)
    assert model.runs == [[0], [5, 1, 3], [6, 4], [2]]


def test_among_equals_the_one_with_the_least_time_left_goes_first():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            jobs = [ask(batcher, 0)]
            await started(model)
            jobs += [ask(batcher, 1, width=1, wait=20), ask(batcher, 2, width=2, wait=10)]
        await asyncio.gather(*[job.future for job in jobs])

    run(scenario, model)
    assert model.runs == [[0], [2], [1]]


def test_nobody_is_taken_who_cannot_be_answered_in_time_once_a_batch_waits():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            jobs = [ask(batcher, 0)]
            await started(model)
            jobs.append(ask(batcher, 1, wait=0.5))
            jobs += [ask(batcher, value) for value in range(2, 9)]
            # Two batches of four rows, a second each, and the one that has just begun.
            with pytest.raises(QueueFullError) as caught:
                ask(batcher, 9, wait=2.0)
            assert caught.value.retry_after == 3
            jobs.append(ask(batcher, 10, wait=10.0))
            batcher.abandon(jobs.pop(1))
        await asyncio.gather(*[job.future for job in jobs])

    run(scenario, model, max_rows=4, parts={"costs": Costs({1: 1.0, 4: 1.0}, 1, 4)})


def test_the_queue_is_bounded_in_bytes():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        with held(model):
            jobs = [ask(batcher, 0)]
            await started(model)
            jobs.append(ask(batcher, 1, width=100))
            with pytest.raises(QueueFullError):
                ask(batcher, 2, width=100)
            jobs.append(ask(batcher, 3, width=10))
        await asyncio.gather(*[job.future for job in jobs])

    run(scenario, model, max_queue_bytes=500)


class Small(Recorder):
    """The same model on a device on which no more than so many rows fit."""

    def __init__(self, fits: int) -> None:
        super().__init__()
        self.fits = fits

    def __call__(self, feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        answers = super().__call__(feeds, outputs, timeout)
        if len(feeds["x"]) > self.fits:
            raise MemoryError
        return answers


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


def test_larger_batches_are_tried_again_in_time(monkeypatch):
    model = Small(3)

    async def scenario(batcher: Batcher) -> None:
        await asyncio.gather(*[ask(batcher, value).future for value in range(8)])
        model.fits = 100
        monkeypatch.setattr("mlx_platform.serving.batcher._RECOVERY_SECONDS", -1.0)
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


class Endless:
    """A model whose poisoned runs go on until they are stopped; `deaf` ones not even then."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.running: dict[int, threading.Event] = {}
        self.stopped: list[int] = []
        self.started = threading.Event()
        self.release = threading.Event()

    def __call__(self, feeds: Any, *_: Any) -> dict[str, Any]:
        if (feeds["x"] == POISON).any():
            thread = threading.get_ident()
            self.running[thread] = event = threading.Event()
            self.started.set()
            (self.release if self.deaf else event).wait(10)
            raise DeadlineError("stopped")
        return {"y": 2 * feeds["x"]}

    def stop(self, thread: int) -> None:
        self.stopped.append(thread)
        self.running[thread].set()


def test_a_run_for_which_nobody_waits_any_more_is_ended():
    model = Endless()

    async def scenario(batcher: Batcher) -> None:
        one, other = ask(batcher, POISON), ask(batcher, 1)
        await started(model)
        batcher.abandon(other)
        assert not model.stopped
        batcher.abandon(one)
        assert (await ask(batcher, 2).future).outputs["y"].tolist() == [[4]]
        assert batcher.stopped_batches == 1

    run(scenario, model, parts={"stop_run": model.stop})
    assert len(model.stopped) == 1


def test_a_run_whose_callers_are_all_too_late_is_ended():
    model = Endless()

    async def scenario(batcher: Batcher) -> None:
        late = [ask(batcher, POISON, wait=0.05), ask(batcher, 1, wait=0.05)]
        for job in late:
            with pytest.raises(DeadlineError):
                await job.future
        assert (await ask(batcher, 2).future).outputs["y"].tolist() == [[4]]

    run(scenario, model, parts={"stop_run": model.stop})


def test_closing_ends_the_runs_that_go_on():
    model = Endless()

    async def scenario(batcher: Batcher) -> None:
        job = ask(batcher, POISON)
        await started(model)
        began = time.monotonic()
        await batcher.close(0.0)
        await batcher.wait_for_runs()
        with pytest.raises(UnavailableError):
            await job.future
        assert time.monotonic() - began < 5

    run(scenario, model, parts={"stop_run": model.stop})
    assert model.stopped


def test_a_worker_that_does_not_come_back_is_replaced_until_too_many_are_lost(monkeypatch, caplog):
    monkeypatch.setattr("mlx_platform.serving.batcher._STUCK_SECONDS", 0.05)
    model = Endless(deaf=True)

    async def scenario(batcher: Batcher) -> None:
        for lost in range(1, 4):
            with pytest.raises(DeadlineError):
                await ask(batcher, POISON, wait=0.02).future
            assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[2]]
            assert (batcher.lost_workers, batcher.restarts, batcher.in_flight) == (lost, lost, 0)
        with pytest.raises(DeadlineError):
            await ask(batcher, POISON, wait=0.02).future
        with pytest.raises(DeadlineError):
            await ask(batcher, 1, wait=0.3).future
        assert batcher.stuck
        model.release.set()
        assert (await ask(batcher, 1).future).outputs["y"].tolist() == [[2]]
        assert not batcher.stuck

    run(scenario, model, parts={"stop_run": model.stop})
    assert caplog.text.count("does not end") == 3


def test_idle_workers_share_what_waits_where_that_is_sooner_done():
    for curve, sizes in (({1: 0.01, 8: 0.08}, [2, 2, 2, 2]), ({1: 0.01, 8: 0.011}, [8])):
        model = Recorder()

        async def scenario(batcher: Batcher) -> None:
            await asyncio.gather(*[ask(batcher, value).future for value in range(8)])

        run(scenario, model, workers=4, parts={"costs": Costs(curve, 1, 32)})
        assert [len(rows) for rows in model.runs] == sizes


def test_long_rows_get_smaller_batches_where_their_numbers_are_counted():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        await asyncio.gather(*[ask(batcher, value, width=4).future for value in range(4)])
        await asyncio.gather(*[ask(batcher, value, width=50).future for value in range(2)])
        await asyncio.gather(*[ask(batcher, value).future for value in range(16)])

    run(scenario, model, max_rows=12, max_cells=8)
    assert [len(rows) for rows in model.runs] == [2, 2, 1, 1, 8, 8]


def test_only_runs_as_small_as_those_that_were_fast_happen_on_the_event_loop():
    threads: dict[int, bool] = {}

    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        threads[feeds["x"].size] = threading.current_thread() is threading.main_thread()
        return {"y": feeds["x"]}

    async def scenario(batcher: Batcher) -> None:
        await asyncio.gather(ask(batcher, 1).future, ask(batcher, 2).future)
        await ask(batcher, 1, width=100).future
        await ask(batcher, 1, width=101).future
        x = np.ones((1, 200), np.float32)
        await batcher.submit({"x": x}, 1, ("y",), time.monotonic() + LONG, joins=False).future
        await batcher.submit({"x": x[:, :3]}, 1, ("y",), time.monotonic() + LONG, joins=False).future

    run(scenario, model, inline_cells=100)
    assert threads == {2: True, 100: True, 101: False, 200: False, 3: True}


def sequences(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
    """A model of sequences that ends where its mask does: their sums, and twice what is in them."""
    x = np.where(feeds["mask"] > 0, feeds["x"], 0)
    return {"sum": x.sum(axis=1, keepdims=True), "double": 2 * feeds["x"]}


PADDING = Padding({"x": 77.0, "mask": 0}, {"double": (1,)})


def ask_sequence(batcher: Batcher, *values: float, rows: int = 1) -> Job:
    x = np.repeat(np.array([values], np.float32), rows, axis=0)
    feeds = {"x": x, "mask": np.ones_like(x, np.int64)}
    return batcher.submit(feeds, rows, ("sum", "double"), time.monotonic() + LONG, joins=True)


def test_sequences_of_one_bucket_share_a_run_and_get_back_what_is_theirs():
    seen: list[tuple[int, ...]] = []

    def model(*call: Any) -> dict[str, Any]:
        seen.append(call[0]["x"].shape)
        return sequences(*call)

    async def scenario(batcher: Batcher) -> None:
        sent = [[1.0] * 3, [2.0] * 8, [3.0] * 9, [4.0] * 5, [5.0] * 12, [6.0] * 40]
        jobs = [ask_sequence(batcher, *values) for values in sent]
        for values, job in zip(sent, jobs, strict=True):
            answer = (await job.future).outputs
            assert answer["sum"].tolist() == [[sum(values)]]
            assert answer["double"].tolist() == [[2 * value for value in values]]

    run(scenario, model, parts={"padding": PADDING})
    assert sorted(seen) == [(1, 40), (2, 12), (3, 8)]


def test_sequences_are_not_filled_up_where_that_was_not_proven():
    seen: list[tuple[int, ...]] = []

    def model(*call: Any) -> dict[str, Any]:
        seen.append(call[0]["x"].shape)
        return sequences(*call)

    async def scenario(batcher: Batcher) -> None:
        jobs = [ask_sequence(batcher, *[1.0] * length) for length in (3, 4, 3)]
        await asyncio.gather(*[job.future for job in jobs])

    run(scenario, model)
    assert sorted(seen) == [(1, 4), (2, 3)]


def test_inputs_that_do_not_agree_on_a_length_are_left_to_the_model():
    seen: list[tuple[int, ...]] = []

    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        seen.append((*feeds["x"].shape, *feeds["mask"].shape))
        return {"sum": feeds["x"][:, :1]}

    async def scenario(batcher: Batcher) -> None:
        for _ in range(2):
            feeds = {"x": np.ones((1, 3), np.float32), "mask": np.ones((1, 1), np.int64)}
            await batcher.submit(feeds, 1, ("sum",), time.monotonic() + LONG, joins=True).future

    run(scenario, model, parts={"padding": PADDING})
    assert seen == [(1, 3, 1, 1)] * 2


class Callers:
    """Sends requests by the steps of a story, and knows what each of them must get."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.sent: list[tuple[Job, list[float], tuple[str, ...], str]] = []
        self.numbers = iter(range(1_000, 1_000_000))

    async def do(self, kind: str, rows: int, choice: int) -> None:
        if kind == "tick":
            await asyncio.sleep(0)
        elif kind == "rest":
            await asyncio.sleep(0.002)
        elif kind == "abandon":
            if self.sent:
                self.batcher.abandon(self.sent[choice % len(self.sent)][0])
        else:
            self.send(kind, [float(next(self.numbers)) for _ in range(rows)], choice)

    def send(self, kind: str, values: list[float], choice: int) -> None:
        outputs = (("y",), ("z", "y"))[choice % 2]
        if kind == "poison":
            values[choice % len(values)] = POISON
        try:
            job = ask(
                self.batcher,
                *values,
                width=1 + choice % 3 // 2,
                outputs=outputs,
                wait=-1.0 if kind == "expired" else LONG,
                priority=choice % 5 % 3,
            )
        except QueueFullError:
            return
        self.sent.append((job, values, outputs, kind))

    async def check(self) -> None:
        await asyncio.wait([job.future for job, *_ in self.sent] or [asyncio.ensure_future(asyncio.sleep(0))])
        for job, values, outputs, kind in self.sent:
            if job.future.cancelled():
                continue
            expected_error = {"poison": UsageError, "expired": DeadlineError, "good": type(None)}[kind]
            assert isinstance(job.future.exception(), expected_error)
            if kind == "good":
                self.check_rows(job, np.array(values), outputs)

    def check_rows(self, job: Job, values: Any, outputs: tuple[str, ...]) -> None:
        answer = job.future.result()
        assert tuple(answer.outputs) == outputs
        for name, array in answer.outputs.items():
            want = 2 * values if name == "y" else values + 1
            np.testing.assert_array_equal(array, np.repeat(want[:, np.newaxis], array.shape[1], axis=1))


kinds = st.sampled_from(["good"] * 5 + ["poison", "expired", "abandon", "tick", "tick", "rest"])


@settings(max_examples=80, deadline=None)
@given(
    story=st.lists(st.tuples(kinds, st.integers(1, 9), st.integers(0, 30)), max_size=30),
    max_rows=st.integers(1, 6),
    queue=st.integers(1, 40),
    delay=st.sampled_from([0.0, 0.001]),
    workers=st.sampled_from([(1, True), (1, False), (2, False)]),
    fits=st.sampled_from([100, 3, 1]),
)
def test_whatever_happens_each_caller_gets_exactly_its_own_rows(story, max_rows, queue, delay, workers, fits):
    model = Small(fits)

    async def scenario(batcher: Batcher) -> None:
        callers = Callers(batcher)
        for step in story:
            await callers.do(*step)
        await callers.check()

    run(
        scenario,
        model,
        max_rows=max_rows,
        max_delay=delay,
        max_queue_rows=queue,
        workers=workers[0],
        inline=workers[1],
    )
    assert all(len(rows) <= max_rows for rows in model.runs)


@settings(max_examples=40, deadline=None)
@given(
    sent=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 5), st.booleans()), min_size=1, max_size=12),
    max_rows=st.integers(1, 6),
    workers=st.integers(1, 2),
)
def test_whatever_their_lengths_sequences_are_answered_as_if_they_were_alone(sent, max_rows, workers):
    async def scenario(batcher: Batcher) -> None:
        jobs = []
        for number, (length, rows, pause) in enumerate(sent):
            values = [1000.0 * number + place for place in range(length)]
            jobs.append((ask_sequence(batcher, *values, rows=rows), values, rows))
            if pause:
                await asyncio.sleep(0)
        for job, values, rows in jobs:
            answer = (await job.future).outputs
            np.testing.assert_array_equal(answer["sum"], [[sum(values)]] * rows)
            np.testing.assert_array_equal(answer["double"], [[2 * value for value in values]] * rows)

    run(scenario, sequences, max_rows=max_rows, workers=workers, parts={"padding": PADDING})
