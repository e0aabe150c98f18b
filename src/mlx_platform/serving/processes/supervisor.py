"""The process that accepts connections, deals them out to workers, and starts the dead ones again.

It never touches a request: a connection goes to the worker with the fewest, as a descriptor. So nothing that
a client sends can end it, and a crash costs the requests of one worker at most, which are told 503.
"""

import asyncio
import json
import logging
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_platform.core.errors import GateFailedError, MlxError, UnavailableError, UsageError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.serving.access import Access
from mlx_platform.serving.feeding import channel
from mlx_platform.serving.http_protocol import HttpLimits
from mlx_platform.serving.listener import Listener, bind
from mlx_platform.serving.processes.child import Child, unavailable
from mlx_platform.serving.processes.overview import OverviewApp, ask
from mlx_platform.serving.processes.quarantine import Quarantine
from mlx_platform.serving.processes.worker import Plan

_FIRST_BACKOFF = 0.1
_MOST_BACKOFF = 30.0
_HEALTHY_SECONDS = 30.0  # a worker that lived so long did not die of its start
_LINGER_SECONDS = 2.0
_WATCH_SECONDS = 0.5
_RENEW_SECONDS = 15.0  # in which a device may recover by itself
_KILL_SECONDS = 5.0  # after a drain that has not ended
_STARTS = 3  # of a worker that something kills before it was ever ready
_ADMIN_LIMITS = HttpLimits(body_bytes=64 * 1024, connections=64)
_ERRORS: dict[int, type[MlxError]] = {2: UsageError, 5: GateFailedError, 9: UnavailableError}
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """What the workers counted; `deaths` ended unasked, `silent` ended before they could tell."""

    deaths: int = 0
    silent: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    traffic: Counter[str] = field(default_factory=Counter)


OnReady = Callable[[Mapping[str, str]], None]


class Supervisor:
    """Workers on devices, behind one address.

    Args:
        plan: what each worker serves.
        devices: one worker each.
        access: who may ask the second listener.
        on_ready: told the addresses once every worker is ready.
    """

    def __init__(self, plan: Plan, devices: tuple[str, ...], access: Access, on_ready: OnReady) -> None:
        self.totals = Totals()
        self.quarantine = Quarantine()
        self.draining = False
        self._settings = plan.settings
        self._plan = plan
        self._access = access
        self._on_ready = on_ready
        self._stop = asyncio.Event()
        self._announced = False
        self._failure: MlxError | None = None
        share = plan.settings.max_connections
        self.children = tuple(Child(n, device, share, self._on_message) for n, device in enumerate(devices))
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, data: socket.socket, admin: socket.socket, grpc: socket.socket | None) -> None:
        """Serve until SIGTERM or SIGINT; a second signal cuts the drain short.

        Raises:
            MlxError: a worker could not start at all.
        """
        grpc_port = grpc.getsockname()[1] if grpc is not None else -1
        self._settings = replace(self._settings, admin_host="127.0.0.1", admin_port=0, grpc_port=grpc_port)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        back = Listener(OverviewApp(self, self._access), admin, _ADMIN_LIMITS)
        await back.start()
        self._addresses = {"url": _url(data), "admin_url": _url(admin)}
        data.setblocking(False)
        keepers = [asyncio.ensure_future(self._keep(child)) for child in self.children]
        accepting = asyncio.ensure_future(self._accept(data))
        watching = asyncio.ensure_future(self._watch())
        try:
            await self._stop.wait()
            await self._drain(data, accepting, keepers)
        finally:
            watching.cancel()
            for child in self.children:
                child.signal(signal.SIGKILL)
            await asyncio.gather(*keepers, return_exceptions=True)
            for child in self.children:
                child.close()
            await back.stop_accepting()
            back.abort()
        if self._failure is not None:
            raise self._failure

    @property
    def ready(self) -> bool:
        return not self.draining and any(child.ready and child.healthy for child in self.children)

    @property
    def deaths(self) -> int:
        """How many workers ended unasked."""
        return self.totals.deaths

    async def _watch(self) -> None:
        """Ask the workers again and again whether they are fit to take requests."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for child in self.children:
                if child.ready:
                    status, said = await ask(child, "GET", b"/readyz")
                    child.note_health(healthy=status == 200, degraded=b'"degraded":""' not in said)
            self._renew()

    def _renew(self) -> None:
        """Have a worker anew that lost its device: most failures of a GPU last as long as the process.

        Only while another worker is whole, and one at a time.
        """
        whole = [child for child in self.children if child.ready and child.lost_since is None]
        if not whole or len(whole) < len(self.children) - 1:
            return
        for child in self.children:
            if child.ready and child.lost_for > _RENEW_SECONDS:
                _logger.warning("Worker %d has lost %s and is started anew.", child.number, child.device)
                child.retire()

    async def _keep(self, child: Child) -> None:
        """Have a worker on a device, whatever happens to it, until the server stops."""
        delay = _FIRST_BACKOFF
        while not self._stop.is_set():
            await child.start(self._plan.written(child.device, self._settings))
            for digest in self.quarantine.refused:
                child.tell(channel.REFUSE, digest)
            for digest in self.quarantine.suspects:
                child.tell(channel.SUSPECT, digest)
            status = await child.wait()
            self.totals.silent += child.owes
            if self._stop.is_set():
                return
            self._mourn(child, status)
            if self._failure is not None:
                self._stop.set()
                return
            if time.monotonic() - child.started > _HEALTHY_SECONDS:
                delay = _FIRST_BACKOFF
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)
            delay = min(2 * delay, _MOST_BACKOFF)

    def _mourn(self, child: Child, status: int) -> None:
        self.totals.deaths += 1
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        _logger.warning("Worker %d on %s ended with %s.", child.number, child.device, how)
        suspects, refused = self.quarantine.blame(child.recorder)
        for other in self.children:
            for digest in refused:
                other.tell(channel.REFUSE, digest)
            for digest in suspects:
                other.tell(channel.SUSPECT, digest)
        if refused:
            _logger.warning("Inputs that ended a worker twice are refused from now on: %d.", len(refused))
        # Whatever sends signals may have meant another process; what fails by itself fails again.
        again = status < 0 and child.starts < _STARTS
        if not self._announced and self._failure is None and not again:
            self._failure = UnavailableError(f"A worker on {child.device} ended with {how} at the start.")

    def _on_message(self, child: Child, kind: bytes, payload: bytes) -> None:
        if kind == channel.READY:
            if not self._announced and all(each.ready for each in self.children):
                self._announced = True
                self._on_ready(child.addresses | self._addresses)
        elif kind == channel.HARMLESS:
            self.quarantine.acquit(payload)
        elif kind == channel.FINISHED:
            counts = json.loads(payload)
            self.totals.requests.update(counts["requests"])
            self.totals.traffic.update(counts["traffic"])
        elif kind == channel.ERROR:
            error = json.loads(payload)
            _logger.warning("%s", error["message"])
            if not self._announced:
                kind_of_error = _ERRORS.get(error["exit_code"], MlxError)
                self._failure = kind_of_error(error["message"], hint=error["hint"])

    async def _accept(self, data: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(data)
            except OSError as error:
                # No descriptors left: those who wait in the kernel's queue get their turn later.
                _logger.warning("A connection could not be accepted: %s.", error.strerror)
                await asyncio.sleep(0.1)
                continue
            self._deal(connection)

    def _deal(self, connection: socket.socket) -> None:
        """Give a connection to the worker that has the fewest, among those that are fit if any is."""
        ready = [child for child in self.children if child.ready]
        for child in sorted(ready, key=lambda child: (not child.healthy, child.connections)):
            if child.hand_over(connection):
                return
        task = asyncio.ensure_future(_turn_away(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(
        self,
        data: socket.socket,
        accepting: "asyncio.Future[None]",
        keepers: Sequence["asyncio.Future[None]"],
    ) -> None:
        self.draining = True
        for child in self.children:
            child.signal(signal.SIGTERM)
        if self._failure is None:
            await asyncio.sleep(self._settings.drain_delay_s)
        accepting.cancel()
        self._take_rest(data)
        data.close()
        for child in self.children:
            child.end_feed()
        patience = self._settings.drain_timeout_s + _KILL_SECONDS
        await asyncio.wait(keepers, timeout=patience)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take_rest(self, data: socket.socket) -> None:
        """Deal out the connections that the kernel made and nobody has taken."""
        data.listen(0)
        while True:
            try:
                connection, _ = data.accept()
            except OSError:
                return
            connection.setblocking(False)
            self._deal(connection)

    def _on_signal(self) -> None:
        if self.draining:
            for child in self.children:
                child.signal(signal.SIGTERM)
        self._stop.set()


def supervise(plan: Plan, devices: tuple[str, ...], access: Access, *, on_ready: OnReady) -> Totals:
    """Serve with a worker on each device until somebody stops it.

    Raises:
        UsageError: an address cannot be used.
        MlxError: a worker could not start.
    """
    import uvloop

    settings = plan.settings
    with (
        bind(settings.host, settings.port, "--port") as data,
        bind(settings.admin_host, settings.admin_port, "--admin-port") as admin,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        grpc = _reserve(settings)
        try:
            supervisor = Supervisor(plan, devices, access, on_ready)
            runner.run(supervisor.serve(data, admin, grpc))
        finally:
            if grpc is not None:
                grpc.close()
    return supervisor.totals


def _reserve(settings: ServingSettings) -> socket.socket | None:
    """Keep the port that all workers listen on for gRPC; the kernel deals its connections out."""
    if settings.grpc_port < 0:
        return None
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    reserved = socket.socket(family)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((settings.host, settings.grpc_port))
    except OSError as error:
        reserved.close()
        raise UsageError(
            f"Cannot listen on port {settings.grpc_port} of {settings.host} for gRPC.",
            hint="Take another one with --grpc-port, or 0 for a free one.",
        ) from error
    return reserved


async def _turn_away(connection: socket.socket) -> None:
    """Answer in the place of a worker; what the client still sends is read, or it might not see that."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    with connection, suppress(OSError, TimeoutError):
        await loop.sock_sendall(connection, unavailable("No process can take this now: ask again later."))
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LINGER_SECONDS):
            while await loop.sock_recv(connection, 65536):
                pass


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
