"""HTTP/1.1 on one connection, with the limits that uvicorn leaves to somebody else.

A request has a deadline to arrive in, a largest head and a largest body, and a server has a largest number of
connections. What breaks a limit is answered here, as JSON, before the application sees any of it.
"""

import asyncio
import re
from dataclasses import dataclass
from functools import partial

import httptools
import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

RESPOND = "mlx.respond"
"""Key of the scope under which the application finds `LimitedProtocol.respond`, bound to the request."""

DISCONNECT_HOOK = "mlx.on_disconnect"
"""Key of the scope under which the application leaves a function to call when the client goes early."""

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_CLOSE = b"connection: close\r\n"
_LINGER_SECONDS = 2.0  # how long what a refused client still sends is read and thrown away


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The most bytes of a body and of a request head, headers, connections, and seconds to send a request."""

    body_bytes: int = 16 * 1024 * 1024
    head_bytes: int = 16 * 1024
    headers: int = 64
    connections: int = 512
    receive_seconds: float = 10.0


class _LimitError(Exception):
    """Raised inside of the parser's callbacks; the parser passes it on as an error of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `HttpLimits`."""

    def __init__(
        self, limits: HttpLimits, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={}, _loop=loop)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._receiving = False  # between the first byte of a request and its last
        self._in_head = True
        self._head_bytes = 0
        self._body_bytes = 0
        self._refused = False
        self._quiet_since = self.loop.time()

    @property
    def busy(self) -> bool:
        """Whether a request is on its way in or its answer on its way out."""
        return self._receiving or (self.cycle is not None and not self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._refused = True
            transport.write(_response(503, "There are too many connections: try again later."))
            transport.close()
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        cycle = self.cycle
        hook = cycle.scope.get(DISCONNECT_HOOK) if cycle is not None and not cycle.response_complete else None
        super().connection_lost(exc)
        if callable(hook):
            hook()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._head_bytes += len(data)
            if b"pgrade:" in data:
                data = _without_upgrade(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.cycle is not None:
                self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            limit = error.__context__
            if isinstance(limit, _LimitError):
                self._refuse(limit.status, limit.message)
            else:
                self._refuse(400, "The request is no valid HTTP.")
            return
        if not self._receiving:
            if self._deadline is None and not self.busy:
                self._arm()  # blank lines do not keep a connection open
            return
        if self._in_head and self._head_bytes > self._limits.head_bytes:
            self._refuse(431, self._head_limit())
        elif self._deadline is None:
            self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving = True
        self._in_head = True
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.head_bytes:
            raise _LimitError(431, self._head_limit())

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            raise _LimitError(431, f"A request takes at most {self._limits.headers} headers.")

    def on_headers_complete(self) -> None:
        size = len(self.url)
        length = 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                length = int(value)  # the parser has refused anything but digits
        if size > self._limits.head_bytes:
            raise _LimitError(431, self._head_limit())
        if length > self._limits.body_bytes:
            raise _LimitError(413, self._body_limit())
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()
        cycle = self.cycle
        cycle.scope[RESPOND] = partial(self.respond, cycle)  # type: ignore[literal-required]

    def respond(
        self, cycle: RequestResponseCycle, status: int, head: bytes, body: bytes, *, close: bool = False
    ) -> None:
        """Write a whole answer at once, sparing the checks of each header that ASGI's `send` makes.

        Args:
            cycle: the request that is answered.
            status: of the answer.
            head: complete header lines, all but `Date` and `Connection`.
            body: left out for HEAD.
            close: this is the last answer of the connection.
        """
        if cycle.disconnected:
            return
        if close:
            cycle.keep_alive = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        closing = b"" if cycle.keep_alive else _CLOSE
        dates = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
        shown = b"" if cycle.scope["method"] == "HEAD" else body
        self.transport.write(b"".join((STATUS_LINE[status], dates, head, closing, b"\r\n", shown)))
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        self._quiet_since = self.loop.time()
        if self.flow.write_paused:
            self.flow.pause_reading()  # until the client has read what it asked for

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            raise _LimitError(413, self._body_limit())
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving = False
        self._in_head = True
        self._disarm()
        super().on_message_complete()

    def retire(self, silence: float) -> None:
        """Close after the answer that is on its way, or at once where a client has been silent for so long.

        Args:
            silence: seconds; somebody who sends one request after the other is never silent for long, and
                would lose the one that is just under way.
        """
        if self._refused:
            self.transport.abort()
        elif not self.busy:
            if self.loop.time() - self._quiet_since >= silence:
                self.transport.close()
        elif not self._receiving:
            self.cycle.keep_alive = False

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # the answer waits for a client that does not read
        else:
            super().timeout_keep_alive_handler()

    def _head_limit(self) -> str:
        return f"The head of a request takes at most {self._limits.head_bytes:,} bytes."

    def _body_limit(self) -> str:
        return f"The body of a request takes at most {self._limits.body_bytes:,} bytes."

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self._limits.receive_seconds, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._receiving:
            self._refuse(408, f"A request must arrive within {self._limits.receive_seconds:g} seconds.")
        elif not self.busy:
            self.transport.close()  # a connection that says nothing

    def _refuse(self, status: int, message: str) -> None:
        """Answer in the place of the application, and close."""
        self._refused = True
        self._disarm()
        cycle = self.cycle
        own = cycle is not None and not self._in_head  # the request that is refused had begun to be answered
        if cycle is not None and not cycle.response_complete and (self.pipeline or not own):
            # An earlier request is still being answered: its answer is the last of this connection.
            cycle.keep_alive = False
            return
        if own and cycle is not None and not cycle.response_complete:
            started = cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
            if started:
                self.transport.abort()
                return
        self.flow.resume_reading()
        self.transport.write(_response(status, message))
        # Closed at once, the client would be reset while it still sends, and might never see the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)


def _without_upgrade(data: bytes) -> bytes:
    """Hide an offer to switch protocols, such as Java's to speak HTTP/2: the parser would skip the body."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-grade:", head) + end + rest


def _response(status: int, message: str) -> bytes:
    body = orjson.dumps({"error": message})
    head: list[bytes] = [
        STATUS_LINE[status],
        b"content-type: application/json\r\n",
        b"content-length: %d\r\n" % len(body),
        b"retry-after: 1\r\n" if status == 503 else b"",
        b"connection: close\r\n\r\n",
    ]
    return b"".join((*head, body))
