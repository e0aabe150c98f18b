"""Where runs happen, and what becomes of those that nobody waits for or that do not come back."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from batching import LONG, POISON, Recorder, ask, held, run, started

from mlx_platform.core.errors import DeadlineError, UnavailableError
from mlx_platform.serving.batcher import Batcher
from mlx_platform.serving.costs import Costs


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


def test_idle_workers_share_what_waits_where_that_is_sooner_done():
    for curve, sizes in (({1: 0.01, 8: 0.08}, [2, 2, 2, 2]), ({1: 0.01, 8: 0.011}, [8])):
        model = Recorder()

        async def scenario(batcher: Batcher) -> None:
            await asyncio.gather(*[ask(batcher, value).future for value in range(8)])

        run(scenario, model, workers=4, parts={"costs": Costs(curve, 1, 32)})
        assert [len(rows) for rows in model.runs] == sizes


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
