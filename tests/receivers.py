"""Receivers of webhooks that do what receivers do: answer, refuse, redirect, hang, trickle, break off."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mlx_platform.core.settings import SinkSettings

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="  # noqa: S105 - of the tests
KEY = b"0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.body)["data"]
        return data


@dataclass
class Receiver:
    """A server that answers with one status after the other, the last one for ever."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [204])
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    requests: list[Request] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    @property
    def numbers(self) -> list[int]:
        return [request.data["number"] for request in self.requests]

    def sink(self, **values: Any) -> SinkSettings:
        defaults: dict[str, Any] = {"name": "ops", "url": self.url, "timeout": 5.0}
        return SinkSettings(**(defaults | values))

    def toml(self, name: str = "ops", extra: str = "") -> str:
        """The sink's table of a settings file."""
        return f'[[events.sinks]]\nname = "{name}"\nurl = "{self.url}"\n{extra}\n'

    def answer(self, request: Request) -> int:
        with self.lock:
            self.requests.append(request)
            return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


@contextmanager
def receiving(*statuses: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Iterator[Receiver]:
    """Serve until the block ends."""
    receiver = Receiver(statuses=list(statuses or (204,)), headers=headers or {}, body=body)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            names = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.answer(Request(self.path, names, content)))
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        do_PUT = do_POST  # noqa: N815 - the name that the server looks for

        def do_GET(self) -> None:
            names = {name.lower(): value for name, value in self.headers.items()}
            receiver.answer(Request(self.path, names, b""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def speaking(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that reads a request and then does what `talk` does with its connection, until the event."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.settimeout(5)
                        read_request(connection)
                        talk(connection, over)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        finally:
            over.set()
            thread.join()


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def reset(connection: socket.socket) -> None:
    """Close with a reset instead of an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()


def trickle(
    parts: Sequence[bytes], *, every: float = 0.02
) -> Callable[[socket.socket, threading.Event], None]:
    """Send bytes one after the other, for ever from the beginning."""

    def talk(connection: socket.socket, over: threading.Event) -> None:
        while not over.is_set():
            for part in parts:
                connection.sendall(part)
                time.sleep(every)

    return talk
