"""HTTP/1.1 on one connection, with the limits that uvicorn leaves to somebody else.

A request has a deadline to arrive in, a largest head and a largest body, and a server has a largest number of
connections. What breaks a limit is answered here, as JSON, before the application sees any of it.

An application is called as ASGI has it, but once its request is there to the last byte, and it answers with a
call of `RESPOND`. So no event wakes anybody, timers are set for a connection rather than for a request, and
what is kept of a request goes with its answer.
"""

import asyncio
import logging
import re
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import httptools
import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

RESPOND = "mlx.respond"
"""Key of the scope under which the application finds `LimitedProtocol.respond`, bound to the request."""

DISCONNECT_HOOK = "mlx.on_disconnect"
"""Key of the scope under which the application leaves a function to call when the client goes early."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_CLOSE = b"connection: close\r\n"
_LINGER_SECONDS = 2.0  # how long what a refused client still sends is read and thrown away
_logger = logging.getLogger(__name__)


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


class Connections(ServerState):
    """The connections of a listener; `date` is the header line of the moment, with its line break."""

    def __init__(self) -> None:
        super().__init__()
        self.date = b""


class Cycle:
    """A request and its answer.

    Attributes:
        scope: as ASGI describes a request.
        keep_alive: whether another request may follow.
        done: the answer was written.
        disconnected: nobody is there to read an answer any more.
    """

    __slots__ = ("_chunks", "disconnected", "done", "keep_alive", "scope", "task")

    def __init__(self, scope: dict[str, Any], *, keep_alive: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.done = False
        self.disconnected = False
        self.task: asyncio.Task[None] | None = None
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        """Take in a part of the body."""
        self._chunks.append(chunk)

    async def receive(self) -> dict[str, Any]:
        """All of the body, once."""
        chunks, self._chunks = self._chunks, []
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return {"type": "http.request", "body": body, "more_body": False}


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `HttpLimits`."""

    def __init__(
        self, limits: HttpLimits, config: Config, state: Connections, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={}, _loop=loop)
        self._limits = limits
        self._state = state
        self._arriving: Cycle | None = None  # a request whose head was read
        self._answering: Cycle | None = None
        self._next: deque[Cycle] = deque()  # requests that came before the one ahead was answered
        self._silence: asyncio.TimerHandle | None = None
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
        return self._receiving or self._answering is not None

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
        if self._silence is not None:
            self._silence.cancel()
        cycle = self._answering
        super().connection_lost(exc)
        if cycle is not None:
            cycle.disconnected = True
            hook = cycle.scope.get(DISCONNECT_HOOK)
            if hook is not None:
                hook()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if b"pgrade:" in data:
                data = _without_upgrade(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_after_last()
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
        self.url = b""
        self.headers = []
        self._receiving = True
        self._in_head = True
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self._limits.head_bytes:
            raise _LimitError(431, self._head_limit())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))
        if len(self.headers) > self._limits.headers:
            raise _LimitError(431, f"A request takes at most {self._limits.headers} headers.")

    def on_headers_complete(self) -> None:
        size, length = len(self.url), 0
        asks_first = False
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                length = int(value)  # the parser has refused anything but digits
            elif name == b"expect":
                asks_first = value.lower() == b"100-continue"
        if size > self._limits.head_bytes:
            raise _LimitError(431, self._head_limit())
        if length > self._limits.body_bytes:
            raise _LimitError(413, self._body_limit())
        self._in_head = False
        self._head_bytes = 0
        self._arriving = self._new_cycle()
        # Behind an answer that is on its way this would be taken for that; who waits in vain goes on at last.
        if asks_first and self._answering is None:
            self.transport.write(_CONTINUE)

    def _new_cycle(self) -> Cycle:
        parser, url = self.parser, self.url
        query = b""
        if not url.startswith(b"/") or b"?" in url or b"#" in url:
            parts = httptools.parse_url(url)
            url, query = parts.path, parts.query or b""
        path = url.decode("ascii")
        scope: dict[str, Any] = {
            "type": "http",
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url,
            "query_string": query,
            "headers": self.headers,
        }
        alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        cycle = Cycle(scope, keep_alive=alive)
        scope[RESPOND] = partial(self.respond, cycle)
        return cycle

    async def _answer(self, cycle: Cycle) -> None:
        try:
            await self.app(cycle.scope, cycle.receive, None)
        except Exception:  # the rim: whoever asked gets an answer, and the log the traceback
            _logger.exception("A request was not answered.")
        if not (cycle.done or cycle.disconnected):
            self.respond(cycle, 500, b"content-length: 0\r\n", b"")
        cycle.scope.clear()  # where nobody was answered it holds what holds it
        cycle.task = None

    def _start(self, cycle: Cycle) -> None:
        self._answering = cycle
        cycle.task = self.loop.create_task(self._answer(cycle))  # tasks that nobody holds may vanish

    def respond(self, cycle: Cycle, status: int, head: bytes, body: bytes, *, close: bool = False) -> None:
        """Write a whole answer at once, sparing the checks of each header that ASGI's `send` makes.

        Args:
            cycle: the request that is answered.
            status: of the answer.
            head: complete header lines, all but `Date` and `Connection`.
            body: left out for HEAD.
            close: this is the last answer of the connection.
        """
        if cycle.done or cycle.disconnected:
            return
        cycle.done = True
        del cycle.scope[RESPOND]  # which holds the cycle that holds it: all of it goes now, not some time
        if close:
            cycle.keep_alive = False
        closing = b"" if cycle.keep_alive else _CLOSE
        shown = b"" if cycle.scope["method"] == "HEAD" else body
        self.transport.write(b"".join((STATUS_LINE[status], self._state.date, head, closing, b"\r\n", shown)))
        self._answering = None
        if not cycle.keep_alive:
            self.transport.close()
        if self.transport.is_closing():
            return
        self._quiet_since = self.loop.time()
        if self._silence is None:
            self._silence = self.loop.call_later(self.timeout_keep_alive, self._look_for_silence)
        if self._next:
            self._start(self._next.popleft())
        if self.flow.write_paused:
            self.flow.pause_reading()  # until the client has read what it asked for
        elif not self._next:
            self.flow.resume_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            raise _LimitError(413, self._body_limit())
        if self._arriving is not None:
            self._arriving.add(body)

    def on_message_complete(self) -> None:
        self._receiving = False
        self._in_head = True
        self._disarm()
        cycle, self._arriving = self._arriving, None
        if cycle is None:
            return
        if self._answering is None:
            self._start(cycle)
        else:
            self._next.append(cycle)
            self.flow.pause_reading()

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
            self._end_after_last()

    def _end_after_last(self) -> None:
        """Close after the answers to all requests that are there."""
        last = self._next[-1] if self._next else self._answering
        if last is not None:
            last.keep_alive = False

    def _look_for_silence(self) -> None:
        """Close a connection on which nothing was asked for long; one timer looks at many requests."""
        silent = 0.0 if self.busy else self.loop.time() - self._quiet_since
        if silent < self.timeout_keep_alive:
            rest = self.timeout_keep_alive - silent
            self._silence = self.loop.call_later(rest, self._look_for_silence)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # the answer waits for a client that does not read
        else:
            self.transport.close()

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
        if self._answering is not None:
            self._end_after_last()
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
