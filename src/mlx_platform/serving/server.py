"""A server process: one listener for requests and one beside it, from the first socket to the last record."""

import asyncio
import gc
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.serving.access import Access
from mlx_platform.serving.admin import AdminApp
from mlx_platform.serving.app import App
from mlx_platform.serving.assembly import Assembly
from mlx_platform.serving.back_thread import BackThread
from mlx_platform.serving.devices.standby import check_fallback
from mlx_platform.serving.feeding.feed import FedListener, Feed
from mlx_platform.serving.following.desk import VERSIONS, Desk
from mlx_platform.serving.http_exchange import RequestIds
from mlx_platform.serving.http_protocol import HttpLimits
from mlx_platform.serving.listener import Listener, bind
from mlx_platform.serving.pulse import Pulse
from mlx_platform.serving.rollout.feedback_desk import FeedbackDesk
from mlx_platform.serving.rollout.observer import Arms
from mlx_platform.serving.router import Router
from mlx_platform.traffic.writer import TrafficWriter

if TYPE_CHECKING:
    from mlx_platform.serving.following.follower import Follower
    from mlx_platform.serving.grpc.listener import GrpcListener
    from mlx_platform.serving.rollout.participant import Participant

_GARBAGE = 20_000  # objects that have come and not gone before it is looked at why
_SILENCE_SECONDS = 0.5
_FAREWELL_SECONDS = 0.5
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the requests by class of status, and of their records, over all versions."""

    requests: Mapping[str, int]
    traffic: Mapping[str, int]


OnReady = Callable[[Addresses], None]


def run(
    model: Model,
    settings: ServingSettings,
    writer: TrafficWriter | None,
    *,
    embedder: Model | None = None,
    light: Model | None = None,
    feed: Feed | None = None,
    desk: Desk | None = None,
    on_ready: OnReady,
) -> Outcome:
    """Serve until SIGTERM or SIGINT, then finish what was accepted; a second signal cuts that short.

    Args:
        model: the loaded model; it is checked against its golden cases before the server is ready.
        settings: addresses, limits, batching.
        writer: the traffic log; everything accepted is in it when this returns, and it is closed.
        embedder: the model of the semantic cache, where this version has one.
        light: the model that answers when no device of the first one works.
        feed: where connections come from, if not from a socket of this server's own.
        desk: where to ask for the version that is to be served, again and again.
        on_ready: called once, when the server takes requests.

    Raises:
        UsageError: an address cannot be used, or settings cannot be followed.
        GateFailedError: the model does not pass its self-check.
    """
    access = Access.of(settings, os.environ)
    if light is not None:
        check_fallback(model, light)
    assembly = Assembly(settings, embedder=embedder, light=light, feed=feed, versions=VERSIONS if desk else 1)
    server = _Server(model, assembly, writer, access, on_ready, feed=feed, desk=desk)
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
    return server.outcome()


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


class _Server:
    def __init__(
        self,
        model: Model,
        assembly: Assembly,
        writer: TrafficWriter | None,
        access: Access,
        on_ready: OnReady,
        *,
        feed: Feed | None,
        desk: Desk | None,
    ) -> None:
        self._feed = feed
        self._model = model
        self._assembly = assembly
        self._settings = assembly.settings
        self._access = access
        self._pulse = Pulse()
        if desk is not None:
            _freeze()  # before the first version is put together: one day it is taken apart
        self._router = Router(assembly.make(model, writer))
        self._arms = Arms(assembly.settings)
        self._feedback = FeedbackDesk.of(assembly.settings, self._arms)
        self._router.sources += (self._arms.samples, self._feedback.samples)
        self._on_ready = on_ready
        self._signalled = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._grpc: GrpcListener | None = None
        self._follower: Follower | None = None
        self._participant: Participant | None = None
        if desk is not None:
            self._follow(desk)

    def _follow(self, desk: Desk) -> None:
        """Go after an alias, and take part in its rollouts."""
        # Here: a server that follows nothing need not import it.
        from mlx_platform.serving.following.follower import Follower
        from mlx_platform.serving.rollout.deaths import Marks
        from mlx_platform.serving.rollout.joining import take_part

        settings = desk.followed.settings
        marks = Marks(settings.path(settings.cache.dir) / "following", secrets.token_hex(6))
        self._follower = Follower(self._router, self._assembly, desk, self._settings.keep_warm_s, marks)
        self._participant = take_part(desk.followed, self._router, self._follower, self._arms)
        self._router.sources.append(self._participant.samples)
        self._router.reports["rollout"] = self._participant.document
        self._router.sources.append(self._follower.samples)
        self._router.reports["following"] = self._follower.document

    async def serve(self, data: socket.socket | None, admin: socket.socket) -> None:
        settings = self._settings
        limits = HttpLimits(
            body_bytes=settings.max_body_bytes,
            head_bytes=settings.max_header_bytes,
            connections=settings.max_connections,
            receive_seconds=settings.receive_timeout_s,
        )
        router, ids = self._router, RequestIds()
        app = App(router, settings, ids, self._feedback)
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
            if self._participant is not None:
                await self._participant.stop()
            if self._follower is not None:
                await self._follower.stop()
            self._arms.leave()
            await self._drain(router, front)
            self._feedback.close()
            for served in router:
                await self._assembly.close_log(served)
            back.stop()
            self._pulse.stop()

    async def _serve_until_stopped(
        self, router: Router, ids: RequestIds, front: Listener, back: BackThread
    ) -> None:
        starting = asyncio.ensure_future(self._assembly.start(router.stable))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.sleep(0)  # the model is tried on another thread, while this one imports gRPC
        await self._start_grpc(router, ids)
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        if self._follower is None:
            _freeze()
        else:
            self._follower.start()
        if self._participant is not None:
            self._participant.start()
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
            if served.chain is not None:
                served.chain.close()
        await self._unless_hurried(asyncio.sleep(self._settings.drain_delay_s))
        await front.stop_accepting()
        patience = self._settings.drain_timeout_s
        calls = asyncio.ensure_future(self._grpc.stop(patience) if self._grpc else asyncio.sleep(0))
        await self._unless_hurried(_both(front.wait_for_end(patience, _SILENCE_SECONDS), calls))
        # Whoever still waits is told so, and that message gets a moment to go out.
        await asyncio.gather(*(served.close(0.0) for served in router))
        self._assembly.capture.stop()
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

    def outcome(self) -> Outcome:
        """What became of everything, once the server has ended."""
        return Outcome(self._router.requests_by_status(), dict(self._assembly.logged))

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


def _freeze() -> None:
    """Have what is there now never looked at again in the middle of somebody's request: it stays."""
    gc.collect()
    gc.freeze()
    # Requests leave nothing behind that refers to itself: to look for it after every 700 that come together,
    # as Python does unless told otherwise, is time lost for small ones.
    gc.set_threshold(_GARBAGE)


async def _both(first: Coroutine[Any, Any, None], second: "asyncio.Future[None]") -> None:
    """Wait for both; the second goes on when nobody waits any more."""
    await first
    await asyncio.shield(second)


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
