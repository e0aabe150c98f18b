"""A listening socket, the connections that came through it, and how they end."""

import asyncio
import ctypes
import socket
import struct
import sys
import time
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config

from mlx_platform.core.errors import UsageError
from mlx_platform.serving.http_protocol import Connections, HttpLimits, LimitedProtocol

_BACKLOG = 2048
_SO_ATTACH_FILTER = 26  # of Linux, on all but a few old architectures; Python has no name for it
_HANDSHAKE_SECONDS = 0.1  # what a handshake that is under way is given to end in
_KEEP_ALIVE_SECONDS = 75  # longer than the idle time-out of common load balancers, which then close first


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket, not listening yet; port 0 takes a free one.

    Args:
        host: an address or a name.
        port: the port.
        flag: the option that a user would change.

    Raises:
        UsageError: the address is not one of this machine, or somebody listens there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"Cannot listen on {host!r}: {error.strerror or error}.") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)  # two servers may bind the same free port; only one may listen
    except OSError as error:
        listening.close()
        raise UsageError(
            f"Cannot listen on port {port} of {host}: {error.strerror or error}.",
            hint=f"Take another one with {flag}, or 0 for a free one.",
        ) from error
    return listening


class Listener:
    """Serves an ASGI application on a bound socket, or on connections that come otherwise."""

    def __init__(self, application: Any, listening: socket.socket | None, limits: HttpLimits) -> None:
        self._config = Config(
            application,
            interface="asgi3",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._socket = listening
        self._limits = limits
        self._state = Connections()
        self._server: asyncio.AbstractServer | None = None
        self._clock: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        assert self._socket is not None  # noqa: S101 - whoever has no socket is not asked
        name = self._socket.getsockname()
        return name[0], name[1]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tell_time(loop)
        assert self._socket is not None  # noqa: S101 - see FedListener for those without
        self._server = await loop.create_server(self._new_protocol, sock=self._socket, backlog=_BACKLOG)

    def _new_protocol(self) -> LimitedProtocol:
        return LimitedProtocol(self._limits, self._config, self._state, asyncio.get_running_loop())

    def _connections(self) -> list[LimitedProtocol]:
        return [each for each in self._state.connections if isinstance(each, LimitedProtocol)]

    async def stop_accepting(self) -> None:
        """Close the socket; the connections stay, also those that the kernel made and nobody has taken."""
        if self._server is None or self._socket is None:
            return
        if _ignore_new_handshakes(self._socket):
            await asyncio.sleep(_HANDSHAKE_SECONDS)
        else:
            self._socket.listen(0)  # few can come while the last ones are taken
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                break
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._new_protocol, connection)
        self._server.close()

    async def wait_for_end(self, patience: float, silence: float) -> None:
        """Let the connections end, each after its answer.

        Args:
            patience: seconds after which those that are not done are left as they are.
            silence: seconds without a request after which a connection is closed.
        """
        end = time.monotonic() + patience
        while self._connections() and time.monotonic() < end:
            for connection in self._connections():
                connection.retire(silence)
            await asyncio.sleep(0.01)

    def abort(self) -> None:
        """Cut the connections that are left."""
        for connection in self._connections():
            connection.transport.abort()
        if self._clock is not None:
            self._clock.cancel()

    def _tell_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.date = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        self._clock = loop.call_later(1.0, self._tell_time, loop)


def _ignore_new_handshakes(listening: socket.socket) -> bool:
    """Have the kernel drop what would open a connection, where it can; those half open are still completed.

    A socket that closes resets what is in its queue, also what came after the last look at it. Whose first
    packet is dropped tries again in a second, here or where the name leads then, and has lost nothing.
    """
    if sys.platform != "linux":
        return False
    instructions = [  # classic BPF over the TCP header: code, jumps if true and if false, operand
        (0x30, 0, 0, 13),  # load the byte of flags
        (0x54, 0, 0, 0x12),  # keep SYN and ACK
        (0x15, 0, 1, 0x02),  # SYN alone?
        (0x06, 0, 0, 0),  # drop it
        (0x06, 0, 0, 0xFFFFFFFF),  # pass it
    ]
    program = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    memory = ctypes.create_string_buffer(program, len(program))
    where = struct.pack("HP", len(instructions), ctypes.addressof(memory))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, where)
    except OSError:  # a sandbox that has no filters
        return False
    return True
