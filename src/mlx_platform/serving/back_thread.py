"""A listener on an event loop and a thread of its own, which answers while the first one's loop is busy."""

import asyncio
import socket
import threading
from typing import Any

from mlx_platform.serving.http_protocol import HttpLimits
from mlx_platform.serving.listener import Listener

_PATIENCE = 5.0  # seconds for the thread to start or end


class BackThread:
    """Serves an ASGI application on a bound socket until it is stopped."""

    def __init__(self, application: Any, listening: socket.socket, limits: HttpLimits) -> None:
        self._listener = Listener(application, listening, limits)
        self._socket = listening
        self._listens = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="mlx-admin", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    def start(self) -> None:
        """Return once requests are taken."""
        self._thread.start()
        self._listens.wait(_PATIENCE)

    def stop(self) -> None:
        """Close the socket and cut its connections."""
        if self._loop is not None and self._ended is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(_PATIENCE)
        self._socket.close()

    def _run(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        await self._listener.start()
        self._listens.set()
        await self._ended.wait()
        await self._listener.stop_accepting()
        self._listener.abort()
