"""Caches in a test: questions to ask them, and a model that counts how often it is asked."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, TensorSpec
from mlx_platform.serving.cache.admission import Worth
from mlx_platform.serving.cache.answers import Answers
from mlx_platform.serving.cache.key import KeyMaker
from mlx_platform.serving.cache.memory import Memory
from mlx_platform.serving.cache.redis_store import RedisAddress, RedisStore
from mlx_platform.serving.cache.shared import Shared
from mlx_platform.serving.exchange import Exchange

SPECS = {"y": TensorSpec("y", "FP32", (None, 1))}


def exchange(seconds: float = 20, **members: Any) -> Exchange:
    now = time.monotonic()
    made = Exchange("id", "infer", datetime.now(UTC), now, now + seconds)
    for name, value in members.items():
        setattr(made, name, value)
    return made


def memory_answers(**options: Any) -> Answers:
    return Answers(KeyMaker("digest", "answer"), Memory(2**20, 2**18), Worth(0.0), **options)


def shared_answers(url: str, *, digest: str = "digest", secret: bytes = b"", **address: Any) -> Answers:
    """Answers in Redis; `await ready(...)` before asking."""
    options = {"timeout": 0.25} | address  # a busy machine is no slow Redis
    store = Shared(RedisStore(RedisAddress(url, **options)), SPECS, secret, 2**18)
    return Answers(KeyMaker(digest, "answer"), store, Worth(0.0))


async def ready(answers: Answers, *, open_: bool = True) -> Answers:
    """Wait until Redis has been found, or is taken to be gone."""
    assert isinstance(answers.store, Shared)
    redis = answers.store.redis
    if not redis._tasks:
        redis.start()
    deadline = time.monotonic() + 20
    while redis.open != open_:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return answers


async def settled(answers: Answers) -> None:
    """Wait until everything has been written."""
    assert isinstance(answers.store, Shared)
    task = answers.store.redis._tasks.get("write")
    if task is not None:
        await task


class Doubling:
    """y = 2 x, and how often it was asked."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.runs = 0

    async def ask(self, value: float, *, pause: float = 0.0, made: Exchange | None = None) -> float:
        feeds: dict[str, Array] = {"x": np.array([[value]], np.float32)}

        async def compute() -> dict[str, Array]:
            self.runs += 1
            await asyncio.sleep(pause)
            return {"y": 2 * feeds["x"]}

        answer = await self.answers.answer(feeds, ("y",), made or exchange(), compute)
        return float(answer["y"][0, 0])
