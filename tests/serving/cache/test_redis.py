"""Answers in a real Redis server that dies, hangs, lies or was never there."""

import asyncio
import os
import random
import signal
import time

import pytest
from caching import Doubling, exchange, ready, settled, shared_answers
from redis_servers import RedisServer

from mlx_platform.core.errors import UsageError
from mlx_platform.serving.cache.redis_store import RedisAddress, RedisStore

pytestmark = pytest.mark.timeout(120)


def running(scenario):
    async def main():
        opened = []
        try:
            return await scenario(opened)
        finally:
            for answers in opened:
                await answers.store.redis.close()

    return asyncio.run(main())


def test_what_one_server_answered_another_one_knows(redis):
    async def scenario(opened):
        first, second, other = (
            Doubling(shared_answers(redis.url)),
            Doubling(shared_answers(redis.url)),
            Doubling(shared_answers(redis.url, digest="next")),
        )
        opened += (first.answers, second.answers, other.answers)
        for model in (first, second, other):
            await ready(model.answers)
        assert await first.ask(3) == 6
        await settled(first.answers)
        asked = exchange()
        assert await second.ask(3, made=asked) == 6
        assert (asked.cache, second.runs) == ("hit", 0)
        assert await other.ask(3) == 6
        assert other.runs == 1
        assert int(redis.command("TTL", redis.keys()[0])[1:].split(b"\r")[0]) > 86_000

    running(scenario)


def test_where_redis_never_was_predictions_go_on_and_it_is_used_once_it_comes(redis_servers):
    server = redis_servers()

    async def scenario(opened):
        model = Doubling(shared_answers(server.url))
        opened.append(model.answers)
        model.answers.store.redis.start()
        asked = exchange()
        began = time.monotonic()
        assert [await model.ask(value, made=asked) for value in (1, 1, 2)] == [2, 2, 4]
        assert time.monotonic() - began < 5
        assert (asked.cache, model.runs) == ("bypass", 3)
        server.start()
        await ready(model.answers)
        await model.ask(1)
        await settled(model.answers)
        assert await model.ask(1) == 2
        assert model.runs == 4
        assert model.answers.outcomes == {"hit": 1, "semantic": 0, "miss": 1, "bypass": 3}

    running(scenario)


def test_a_redis_that_dies_and_comes_back_costs_nobody_an_answer(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        for round_ in range(3):
            if round_ == 1:
                redis.stop()
            answers = await asyncio.gather(*(model.ask(value) for value in range(50)))
            assert answers == [2 * value for value in range(50)]
            await settled(model.answers)
            if round_ == 1:
                assert not model.answers.store.open
                redis.start()
                await ready(model.answers)
        assert sum(model.answers.outcomes.values()) == 150

    running(scenario)


def test_a_redis_that_hangs_is_waited_for_briefly_and_then_left_alone(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url, timeout=0.02)))
        opened.append(model.answers)
        await model.ask(1)
        await settled(model.answers)
        redis.command("CLIENT", "PAUSE", "2000", "ALL")
        for value in range(6):
            assert await model.ask(value) == 2 * value
        store = model.answers.store
        assert not store.open
        assert 1 <= store.redis.errors["timeout"] <= 3
        asked = exchange()
        assert await model.ask(1, made=asked) == 2
        assert asked.cache == "bypass"
        await ready(model.answers)

    running(scenario)


def test_a_redis_that_hangs_does_not_keep_a_server_from_ending(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        await model.ask(1)
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            asked = asyncio.ensure_future(model.ask(2))
            await asyncio.wait_for(model.answers.store.redis.close(), 10)
            assert await asked == 4
        finally:
            os.kill(redis.pid, signal.SIGCONT)

    running(scenario)


def test_while_redis_is_gone_hardly_anybody_knocks(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        redis.stop()
        attempts = []

        async def count(reader, writer):
            attempts.append(time.monotonic())
            writer.close()

        decoy = await asyncio.start_server(count, "127.0.0.1", redis.port)
        for value in range(300):
            assert await model.ask(value) == 2 * value
        decoy.close()
        # One for the read that found out, one for a write on the other connection, and a probe or two.
        assert len(attempts) <= 4

    running(scenario)


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"mlx1" + bytes(200), b"\x80\x04\x95pickle."])
def test_a_value_that_is_no_answer_is_a_miss_and_makes_room_for_one(redis, garbage):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        await model.ask(5)
        await settled(model.answers)
        (key,) = redis.keys()
        redis.command("SET", key, garbage)
        asked = exchange()
        assert await model.ask(5, made=asked) == 10
        assert (asked.cache, model.runs, model.answers.store.damaged) == ("miss", 2, 1)
        await settled(model.answers)
        assert await model.ask(5) == 10
        assert (model.runs, model.answers.store.damaged) == (2, 1)

    running(scenario)


def test_the_answer_of_another_question_under_this_key_is_a_miss(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        await model.ask(5)
        await settled(model.answers)
        (five,) = redis.keys()
        await model.ask(6)
        await settled(model.answers)
        (six,) = set(redis.keys()) - {five}
        redis.command("COPY", six, five, "REPLACE")
        assert await model.ask(5) == 10
        assert model.answers.store.damaged == 1

    running(scenario)


def test_what_somebody_without_the_secret_wrote_is_a_miss(redis):
    async def scenario(opened):
        plain = Doubling(await ready(shared_answers(redis.url)))
        signed = Doubling(await ready(shared_answers(redis.url, secret=b"secret")))
        opened += (plain.answers, signed.answers)
        await plain.ask(5)
        await settled(plain.answers)
        assert await signed.ask(5) == 10
        assert signed.runs == 1

    running(scenario)


def test_a_password_is_used_and_a_wrong_one_is_no_trouble_for_predictions(redis_servers):
    server = redis_servers("--requirepass", "right").start()

    async def scenario(opened):
        right = Doubling(await ready(shared_answers(server.url, password="right")))  # noqa: S106 - of the test
        wrong = Doubling(shared_answers(server.url, password="wrong"))  # noqa: S106 - of the test
        opened += (right.answers, wrong.answers)
        wrong.answers.store.redis.start()
        await right.ask(1)
        await settled(right.answers)
        assert await right.ask(1) == 2
        assert right.runs == 1
        asked = exchange()
        assert await wrong.ask(1, made=asked) == 2
        assert asked.cache == "bypass"

    running(scenario)


def test_no_answer_gets_to_another_question_whoever_leaves_early(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        for value in range(40):
            await model.ask(value)
        await settled(model.answers)
        choose = random.Random(0)  # noqa: S311 - a test's choice, the same each time
        for _ in range(25):
            values = [choose.randrange(40) for _ in range(40)]
            tasks = [asyncio.ensure_future(model.ask(value)) for value in values]
            await asyncio.sleep(choose.random() * 0.002)
            for task in tasks:
                if choose.random() < 0.5:
                    task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for value, answer in zip(values, found, strict=True):
                assert isinstance(answer, asyncio.CancelledError) or answer == 2 * value

    running(scenario)


def test_writes_that_find_no_room_are_left_out_and_counted(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        store = model.answers.store.redis
        for number in range(400):
            store.put(number.to_bytes(16, "little"), b"value")
        assert store.errors["queue"] == 400 - 256
        await settled(model.answers)
        assert len(redis.keys()) == 256

    running(scenario)


def test_after_the_end_nothing_is_asked_and_what_was_written_is_there(redis):
    async def scenario(opened):
        model = Doubling(await ready(shared_answers(redis.url)))
        opened.append(model.answers)
        await model.ask(1)
        await model.answers.store.redis.close()
        assert len(redis.keys()) == 1
        asked = exchange()
        assert await model.ask(1, made=asked) == 2
        assert asked.cache == "bypass"

    running(scenario)


def test_an_address_that_is_none_is_said_so(redis):
    with pytest.raises(UsageError, match="no address of a Redis server"):
        RedisStore(RedisAddress("http://127.0.0.1"))
    assert isinstance(redis, RedisServer)
