"""Copies of requests for the candidate: in idle moments, after the caller has its answer, and never too many.

A request is noted when the stable version has answered it, and copied once that answer is written. The copy
waits in a queue of its own until nobody else wants the processor; a queue that is full drops the newest. On
a server that is never idle a copy goes all the same once it has waited for a while, but so rarely that about
one request in a hundred can meet it.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.serving.cache.answers import SEMANTIC
from mlx_platform.serving.exchange import SHADOW, Exchange
from mlx_platform.serving.job import LOW
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.protocol_v2 import InferRequest
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.rollout.failing import stood_in
from mlx_platform.serving.rollout.replays import Copy, Replay, Replays
from mlx_platform.serving.served import Served

DROP_REASONS = ("queue", "bytes", "closed")
"""Why a copy is not made: too many waited, they held too much memory, or the rollout went on."""

_PATIENCE = 1.0  # seconds until a copy may go although the server is busy
_BUSY_SHARE = 0.005  # of the time that such copies may take
_LOOK_SECONDS = 0.01  # between looks for an idle moment
_FAILED = "The candidate failed to answer."
_logger = logging.getLogger(__name__)


class Shadow:
    """Sends copies to one candidate; lives on the event loop of both versions.

    Args:
        stable: whose requests are copied; while they wait or run, copies wait.
        candidate: who answers the copies, for nobody.
        settings: how many copies may wait, and how much memory they may hold.
        tell: told what came of each copy that was sent.
    """

    def __init__(
        self,
        stable: Served,
        candidate: Served,
        settings: ServingSettings,
        tell: Callable[[Replay], Awaitable[None]],
    ) -> None:
        self.dropped: Counter[str] = Counter(dict.fromkeys(DROP_REASONS, 0))
        self.sent = 0
        self.in_flight = 0
        self._stable = stable
        self._candidate = candidate
        self._limits = settings.shadow
        self._timeout = settings.request_timeout_ms / 1000
        self._replays = Replays(candidate.engine, tell, self._let_go)
        self._loop = asyncio.get_running_loop()
        self._fresh: list[Exchange] = []
        self._queue: deque[Copy] = deque()
        self._held = 0  # bytes of those that wait, run, or are not counted yet
        self._tasks: dict[asyncio.Task[Replay], Exchange] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._busy_again = 0.0  # when the next copy may go although the server is busy
        self._closed = False

    @property
    def waiting(self) -> int:
        """Copies that wait."""
        return len(self._queue) + len(self._fresh)

    @property
    def busy(self) -> bool:
        """Whether there is a copy that waits, runs or is not counted yet."""
        return bool(self.waiting or self.in_flight or self._replays)

    def offer(self, exchange: Exchange) -> None:
        """Take a copy of a request that was answered, or drop it. The answer need not be written yet."""
        if exchange.cache == SEMANTIC or stood_in(exchange):
            return  # the stable version did not say this
        if self._closed or self.waiting >= self._limits.max_copies:
            self.dropped["closed" if self._closed else "queue"] += 1
            return
        if not self._fresh:
            self._loop.call_soon(self._settle)
        self._fresh.append(exchange)

    def close(self) -> None:
        """Forget what waits, and end what runs; nothing more is told."""
        self._closed = True
        lost = len(self._fresh) + len(self._queue) + len(self._tasks) + self._replays.close()
        self.dropped["closed"] += lost
        self._fresh.clear()
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task, exchange in tuple(self._tasks.items()):
            self._candidate.engine.abandon(exchange)
            task.cancel()

    def samples(self) -> Iterator[Sample]:
        """What became of the copies."""
        yield Sample("mlx_rollout_copies_sent", "Copies that the candidate was asked.", self.sent)
        for reason, count in tuple(self.dropped.items()):
            labels = (("reason", reason),)
            yield Sample("mlx_rollout_copies_dropped", "Copies that were not made, by reason.", count, labels)
        yield Sample("mlx_rollout_copies_waiting", "Copies that wait.", self.waiting, kind="gauge")
        yield Sample("mlx_rollout_copies_in_flight", "Copies being answered.", self.in_flight, kind="gauge")

    def _settle(self) -> None:
        """Weigh what was taken in this turn of the loop: all answers to it are written by now."""
        fresh, self._fresh = self._fresh, []
        for exchange in fresh:
            inputs = exchange.feeds if exchange.endpoint == "infer" else exchange.inputs
            nbytes = sum(map(_weight, inputs.values())) + sum(map(_weight, exchange.outputs.values()))
            if self._held + nbytes > self._limits.max_bytes:
                self.dropped["bytes"] += 1
                continue
            self._held += nbytes
            self._queue.append(_copy_of(exchange, inputs, nbytes))
        self._pump()

    def _pump(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self.in_flight < self._limits.max_in_flight:
            now = time.monotonic()
            idle = self._is_idle()
            if not idle and not self._is_due(now):
                break
            self._send(self._queue.popleft(), busy=not idle)
        if self._queue and not self._closed:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._pump)

    def _is_idle(self) -> bool:
        """Whether one more copy would take nothing from anybody: a worker has nothing to do."""
        stable, candidate = self._stable.engine.batcher, self._candidate.engine.batcher
        if stable is None or candidate is None:
            return False
        callers = stable.in_flight + max(0, candidate.in_flight - self.in_flight)
        return callers + self.in_flight < max(1, stable.policy.workers)

    def _is_due(self, now: float) -> bool:
        waited = now - self._queue[0].taken
        return waited >= _PATIENCE and not self.in_flight and now >= self._busy_again

    def _send(self, copy: Copy, *, busy: bool) -> None:
        self.sent += 1
        self.in_flight += 1
        started = time.monotonic()
        exchange = Exchange(
            copy.request_id, copy.endpoint, datetime.now(UTC), started, started + self._timeout, priority=LOW
        )
        exchange.arm, exchange.skip_cache = SHADOW, True
        exchange.tenant, exchange.parameters = copy.tenant, copy.parameters
        task = self._loop.create_task(self._answer(copy, exchange))
        self._tasks[task] = exchange
        task.add_done_callback(partial(self._finished, copy, exchange, busy))

    def _finished(self, copy: Copy, exchange: Exchange, busy: bool, task: "asyncio.Task[Replay]") -> None:
        self.in_flight -= 1
        del self._tasks[task]
        if busy:
            now = time.monotonic()
            self._busy_again = now + (now - exchange.started) / _BUSY_SHARE
        if self._closed or task.cancelled():
            self._let_go(copy)
        else:
            self._replays.add(task.result())
            self._pump()

    def _let_go(self, copy: Copy) -> None:
        self._held -= copy.nbytes

    async def _answer(self, copy: Copy, exchange: Exchange) -> Replay:
        engine = self._candidate.engine
        status, error = 200, ""
        try:
            if copy.endpoint == "infer":
                await engine.infer(_call_of(copy), exchange)
            else:
                await engine.answer(copy.inputs, exchange, exchange.started)
        except Refusal as refusal:
            status, error = refusal.status, refusal.message
        except Exception:  # a fault of the candidate, which is what a copy is to find
            _logger.exception("The candidate could not answer a copy.")
            status, error = 500, _FAILED
        return Replay(copy, exchange, status, error, time.monotonic() - exchange.started)


def _copy_of(exchange: Exchange, inputs: Columns, nbytes: int) -> Copy:
    # Rows of a run are views of all its rows, which would stay in memory for as long as any of them does.
    outputs = {name: array.copy() for name, array in exchange.outputs.items()}
    return Copy(
        exchange.request_id,
        exchange.endpoint,
        inputs,
        outputs,
        exchange.tenant,
        exchange.parameters,
        time.monotonic(),
        nbytes,
    )


def _weight(array: Array) -> int:
    if array.dtype.kind != "O":
        return array.nbytes
    cells = array.reshape(-1).tolist()
    return array.nbytes + sum(len(cell) for cell in cells if isinstance(cell, str | bytes))


def _call_of(copy: Copy) -> InferRequest:
    return InferRequest(
        None, dict(copy.inputs), {}, tuple(copy.outputs), frozenset(), None, copy.parameters, LOW
    )
