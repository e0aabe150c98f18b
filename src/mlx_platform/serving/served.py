"""An engine as its clients see it, whatever protocol they speak: its names, its identity, and its books."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import Columns, Tensors
from mlx_platform.serving.devices.chain import DeviceChain
from mlx_platform.serving.devices.standby import Standby
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import PRODUCTION, Exchange
from mlx_platform.serving.http_exchange import Header
from mlx_platform.serving.identity import Identity
from mlx_platform.serving.metadata import describe_config
from mlx_platform.serving.predict_body import Bounds
from mlx_platform.serving.priority import priority_of_header
from mlx_platform.serving.protocol_v2 import InferRequest
from mlx_platform.serving.refusal import FailedRefusal, draining, not_ready
from mlx_platform.serving.statistics import Statistics

LARGE_BYTES = 256 * 1024
"""Of a body; a smaller one is read and written in a few milliseconds."""

_Made = TypeVar("_Made")


class Served:
    """One engine, with what every answer of it says worked out before, and what answers when it cannot."""

    def __init__(
        self,
        engine: Engine,
        settings: ServingSettings,
        standby: Standby | None = None,
        chain: DeviceChain | None = None,
    ) -> None:
        model = engine.model
        self.engine = engine
        self.name = model.name
        self.version = model.version
        self.signature = engine.signature
        self.statistics = Statistics()
        self.bounds = Bounds.of(model.spec.inputs, model.columns, engine.max_rows)
        self.arm = PRODUCTION
        self.identity = Identity.of(model, PRODUCTION)
        self.chain = chain
        self._open = 0  # exchanges
        self._idle: asyncio.Event | None = None
        self.standby = standby or Standby(model, None, None)
        self._degraded = Identity.of(model, PRODUCTION)  # as the last degraded answer had it
        self._settings = settings
        self._timeout = settings.request_timeout_ms / 1000
        # One: they hold the interpreter most of the time, so that more would only get into each other's way.
        self._bodies = ThreadPoolExecutor(1, thread_name_prefix="mlx-bodies")

    @property
    def state(self) -> str:
        """The state in words of the model repository extension."""
        if self.engine.ready:
            return "READY"
        return "UNLOADING" if self.engine.draining else "LOADING"

    def play(self, arm: str) -> None:
        """Answer as another share of the traffic from now on."""
        if arm != self.arm:
            self.arm = arm
            self.identity = self._degraded = Identity.of(self.engine.model, arm)

    def configuration(self) -> dict[str, Any]:
        """See `describe_config`."""
        return describe_config(self.name, self.version, self.signature, self.engine.warm.size.rows)

    def statistics_document(self) -> dict[str, Any]:
        """See `Statistics.document`."""
        executions = sum(self.engine.metrics.batch_rows.counts)
        return self.statistics.document(self.name, self.version, executions, self.engine.runs.document())

    def open(
        self, request_id: str, endpoint: str, headers: Mapping[bytes, bytes], wish: float | None
    ) -> Exchange:
        """Begin an exchange, if the server takes any now.

        Args:
            request_id: its name in the log.
            endpoint: "predict" or "infer".
            headers: what the client sent beside it, by lower-case name.
            wish: seconds after which the client does not wait any more; None leaves it to the server.

        Raises:
            Refusal: 503; not ready yet, or not any more. 400; a header that makes no sense.
        """
        if self.engine.batcher is None:
            raise not_ready()
        if self.engine.closed:
            raise draining()
        started = time.monotonic()
        timeout = self._timeout if wish is None else min(self._timeout, wish)
        exchange = Exchange(request_id, endpoint, datetime.now(UTC), started, started + timeout)
        exchange.arm = self.arm
        exchange.priority = priority_of_header(headers)
        self.engine.caches.read_wishes(exchange, headers)
        exchange.trace = self.engine.observation.begin(headers.get(b"traceparent"))
        self._open += 1
        return exchange

    async def infer(self, call: InferRequest, exchange: Exchange) -> Tensors:
        """The outputs that a request for tensors asks for, which has just been read.

        Raises:
            Refusal: why there are none.
        """
        if call.timeout is not None:
            exchange.deadline = min(exchange.deadline, exchange.started + call.timeout)
        if call.priority is not None:
            exchange.priority = call.priority
        exchange.parameters = call.parameters
        exchange.seconds["ingress"] = time.monotonic() - exchange.started
        try:
            outputs = await self.engine.infer(call, exchange)
        except FailedRefusal as refusal:
            return await self.standby.infer(call, exchange, refusal)
        self._note_device(exchange)
        return outputs

    async def predict(self, rows: Any, exchange: Exchange) -> Columns:
        """The answers to raw rows, which have just been read.

        Raises:
            Refusal: why there are none.
        """
        exchange.seconds["ingress"] = time.monotonic() - exchange.started
        try:
            answers = await self.engine.predict(rows, exchange)
        except FailedRefusal as refusal:
            return await self.standby.predict(rows, exchange, refusal)
        self._note_device(exchange)
        return answers

    async def beside(self, work: Callable[[], _Made]) -> _Made:
        """Work on a long body on a thread: the event loop has its turn after each of its steps."""
        return await asyncio.get_running_loop().run_in_executor(self._bodies, work)

    def author(self, exchange: Exchange) -> Identity:
        """Who answered it."""
        return exchange.identity or self.identity

    def abandon(self, exchange: Exchange) -> None:
        """Drop what was not started for a client that has gone."""
        (exchange.taken_by or self.engine).abandon(exchange)

    def _note_device(self, exchange: Exchange) -> None:
        degraded = self.engine.runner.degraded
        if not degraded:
            return
        if self._degraded.degraded != degraded:
            self._degraded = Identity.of(self.engine.model, self.arm, degraded)
        exchange.identity = self._degraded

    def finish(self, exchange: Exchange, *, status: int, error: str) -> float:
        """Close the books on an exchange that was answered with this HTTP status; the seconds it took."""
        self._open -= 1
        if not self._open and self._idle is not None:
            self._idle.set()
        total = time.monotonic() - exchange.started
        self.statistics.observe(exchange, total, succeeded=status < 400)
        self.engine.finish(exchange, status=status, error=error, total=total)
        return total

    async def wait_until_idle(self) -> None:
        """Return once no exchange is open; nobody may begin one any more."""
        if self._open:
            self._idle = asyncio.Event()
            await self._idle.wait()

    async def close(self, patience: float) -> None:
        """Finish what was accepted, for at most `patience` seconds, and let go of threads."""
        if self.chain is not None:
            self.chain.close()
        await self.engine.close(patience)
        await self.standby.close()
        self._bodies.shutdown(wait=False)

    def told(self, exchange: Exchange, total: float) -> list[Header]:
        """What the client is told about an exchange that took so many seconds, beside the answer."""
        headers = self.engine.observation.headers(exchange, total)
        if exchange.cache != "off":
            headers.append((b"x-cache", exchange.cache.encode()))
        return headers
