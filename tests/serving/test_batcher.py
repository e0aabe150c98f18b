"""Who shares a run, who goes first, who waits, and who is refused."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from batching import LONG, POISON, Recorder, Small, ask, held, run, started
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.core.errors import DeadlineError, UnavailableError, UsageError
from mlx_platform.serving.batcher import Batcher
from mlx_platform.serving.costs import Costs
from mlx_platform.serving.job import HIGH, LOW, Answer, Job, QueueFullError


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


def test_requests_that_must_not_join_run_alone_and_as_they_are():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        x = np.ones((6, 1), np.float32)
        jobs = [batcher.submit({"x": x}, 6, ("y",), time.monotonic() + LONG, joins=False) for _ in range(3)]
        for job in jobs:
            assert (await job.future).batch_rows == 6

    run(scenario, model, max_rows=4)
    assert [len(rows) for rows in model.runs] == [6, 6, 6]


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
            jobs.append(ask(batcher, 11, wait=2.0, priority=HIGH))
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


def test_long_rows_get_smaller_batches_where_their_numbers_are_counted():
    model = Recorder()

    async def scenario(batcher: Batcher) -> None:
        await asyncio.gather(*[ask(batcher, value, width=4).future for value in range(4)])
        await asyncio.gather(*[ask(batcher, value, width=50).future for value in range(2)])
        await asyncio.gather(*[ask(batcher, value).future for value in range(16)])

    run(scenario, model, max_rows=12, max_cells=8)
    assert [len(rows) for rows in model.runs] == [2, 2, 1, 1, 8, 8]


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
    beside=st.sampled_from([0.0, 0.0005, 10.0]),
    fits=st.sampled_from([100, 3, 1]),
)
def test_whatever_happens_each_caller_gets_exactly_its_own_rows(
    story, max_rows, queue, delay, workers, beside, fits
):
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
        beside_seconds=beside,
        inline=workers[1],
    )
    assert all(len(rows) <= max_rows for rows in model.runs)


def test_a_part_that_fails_in_the_tick_in_which_the_others_are_done_is_the_answer(caplog):
    async def scenario(batcher: Batcher) -> None:
        whole = ask(batcher, 1, 2)
        first, second = whole.parts
        first.future.set_result(Answer({"y": np.ones((1, 1), np.float32)}, 0.0, 0.0, 1))
        second.future.set_exception(DeadlineError("late"))
        with pytest.raises(DeadlineError, match="late"):
            await whole.future

    model = Recorder()
    with held(model):
        run(scenario, model, max_rows=1)
    assert caplog.text == ""
