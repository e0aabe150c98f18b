"""Bytes in a Redis server, which may be slow, gone or wrong without harm to anybody.

Requests that come in while a command is on its way are read with one MGET: most of what a command costs
does not depend on what it holds. There are two connections, so that a read never waits for a
write, and never more than one command on each: no answer can be taken for another's.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.serving.cache.breaker import Breaker

if TYPE_CHECKING:
    from redis.asyncio import Redis

_PREFIX = b"mlx:answer:"
_READ_KEYS = 64  # of one MGET
_WRITE_BYTES = 1024 * 1024  # of one pipeline, one value more or less
_WRITE_PATIENCE = 10  # a pipeline may take so many times as long as a read: nobody waits for it
_QUEUED_WRITES = 256
_PROBE_SECONDS = 1.0
_logger = logging.getLogger(__name__)

_Found = asyncio.Future[bytes | None]


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where Redis is, and how long to wait for it: `timeout` and `keep` (of an entry) in seconds."""

    url: str
    password: str = ""
    timeout: float = 0.02
    keep: int = 86_400


class RedisStore:
    """Keeps bytes by key; used on one event loop. Nothing here raises or waits for longer than the timeout.

    Attributes:
        errors: by reason: `timeout`, `connection`, `probe`, `queue` (a write that found no room).
    """

    def __init__(self, address: RedisAddress, breaker: Breaker | None = None) -> None:
        self.errors: Counter[str] = Counter(timeout=0, connection=0, probe=0, queue=0)
        self.breaker = breaker or Breaker()
        self._address = address
        self._readers = _client(address)
        self._writers = _client(address)
        self._reads: deque[tuple[bytes, _Found]] = deque()
        self._writes: deque[tuple[bytes, bytes | None]] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._probed = False

    @property
    def open(self) -> bool:
        """Whether there is any use in asking."""
        return not self.breaker.open

    def start(self) -> None:
        """Look whether Redis is there, beside whatever else the loop does."""
        self.breaker.fail(surely=True)
        self._spawn("probe", self._probe)

    async def get(self, key: bytes) -> bytes | None:
        """What is kept under `key`; None where nothing is, or where no answer came in time."""
        if self.breaker.open:
            return None
        loop = asyncio.get_running_loop()
        found: _Found = loop.create_future()
        self._reads.append((key, found))
        self._spawn("read", self._read)
        timer = loop.call_later(self._address.timeout, self._give_up, found)
        try:
            return await found
        finally:
            timer.cancel()

    def put(self, key: bytes, value: bytes) -> None:
        """Keep `value` some time soon; where too much waits to be written, it is not kept."""
        self._queue(key, value)

    def drop(self, key: bytes) -> None:
        """Remove what is kept under `key` some time soon."""
        self._queue(key, None)

    async def close(self) -> None:
        """Write what waits, within the time of a command, and let go of the connections."""
        writing = self._tasks.get("write")
        if writing is not None and not writing.done():
            await asyncio.wait((writing,), timeout=_WRITE_PATIENCE * self._address.timeout)
        self.breaker.fail(surely=True)  # so that nobody asks any more
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for client in (self._readers, self._writers):
            with suppress(Exception):  # nobody needs it any more, whatever it says
                async with asyncio.timeout(_PROBE_SECONDS):
                    await client.aclose()

    def _queue(self, key: bytes, value: bytes | None) -> None:
        if self.breaker.open:
            return
        if len(self._writes) >= _QUEUED_WRITES:
            self.errors["queue"] += 1
            return
        self._writes.append((key, value))
        self._spawn("write", self._write)

    def _spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        running = self._tasks.get(name)
        if running is None or running.done():
            self._tasks[name] = asyncio.get_running_loop().create_task(work())

    def _give_up(self, found: _Found) -> None:
        if not found.done():
            found.set_result(None)

    async def _read(self) -> None:
        while self._reads and not self.breaker.open:
            asked = [self._reads.popleft() for _ in range(min(len(self._reads), _READ_KEYS))]
            # Nobody waits any more for what was asked too long ago.
            asked = [(key, found) for key, found in asked if not found.done()]
            if not asked:
                continue
            values = await self._command(
                lambda: self._readers.mget([_PREFIX + key for key, _ in asked]),  # noqa: B023 - awaited here
                self._address.timeout,
            )
            for (_, found), value in zip(asked, values or [None] * len(asked), strict=False):
                if not found.done():
                    found.set_result(value if isinstance(value, bytes) else None)
        while self._reads:
            self._give_up(self._reads.popleft()[1])

    async def _write(self) -> None:
        while self._writes and not self.breaker.open:
            pipeline = self._writers.pipeline(transaction=False)
            size = 0
            while self._writes and size < _WRITE_BYTES:
                key, value = self._writes.popleft()
                if value is None:
                    pipeline.delete(_PREFIX + key)
                else:
                    pipeline.set(_PREFIX + key, value, ex=self._address.keep)
                    size += len(value)
            await self._command(pipeline.execute, _WRITE_PATIENCE * self._address.timeout)
        self._writes.clear()

    async def _command(self, run: Callable[[], Awaitable[Any]], patience: float) -> Any:
        try:
            async with asyncio.timeout(patience):
                result = await run()
        except TimeoutError:
            # The library drops a connection whose answer nobody waited for.
            self._fail("timeout", f"no answer within {patience * 1000:.0f} ms", surely=False)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a foreign server makes the library raise
            self._fail("connection", str(error), surely=True)
            return None
        self.breaker.succeed()
        return result

    def _fail(self, reason: str, message: str, *, surely: bool) -> None:
        self.errors[reason] += 1
        if self.breaker.fail(surely=surely):
            _warn(message)
            self._spawn("probe", self._probe)

    async def _probe(self) -> None:
        """Ask until an answer comes in time; the first time at once, when the server starts."""
        while self.breaker.open:
            if self._probed:
                await asyncio.sleep(self.breaker.next_pause())
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    await self._readers.ping()
                # With the connection there, it has to be as quick as for a request.
                async with asyncio.timeout(self._address.timeout):
                    await self._readers.ping()
            except Exception as error:  # noqa: BLE001 - as above
                self.errors["probe"] += 1
                if not self._probed:
                    _warn(str(error) or "no answer in time")
            else:
                self.breaker.close()
                _logger.info("The cache in Redis answers.")
            self._probed = True


def _warn(reason: str) -> None:
    shown = printable(reason, 200).rstrip(".")
    _logger.warning("The cache in Redis is left out until it answers: %s.", shown)


def _client(address: RedisAddress) -> "Redis":
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    try:
        return Redis.from_url(
            address.url,
            password=address.password or None,
            socket_connect_timeout=_PROBE_SECONDS,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
        )
    except ValueError as error:
        raise UsageError(
            f"serving.cache.redis_url is no address of a Redis server: {printable(str(error), 200)}.",
            hint="Write it as redis://HOST:PORT/DATABASE, rediss:// for TLS, or unix:///PATH.",
        ) from error
