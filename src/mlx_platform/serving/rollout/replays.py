"""What the candidate made of copies, written to the log, counted and compared: several of them at a time.

A run sweeps everything else out of the processor's caches. What is done after each run is done slowly; what
is done for many copies in a row is slow for the first of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mlx_platform.core.tensors import Columns
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import Exchange, write_record

_MOST = 16  # copies that are looked at together
_SECONDS = 1.0  # how long the first of them waits for others
_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Copy:
    """A request that the stable version has answered, and its answer: columns, or tensors both ways.

    `taken` is on `time.monotonic`, `nbytes` the memory that the copy holds.
    """

    request_id: str
    endpoint: str
    inputs: Columns
    outputs: Columns
    tenant: bytes
    parameters: bytes
    taken: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What the candidate made of a copy: a status, the sentence of an error, and the seconds it took."""

    copy: Copy
    exchange: Exchange
    status: int
    error: str
    seconds: float


class Replays:
    """Lives on the event loop of the candidate.

    Args:
        engine: of the candidate.
        tell: counts a replay.
        done: told the copies that nobody needs any more.
    """

    def __init__(
        self, engine: Engine, tell: Callable[[Replay], Awaitable[None]], done: Callable[[Copy], None]
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Replay] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._gathered) + (self._task is not None)

    def add(self, replay: Replay) -> None:
        """Take a replay; it is counted a moment later."""
        self._gathered.append(replay)
        if len(self._gathered) >= _MOST:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(_SECONDS, self._begin)

    def close(self) -> int:
        """Count nothing more; how many replays that leaves out."""
        lost = len(self._gathered)
        for replay in self._gathered:
            self._done(replay.copy)
        self._gathered.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        return lost

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._gathered:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._gathered:
                gathered, self._gathered = self._gathered, []
                for replay in gathered:
                    await self._note(replay)
                    await asyncio.sleep(0)  # callers come in between
        finally:
            self._task = None

    async def _note(self, replay: Replay) -> None:
        try:
            if not self._engine.closed:
                self._write(replay)
                await self._tell(replay)
        except Exception:  # the rim: one of them must not end the others
            _logger.exception("A copy could not be counted.")
        finally:
            self._done(replay.copy)

    def _write(self, replay: Replay) -> None:
        writer = self._engine.writer
        if writer is None:
            return
        timings = {stage: spent * 1000 for stage, spent in replay.exchange.seconds.items()}
        timings["total"] = replay.seconds * 1000
        write_record(
            replay.exchange,
            self._engine.model,
            writer,
            status=replay.status,
            error=replay.error,
            timings_ms=timings,
        )
