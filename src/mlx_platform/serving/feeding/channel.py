"""What a supervisor and a worker tell each other, over a socket that keeps messages apart.

A message is a letter and a payload. To the worker: `c`, a connection in the place that the payload numbers,
with its descriptor; `r`, the digest of inputs to refuse; `u`, one to run alone. To the supervisor: `y`,
ready, with addresses; `x`, the connection in that place has ended; `o`, those inputs did no harm alone; `f`,
the end, with counts; `e`, an error. The end of the stream tells a worker that no connections follow.
"""

import json
import socket
from typing import Any

CONNECTION, REFUSE, SUSPECT = b"c", b"r", b"u"
READY, ENDED, HARMLESS, FINISHED, ERROR = b"y", b"x", b"o", b"f", b"e"
_LARGEST = 128 * 1024


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends, both without blocking."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (mine, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _LARGEST)
    return mine, theirs


def place(number: int) -> bytes:
    return number.to_bytes(4, "big")


def number_of(payload: bytes) -> int:
    return int.from_bytes(payload, "big")


def send(end: socket.socket, kind: bytes, payload: bytes = b"", descriptor: int | None = None) -> bool:
    """Send a message; False when the other side is gone, or has not read for long."""
    try:
        if descriptor is None:
            end.send(kind + payload)
        else:
            socket.send_fds(end, [kind + payload], [descriptor])
    except OSError:
        return False
    return True


def send_document(end: socket.socket, kind: bytes, document: Any) -> bool:
    return send(end, kind, json.dumps(document).encode())


def receive(end: socket.socket) -> tuple[bytes, bytes, int | None] | None:
    """The next message and its descriptor; None when there is none yet.

    Raises:
        EOFError: none will come.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(end, _LARGEST, 1)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as error:
        raise EOFError from error
    if not data:
        raise EOFError
    return data[:1], data[1:], descriptors[0] if descriptors else None
