"""HTTP with a deadline: whatever the other side does or leaves undone, an exchange ends in time.

The timeouts of sockets count from byte to byte, so that a server which drips keeps its client for ever. Here
every single read and write gets what is left of one deadline.
"""

import http.client
import io
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

_CHUNK = 1 << 16
_SLOWEST = 32 * 1024  # bytes a second, below which a transfer is given up
_REFUSAL_CAP = 1024 * 1024  # bytes
_PROXY_ANSWER_CAP = 16 * 1024


class TooLargeError(Exception):
    """An answer is larger than any that may be asked for."""


class Deadline:
    """So many seconds; a transfer of bytes earns more with each that arrives."""

    def __init__(self, seconds: float, *, transfer: bool = False) -> None:
        self._end = time.monotonic() + seconds
        self._transfer = transfer

    def left(self) -> float:
        """Seconds left.

        Raises:
            TimeoutError: there are none.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def moved(self, count: int) -> None:
        if self._transfer:
            self._end += count / _SLOWEST


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is spoken to, and through whom.

    `proxy` is the host, the port and the `Proxy-Authorization` of a proxy; `tls` makes the context when a
    connection needs one.
    """

    host: str
    port: int
    tls: "Callable[[], ssl.SSLContext] | None"
    proxy: tuple[str, int, str] | None


@dataclass(frozen=True, slots=True)
class Request:
    """`target` is the path with its query; a body that is a file is sent in pieces."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | IO[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # keys in lower case
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Wire:
    """Connections to one peer, kept open between exchanges; threads and forked processes share none."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close, self._idle)

    def exchange(
        self, request: Request, deadline: Deadline, *, cap: int, sink: IO[bytes] | None = None
    ) -> Answer:
        """Send a request and read its answer.

        Args:
            request: what is asked.
            deadline: when to give up.
            cap: most bytes of an answer of status 200; of any other the first 1 MiB is read, and no more.
            sink: takes the bytes of an answer of status 200, instead of `body`.

        Raises:
            TimeoutError: the deadline is over.
            OSError, http.client.HTTPException: no answer, or not a whole one.
            TooLargeError: more than `cap` bytes.
        """
        connection = self._take(deadline)
        try:
            connection.request(request.method, request.target, body=request.body, headers=request.headers)
            response = connection.getresponse()
            fine = response.status == 200
            body = _read(response, cap, deadline, sink) if fine else _read_start(response, deadline)
            if not response.isclosed():
                connection.close()  # with what was left unread nothing else can be asked on it
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        headers = {key.lower(): value for key, value in response.getheaders()}
        return Answer(response.status, headers, body)

    def _take(self, deadline: Deadline) -> "_Connection":
        with suppress(IndexError):  # other threads take connections, too
            while True:
                connection = self._idle.pop()
                if connection.usable():
                    connection.deadline = deadline
                    return connection
                connection.close()
        return _Connection(self._peer, deadline)


def _close(connections: "list[_Connection]") -> None:
    for connection in connections:
        connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, peer: Peer, deadline: Deadline) -> None:
        super().__init__(peer.host, peer.port)
        self._peer = peer
        self._pid = os.getpid()
        self.deadline = deadline

    def usable(self) -> bool:
        """Whether it is ours, and the other side has neither closed it nor said anything unasked."""
        if self._pid != os.getpid() or self.sock is None:
            return False
        # In a process of many files `select` knows not all of their numbers.
        looking = select.poll()
        looking.register(self.sock, select.POLLIN)
        return not looking.poll(0)

    def connect(self) -> None:
        peer = self._peer
        host, port = peer.proxy[:2] if peer.proxy else (peer.host, peer.port)
        context = peer.tls() if peer.tls else None
        opened = _open(host, port, self.deadline)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                if peer.proxy:
                    _tunnel(opened, peer, self.deadline)
                opened.settimeout(self.deadline.left())
                opened = context.wrap_socket(opened, server_hostname=peer.host)
        except BaseException:
            opened.close()
            raise
        # http.client uses four methods of its socket.
        self.sock: Any = _Socket(opened, self)


class _Socket:
    """What http.client takes for a socket: each read and write has what is left of the deadline."""

    def __init__(self, opened: socket.socket, owner: _Connection) -> None:
        self.opened = opened
        self.owner = owner

    def fileno(self) -> int:
        return self.opened.fileno()

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            self.opened.settimeout(self.owner.deadline.left())
            self.opened.sendall(part)
            self.owner.deadline.moved(len(part))

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self), _CHUNK)

    def close(self) -> None:
        self.opened.close()


class _Reading(io.RawIOBase):
    def __init__(self, source: _Socket) -> None:
        self._source = source
        # Python keeps the socket open until this is closed too: an answer may outlive its connection.
        self._raw = source.opened.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._source.opened.settimeout(self._source.owner.deadline.left())
        return self._raw.readinto(buffer) or 0

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read(response: http.client.HTTPResponse, cap: int, deadline: Deadline, sink: IO[bytes] | None) -> bytes:
    if response.length is not None and response.length > cap:
        raise TooLargeError
    into = sink or io.BytesIO()
    total = 0
    while chunk := response.read(_CHUNK):
        total += len(chunk)
        if total > cap:
            raise TooLargeError
        deadline.moved(len(chunk))
        into.write(chunk)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return into.getvalue() if isinstance(into, io.BytesIO) and sink is None else b""


def _read_start(response: http.client.HTTPResponse, deadline: Deadline) -> bytes:
    # A refusal is known by its status: a page of any size around it makes it no other one.
    parts: list[bytes] = []
    left = _REFUSAL_CAP
    while left and (chunk := response.read(min(left, _CHUNK))):
        left -= len(chunk)
        deadline.moved(len(chunk))
        parts.append(chunk)
    if left and response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(parts)


def _open(host: str, port: int, deadline: Deadline) -> socket.socket:
    failure: OSError | None = None
    for family, kind, protocol, _, address in _addresses(host, port, deadline):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(deadline.left())
            opened.connect(address)
        except OSError as error:
            opened.close()
            failure = error
        else:
            return opened
    raise failure or OSError("the name has no address")


def _addresses(host: str, port: int, deadline: Deadline) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    found: list[Any] = []
    failure: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failure.append(error if isinstance(error, OSError) else OSError("the name is none"))

    # Looking a name up knows no timeout, so it is left behind when it takes too long.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(deadline.left())
    if failure:
        raise failure[0]
    if not found:
        raise TimeoutError
    return found


def _tunnel(opened: socket.socket, peer: Peer, deadline: Deadline) -> None:
    host = f"[{peer.host}]" if ":" in peer.host else peer.host
    lines = [f"CONNECT {host}:{peer.port} HTTP/1.1", f"Host: {host}:{peer.port}"]
    if peer.proxy and peer.proxy[2]:
        lines.append(f"Proxy-Authorization: {peer.proxy[2]}")
    opened.settimeout(deadline.left())
    opened.sendall("\r\n".join([*lines, "", ""]).encode("latin-1", "replace"))
    answer = b""
    while b"\r\n\r\n" not in answer:
        opened.settimeout(deadline.left())
        # One byte at a time: what follows the empty line belongs to TLS.
        byte = opened.recv(1)
        if not byte or len(answer) > _PROXY_ANSWER_CAP:
            raise ConnectionResetError("the proxy went away")
        answer += byte
    status = answer.split(b" ", 2)[1:2]
    if status != [b"200"]:
        shown = answer.split(b"\r\n", 1)[0].decode("latin-1")
        raise OSError(f"the proxy answers {shown!r}")
