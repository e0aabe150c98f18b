"""The cache in front of a model: every caller gets exactly the answer to its own question, counted once."""

import asyncio
import threading

import numpy as np
import pytest
from caching import Doubling, exchange, memory_answers
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.serving.cache.admission import Worth
from mlx_platform.serving.cache.answers import Answers
from mlx_platform.serving.cache.key import KeyMaker
from mlx_platform.serving.cache.memory import Memory
from mlx_platform.serving.refusal import Refusal, malformed, queue_full


@st.composite
def requests(draw):
    """A question, when it comes, how long its run takes, what becomes of the run, when the client leaves."""
    return (
        draw(st.integers(0, 5)),
        draw(st.integers(0, 6)),
        draw(st.integers(0, 4)),
        draw(st.sampled_from(["well", "well", "well", "full", "malformed", "fault"])),
        draw(st.sampled_from([None, None, None, 0, 1, 3])),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(requests(), max_size=25), st.integers(1500, 4000))
def test_in_any_order_of_events_everybody_gets_their_own_answer(planned, most_bytes):
    answers = Answers(KeyMaker("d", "answer"), Memory(most_bytes, most_bytes), Worth(0.2, window=8))
    errors = {"full": queue_full(1), "malformed": malformed("no"), "fault": RuntimeError("fault")}

    async def ask(value, start, ticks, fate):
        for _ in range(start):
            await asyncio.sleep(0)
        feeds = {"x": np.array([value])}

        async def compute():
            for _ in range(ticks):
                await asyncio.sleep(0)
            if fate in errors:
                raise errors[fate]
            return {"y": feeds["x"] * 10}

        asked = exchange()
        answer = await answers.answer(feeds, ("y",), asked, compute)
        # What one caller does with its answer is nobody else's business.
        found = answer["y"].tolist()
        answer["y"][:] = -1
        return found

    async def main():
        tasks = [asyncio.ensure_future(ask(*request[:4])) for request in planned]

        async def leave(task, after):
            for _ in range(after):
                await asyncio.sleep(0)
            task.cancel()

        leaving = [leave(task, r[4]) for task, r in zip(tasks, planned, strict=True) if r[4] is not None]
        await asyncio.gather(*leaving)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    outcomes = asyncio.run(main())
    for request, outcome in zip(planned, outcomes, strict=True):
        check(request, outcome, planned)
    assert len(answers._flights) == 0
    left = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert len(planned) - left <= sum(answers.outcomes.values()) <= len(planned)


def check(request, outcome, planned):
    value, _start, _ticks, fate, leaves = request
    if isinstance(outcome, list):
        assert outcome == [value * 10]
    elif isinstance(outcome, asyncio.CancelledError):
        assert leaves is not None
    elif isinstance(outcome, Refusal) and outcome.status == 400:
        # Whoever asked the same at the same time learns that it cannot be answered.
        assert any(other[0] == value and other[3] == "malformed" for other in planned)
    else:
        assert fate in {"full", "fault"}


def test_equal_questions_at_once_are_one_run():
    async def main():
        model = Doubling(memory_answers())
        asked = [exchange() for _ in range(50)]
        found = await asyncio.gather(*(model.ask(7, pause=0.01, made=one) for one in asked))
        assert found == [14] * 50
        assert model.runs == 1
        assert [one.cache for one in asked] == ["miss"] + ["hit"] * 49
        assert model.answers.coalesced == 49

    asyncio.run(main())


def test_when_the_first_one_leaves_the_next_one_goes_on():
    async def main():
        model = Doubling(memory_answers())
        first, second = (asyncio.ensure_future(model.ask(7, pause=0.01)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 14
        assert model.runs == 2

    asyncio.run(main())


def test_whoever_waits_for_another_still_has_a_deadline_of_its_own():
    async def main():
        model = Doubling(memory_answers())
        first = asyncio.ensure_future(model.ask(7, pause=0.3))
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await model.ask(7, made=exchange(0.02))
        assert caught.value.status == 504
        assert await first == 14

    asyncio.run(main())


def test_whoever_leaves_while_waiting_is_let_go():
    async def main():
        model = Doubling(memory_answers())
        first = asyncio.ensure_future(model.ask(7, pause=0.01))
        await asyncio.sleep(0)
        asked = exchange()
        second = asyncio.ensure_future(model.ask(7, made=asked))
        await asyncio.sleep(0)
        asked.waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await first == 14
        assert model.runs == 1

    asyncio.run(main())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_answers_that_are_not_finite_and_errors_are_never_kept(value):
    async def main():
        answers, runs = memory_answers(), []

        async def compute():
            runs.append(1)
            if len(runs) == 3:
                raise queue_full(1)
            return {"y": np.array([value])}

        for _ in range(2):
            await answers.answer({"x": np.array([1])}, ("y",), exchange(), compute)
        with pytest.raises(Refusal):
            await answers.answer({"x": np.array([1])}, ("y",), exchange(), compute)
        await answers.answer({"x": np.array([1])}, ("y",), exchange(), compute)
        assert len(runs) == 4
        assert answers.outcomes == {"hit": 0, "semantic": 0, "miss": 4, "bypass": 0}

    asyncio.run(main())


def test_tenants_and_parameters_share_nothing_and_a_fresh_answer_can_be_had():
    async def main():
        model = Doubling(memory_answers())
        for members in ({}, {"tenant": b"a"}, {"tenant": b"b"}, {"parameters": b'{"k":1}'}):
            asked = exchange(**members)
            await model.ask(1, made=asked)
            assert asked.cache == "miss"
        asked = exchange(skip_cache=True)
        await model.ask(1, made=asked)
        assert (asked.cache, model.runs) == ("bypass", 5)

    asyncio.run(main())


def test_questions_that_never_repeat_soon_go_past_the_cache():
    async def main():
        answers = Answers(KeyMaker("d", "answer"), Memory(2**20, 2**18), Worth(0.05, window=50))
        model = Doubling(answers)
        for value in range(1000):
            await model.ask(value)
        assert answers.outcomes["bypass"] > 800
        assert sum(answers.outcomes.values()) == 1000

    asyncio.run(main())


def test_the_key_of_a_long_question_is_made_beside_the_loop():
    threads = []

    class Keys(KeyMaker):
        def make(self, *arguments):
            threads.append(threading.current_thread() is threading.main_thread())
            return super().make(*arguments)

    async def main():
        answers = Answers(Keys("d", "answer"), Memory(2**20, 2**18), Worth(0.0))

        async def compute():
            return {"y": np.zeros(1)}

        for cells in (10, 2**20):
            for outcome in ("miss", "hit"):
                asked = exchange()
                await answers.answer({"x": np.zeros(cells, np.float32)}, ("y",), asked, compute)
                assert asked.cache == outcome

    asyncio.run(main())
    assert threads == [True, True, False, False]
