"""A server process: one listener for requests and one beside it, from the first socket to the last record."""

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.serving.access import Access
from mlx_platform.serving.admin import AdminApp
from mlx_platform.serving.app import App
from mlx_platform.serving.back_thread import BackThread
from mlx_platform.serving.cache.caches import Caches
from mlx_platform.serving.capture import Capture
from mlx_platform.serving.devices.plan import device_chain
from mlx_platform.serving.devices.standby import Standby, check_fallback, parse_rule
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.feeding import channel
from mlx_platform.serving.feeding.feed import FedListener, Feed
from mlx_platform.serving.feeding.guard import Guard
from mlx_platform.serving.http_exchange import RequestIds
from mlx_platform.serving.http_protocol import HttpLimits
from mlx_platform.serving.listener import Listener, bind
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.pulse import Pulse
from mlx_platform.serving.rehearsal import rehearse
from mlx_platform.serving.router import Router
from mlx_platform.serving.served import Served
from mlx_platform.traffic.writer import TrafficWriter

if TYPE_CHECKING:
    from mlx_platform.serving.grpc.listener import GrpcListener

_SILENCE_SECONDS = 0.5
_FAREWELL_SECONDS = 0.5
_WARMUP_SECONDS = 60.0
_ADMIN_LIMITS = HttpLimits(body_bytes=64 * 1024, connections=64)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a ready server is, and what it serves; `grpc_url` is HOST:PORT, or nothing without gRPC."""

    url: str
    admin_url: str
    grpc_url: str
    model: str
    version: str
    digest: str
    device: str


OnReady = Callable[[Addresses], None]


def run(
    model: Model,
    settings: ServingSettings,
    writer: TrafficWriter | None,
    *,
    embedder: Model | None = None,
    light: Model | None = None,
    feed: Feed | None = None,
    on_ready: OnReady,
) -> Metrics:
    """Serve until SIGTERM or SIGINT, then finish what was accepted; a second signal cuts that short.

    Args:
        model: the loaded model; it is checked against its golden cases before the server is ready.
        settings: addresses, limits, batching.
        writer: the traffic log; everything accepted is in it when this returns, and it is closed.
        embedder: the model of the semantic cache, where this version has one.
        light: the model that answers when no device of the first one works.
        feed: where connections come from, if not from a socket of this server's own.
        on_ready: called once, when the server takes requests.

    Returns:
        What was measured.

    Raises:
        UsageError: an address cannot be used, or settings cannot be followed.
        GateFailedError: the model does not pass its self-check.
    """
    access = Access.of(settings, os.environ)
    if light is not None:
        check_fallback(model, light)
    server = _Server(
        model,
        settings,
        writer,
        access,
        on_ready,
        caches=Caches.of(model, settings, embedder),
        light=light,
        feed=feed,
    )
    data = bind(settings.host, settings.port, "--port") if feed is None else None
    try:
        admin = bind(settings.admin_host, settings.admin_port, "--admin-port")
    except UsageError:
        if data is not None:
            data.close()
        raise
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            runner.run(server.serve(data, admin))
        finally:
            if writer is not None:
                writer.close(settings.drain_timeout_s)
    return server.metrics


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


class _Server:
    def __init__(
        self,
        model: Model,
        settings: ServingSettings,
        writer: TrafficWriter | None,
        access: Access,
        on_ready: OnReady,
        *,
        caches: Caches,
        light: Model | None,
        feed: Feed | None,
    ) -> None:
        self.metrics = Metrics()
        self._feed = feed
        self._chain = device_chain(model, settings)
        self._light = light
        self._rule = parse_rule(settings.degrade.answer)
        self._model = model
        self._settings = settings
        self._writer = writer
        self._access = access
        self._caches = caches
        self._pulse = Pulse()
        self._capture = Capture()
        self._on_ready = on_ready
        self._signalled = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._grpc: GrpcListener | None = None

    async def serve(self, data: socket.socket | None, admin: socket.socket) -> None:
        settings = self._settings
        engine = Engine(
            self._model,
            settings,
            self.metrics,
            self._writer,
            runner=self._chain,
            caches=self._caches,
            guard=self._guard(),
            capture=self._capture,
        )
        standby = self._stand_by(engine)
        self.metrics.sources += (self._chain.samples, standby.samples)
        limits = HttpLimits(
            body_bytes=settings.max_body_bytes,
            head_bytes=settings.max_header_bytes,
            connections=settings.max_connections,
            receive_seconds=settings.receive_timeout_s,
        )
        router, ids = Router(Served(engine, settings, standby)), RequestIds()
        app = App(router, settings, ids)
        feed = self._feed
        front = FedListener(app, feed, limits, self._stop.set) if feed else Listener(app, data, limits)
        back = BackThread(AdminApp(router, settings, self._access, self._pulse), admin, _ADMIN_LIMITS)
        self._watch_signals()
        # Both answer from the start, so that whoever waits for readiness has somebody to ask.
        self._pulse.start()
        back.start()
        await front.start()
        try:
            await self._serve_until_stopped(router, ids, front, back)
        except Exception:
            if self._feed is not None:
                self._feed.quit()  # nobody else will end it
            raise
        finally:
            self._chain.close()
            await self._drain(router, front)
            await standby.close()
            back.stop()
            self._pulse.stop()

    def _guard(self) -> Guard | None:
        if self._feed is None:
            return None
        tell = partial(self._feed.tell, channel.HARMLESS)
        self._feed.guard = Guard(self._chain, self._feed.recorder, tell)
        return self._feed.guard

    def _stand_by(self, engine: Engine) -> Standby:
        """Whoever answers in the place of the engine."""
        light = None if self._light is None else Engine(self._light, self._settings, Metrics(), None)
        standby = Standby(self._model, light, self._rule)
        engine.covered = standby.covers
        return standby

    async def _start(self, engine: Engine, standby: Standby) -> None:
        # Before anything else, as it tells later whose fault a failure is.
        await asyncio.get_running_loop().run_in_executor(None, self._chain.prepare)
        await engine.start()
        if self._settings.warmup:
            path = Path(self._settings.warmup)
            warm = partial(rehearse, self._model, path, _WARMUP_SECONDS)
            await asyncio.get_running_loop().run_in_executor(None, warm)
        await standby.start()

    async def _serve_until_stopped(
        self, router: Router, ids: RequestIds, front: Listener, back: BackThread
    ) -> None:
        starting = asyncio.ensure_future(self._start(router.engine, router.stable.standby))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.sleep(0)  # the model is tried on another thread, while this one imports gRPC
        await self._start_grpc(router, ids)
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        # What is there now stays, and need not be looked at again in the middle of somebody's request.
        gc.collect()
        gc.freeze()
        self._on_ready(
            Addresses(
                url=_url(*front.address) if self._feed is None else "",
                admin_url=_url(*back.address),
                grpc_url=self._grpc.address if self._grpc is not None else "",
                model=self._model.name,
                version=self._model.version,
                digest=self._model.digest,
                device=self._model.session.device,
            )
        )
        await stopping

    async def _start_grpc(self, router: Router, ids: RequestIds) -> None:
        if self._settings.grpc_port < 0:
            return
        from mlx_platform.serving.grpc.listener import GrpcListener

        self._grpc = GrpcListener(router, self._settings, ids)
        await self._grpc.start()

    async def _drain(self, router: Router, front: Listener) -> None:
        """Not ready first, then no new connections, then nothing new; what was accepted is finished."""
        for served in router:
            served.engine.draining = True
        await self._unless_hurried(asyncio.sleep(self._settings.drain_delay_s))
        await front.stop_accepting()
        patience = self._settings.drain_timeout_s
        calls = asyncio.ensure_future(self._grpc.stop(patience) if self._grpc else asyncio.sleep(0))
        await self._unless_hurried(_both(front.wait_for_end(patience, _SILENCE_SECONDS), calls))
        # Whoever still waits is told so, and that message gets a moment to go out.
        await asyncio.gather(*(served.engine.close(0.0) for served in router))
        self._capture.stop()
        await front.wait_for_end(_FAREWELL_SECONDS, 0.0)
        front.abort()
        if self._grpc is not None:
            await self._grpc.stop(_FAREWELL_SECONDS)
        await calls

    async def _unless_hurried(self, waiting: Coroutine[Any, Any, None]) -> None:
        tasks = (asyncio.ensure_future(waiting), asyncio.ensure_future(self._hurry.wait()))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    def _watch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        # Ctrl-C reaches every process of a terminal, and it is the supervisor who tells its workers to stop.
        for number in (signal.SIGTERM, signal.SIGINT) if self._feed is None else (signal.SIGTERM,):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        # A feed that ends stops the server as well, and is no signal.
        if self._signalled:
            self._hurry.set()
        self._signalled = True
        self._stop.set()


async def _both(first: Coroutine[Any, Any, None], second: "asyncio.Future[None]") -> None:
    """Wait for both; the second goes on when nobody waits any more."""
    await first
    await asyncio.shield(second)


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
