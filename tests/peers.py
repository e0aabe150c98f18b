"""Servers for tests that misbehave: each speaks in a thread of its own, on a free port."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import IO


@dataclass
class Peer:
    """A server: its URI, and the requests that it got, head and body."""

    uri: str
    port: int
    requests: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def heads(self) -> list[str]:
        return [head for head, _ in self.requests]


Talk = Callable[[socket.socket, str, bytes], bool | None]
"""Answers a request, given its head and body; False ends the connection."""


@contextmanager
def peer(talk: Talk) -> Iterator[Peer]:
    """Run a server that leaves every answer to a function."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = Peer(f"http://127.0.0.1:{port}", port)
    opened: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        # Whoever is tested may go away at any moment.
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while request := _request(stream):
                server.requests.append(request)
                if talk(connection, *request) is False:
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            opened.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        thread.join()


def answer(status: int, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """An HTTP answer."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def saying(status: int, body: bytes, *headers: str, kind: str = "application/json") -> Talk:
    """Give everybody one answer."""

    def talk(connection: socket.socket, _head: str, _body: bytes) -> None:
        connection.sendall(answer(status, body, *headers, kind=kind))

    return talk


def _request(stream: IO[bytes]) -> tuple[str, bytes] | None:
    lines: list[str] = []
    while line := stream.readline().decode("latin-1").strip():
        lines.append(line)
    if not lines:
        return None
    lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
    return "\n".join(lines), stream.read(int(lengths[0])) if lengths else b""
