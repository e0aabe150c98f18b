"""A listener whose connections come from another process, each with a place in the flight recorder."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from mlx_platform.serving.feeding import channel
from mlx_platform.serving.feeding.flight_recorder import FlightRecorder
from mlx_platform.serving.http_protocol import Cycle, HttpLimits, LimitedProtocol
from mlx_platform.serving.listener import Listener


class Feed:
    """A worker's end of the channel. Lives on the event loop.

    Args:
        end: the socket to the supervisor.
        recorder: the worker's own.
    """

    def __init__(self, end: socket.socket, recorder: FlightRecorder) -> None:
        self.recorder = recorder
        self.suspects: set[bytes] = set()  # digests of inputs, for the guards of all versions
        self.refused: set[bytes] = set()
        self._end = end
        self._over = asyncio.Event()
        self._take: Callable[[socket.socket, int], None] | None = None
        self._on_over: Callable[[], None] | None = None

    def start(self, take: Callable[[socket.socket, int], None], on_over: Callable[[], None]) -> None:
        """Begin to read.

        Args:
            take: told of a connection and its place.
            on_over: called once no more will come.
        """
        self._take, self._on_over = take, on_over
        asyncio.get_running_loop().add_reader(self._end.fileno(), self._read)

    def quit(self) -> None:
        """Take nothing any more."""
        if not self._over.is_set():
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            self._over.set()

    async def wait_for_end(self) -> None:
        """Return once no more connections will come."""
        await self._over.wait()

    def tell(self, kind: bytes, payload: bytes = b"") -> None:
        channel.send(self._end, kind, payload)

    def tell_document(self, kind: bytes, document: Any) -> None:
        channel.send_document(self._end, kind, document)

    def _read(self) -> None:
        try:
            while (message := channel.receive(self._end)) is not None:
                self._obey(*message)
        except EOFError:
            self.quit()
            if self._on_over is not None:
                self._on_over()

    def _obey(self, kind: bytes, payload: bytes, descriptor: int | None) -> None:
        if kind == channel.CONNECTION and descriptor is not None and self._take is not None:
            self._take(socket.socket(fileno=descriptor), channel.number_of(payload))
        elif kind == channel.REFUSE:
            self.refused.add(payload)
            self.suspects.discard(payload)
        elif kind == channel.SUSPECT:
            self.suspects.add(payload)


class FedProtocol(LimitedProtocol):
    """Notes when it owes an answer, and tells the supervisor when it has ended."""

    def __init__(self, feed: Feed, place: int, *rest: Any) -> None:
        super().__init__(*rest)
        self._feed = feed
        self._place = place

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._feed.recorder.mark_busy(self._place, busy=True)

    def respond(self, cycle: Cycle, status: int, head: bytes, body: bytes, *, close: bool = False) -> None:
        # Before the first byte goes out: two answers to one request would be worse than none.
        self._feed.recorder.mark_busy(self._place, busy=False)
        super().respond(cycle, status, head, body, close=close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._feed.recorder.mark_busy(self._place, busy=False)
        super().connection_lost(exc)
        self._feed.tell(channel.ENDED, channel.place(self._place))


class FedListener(Listener):
    """Serves an application on the connections of a feed."""

    def __init__(self, application: Any, feed: Feed, limits: HttpLimits, on_over: Callable[[], None]) -> None:
        super().__init__(application, None, limits)
        self._feed = feed
        self._on_over = on_over
        self._taking: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self._tell_time(asyncio.get_running_loop())
        self._feed.start(self._take, self._on_over)

    async def stop_accepting(self) -> None:
        """Wait until the supervisor sends no more."""
        await self._feed.wait_for_end()
        await asyncio.gather(*self._taking, return_exceptions=True)

    def _take(self, connection: socket.socket, place: int) -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)

        def protocol() -> FedProtocol:
            return FedProtocol(self._feed, place, self._limits, self._config, self._state, loop)

        task = loop.create_task(loop.connect_accepted_socket(protocol, connection))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)
