"""Equal questions at the same time: one of them is worked on, the others wait for its answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.cache.value import copied
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.refusal import Refusal, too_late

_Waiter = asyncio.Future[dict[str, Array] | None]


class Flights:
    """What is being computed, by key; used on one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[bytes, list[_Waiter]] = {}
        self._leaders: dict[bytes, Exchange] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiters

    async def join(self, key: bytes, exchange: Exchange) -> dict[str, Array] | None:
        """Wait for who works on `key`; None when nothing came of it that concerns anybody else.

        Raises:
            Refusal: 504; this request's own deadline passed.
            MlxError: the question itself is at fault, whoever asks it.
        """
        loop = asyncio.get_running_loop()
        waiter: _Waiter = loop.create_future()
        self._waiters[key].append(waiter)
        exchange.waiting = waiter
        timer = loop.call_later(max(0.0, exchange.deadline - time.monotonic()), _expire, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            exchange.waiting = None

    def leader(self, key: bytes) -> Exchange:
        """Who works on `key`."""
        return self._leaders[key]

    async def lead(self, key: bytes, exchange: Exchange, work: Callable[[], Awaitable[Tensors]]) -> Tensors:
        """Work on `key`, which nobody else does, and give the others what came of it.

        Raises:
            BaseException: what `work` raised.
        """
        waiters = self._waiters[key] = []
        self._leaders[key] = exchange
        answer: Tensors | None = None
        fault: BaseException | None = None
        try:
            answer = await work()
        except Exception as error:
            # Deadlines, full queues and departed clients are one request's own; malformed inputs are not.
            if _is_lasting(error):
                fault = error
            raise
        finally:
            del self._waiters[key], self._leaders[key]
            for waiter in waiters:
                _settle(waiter, answer, fault)
        return answer


def _is_lasting(error: Exception) -> bool:
    return isinstance(error, UsageError) or (isinstance(error, Refusal) and error.status in {400, 422})


def _settle(waiter: "asyncio.Future[Any]", answer: Tensors | None, fault: BaseException | None) -> None:
    if waiter.done():
        return
    if fault is not None:
        waiter.set_exception(fault)
    else:
        waiter.set_result(None if answer is None else copied(answer))


def _expire(waiter: "asyncio.Future[Any]") -> None:
    if not waiter.done():
        waiter.set_exception(too_late())
