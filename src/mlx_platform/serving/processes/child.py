"""A worker as its supervisor sees it: a process, a channel, its connections, and what it died of."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from mlx_platform.serving.feeding import channel
from mlx_platform.serving.feeding.flight_recorder import FlightRecorder

_HEAD = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n"
)
_LOST = "The process that worked on this request ended: ask again later."


class Child:
    """One worker after the other on one device. Lives on the event loop.

    Args:
        number: its own among the workers.
        device: what it runs on.
        connections: how many it may have.
        on_message: told what it sends that is not about connections.
    """

    def __init__(
        self, number: int, device: str, connections: int, on_message: Callable[["Child", bytes, bytes], None]
    ) -> None:
        self.number = number
        self.device = device
        self.ready = False
        self.healthy = True  # as it said last
        self.owes = False  # whether it took requests, and has not told what it counted
        self.lost_since: float | None = None  # when it was first seen on another device than its own
        self.addresses: dict[str, str] = {}
        self.starts = 0
        self.started = 0.0
        self._on_message = on_message
        self._free = list(range(connections))
        self._held: dict[int, socket.socket] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._end: socket.socket | None = None
        # The worker inherits another descriptor of the same memory.
        self._memory = FlightRecorder.create(connections)
        self.recorder = FlightRecorder(os.dup(self._memory), connections)

    @property
    def connections(self) -> int:
        return len(self._held)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self, plan: bytes) -> None:
        """Start a process; it says when it is ready."""
        self.recorder.clear()
        self.owes = False
        self.starts += 1
        self.started = time.monotonic()
        mine, theirs = channel.pair()
        with theirs:
            command = [sys.executable, "-m", "mlx_platform.serving.processes.worker"]
            self._process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                str(self._memory),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(), self._memory),
            )
        self._end = mine
        asyncio.get_running_loop().add_reader(mine.fileno(), self._read)
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(ConnectionError):
                stdin.write(plan)
                await stdin.drain()
                stdin.close()

    async def wait(self) -> int:
        """The exit status of the process, once it has ended and all that it sent was read."""
        assert self._process is not None  # noqa: S101 - it was started
        status = await self._process.wait()
        self.ready = False
        if self._end is not None:
            self._read()
        self._hang_up()
        for place in list(self._held):
            self._let_go(place)
        return status

    def hand_over(self, connection: socket.socket) -> bool:
        """Give it a connection; False when it cannot take one."""
        if self._end is None or not self._free:
            return False
        place = self._free.pop()
        if not channel.send(self._end, channel.CONNECTION, channel.place(place), connection.fileno()):
            self._free.append(place)
            return False
        self._held[place] = connection
        return True

    def tell(self, kind: bytes, payload: bytes) -> None:
        if self._end is not None:
            channel.send(self._end, kind, payload)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    @property
    def lost_for(self) -> float:
        """Seconds for which it has been without its device."""
        return 0.0 if self.lost_since is None else time.monotonic() - self.lost_since

    def note_health(self, *, healthy: bool, degraded: bool) -> None:
        """Keep what it said of itself."""
        self.healthy = healthy
        if not degraded:
            self.lost_since = None
        elif self.lost_since is None:
            self.lost_since = time.monotonic()

    def retire(self) -> None:
        """Let it finish what it has, and end."""
        self.ready = False
        self.signal(signal.SIGTERM)
        self.end_feed()

    def end_feed(self) -> None:
        """Say that no more connections come; what it sends is read on."""
        if self._end is not None:
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._hang_up()
        self.recorder.close()
        os.close(self._memory)

    def _read(self) -> None:
        try:
            while self._end is not None and (message := channel.receive(self._end)) is not None:
                kind, payload, _ = message
                if kind == channel.ENDED:
                    self._let_go(channel.number_of(payload))
                else:
                    self._obey(kind, payload)
        except EOFError:
            self._hang_up()

    def _obey(self, kind: bytes, payload: bytes) -> None:
        if kind == channel.READY:
            self.addresses = orjson.loads(payload)
            self.ready = self.healthy = self.owes = True
            self.lost_since = None
        elif kind == channel.FINISHED:
            self.owes = False
        self._on_message(self, kind, payload)

    def _let_go(self, place: int) -> None:
        """Close our copy of a connection; whoever was promised an answer of a dead worker is told."""
        connection = self._held.pop(place, None)
        if connection is None:
            return
        self._free.append(place)
        with suppress(OSError):
            if self.recorder.is_busy(place):
                connection.send(unavailable(_LOST), socket.MSG_DONTWAIT)
            connection.shutdown(socket.SHUT_WR)
        connection.close()

    def _hang_up(self) -> None:
        if self._end is not None:
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            self._end.close()
            self._end = None


def unavailable(message: str) -> bytes:
    """An answer for those whom no worker answers."""
    body = orjson.dumps({"error": message})
    return _HEAD % len(body) + body


def document(child: Child) -> dict[str, Any]:
    """A worker, JSON-ready."""
    return {
        "worker": child.number,
        "device": child.device,
        "pid": child.pid,
        "ready": child.ready and child.healthy,
        "connections": child.connections,
        "starts": child.starts,
    }
