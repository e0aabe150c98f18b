"""Requests and answers that a log keeps apart, put together again."""

from collections.abc import Iterator
from dataclasses import replace

from mlx_platform.traffic.readers.entry import Entry

WAITING_BYTES = 256 * 1024 * 1024
"""What halves may hold while they wait; then the oldest are taken for unpaired."""
_OVERHEAD = 1024


class Pairing:
    """Waits for the other half of each entry, in bounded memory."""

    def __init__(self, waiting_bytes: int = WAITING_BYTES) -> None:
        self._limit = waiting_bytes
        self._held = 0
        self._waiting: dict[str, Entry] = {}

    def add(self, entry: Entry) -> Iterator[Entry]:
        """Take a half; gives out what is complete, and what has waited too long."""
        other = self._waiting.get(entry.key)
        if other is None:
            self._waiting[entry.key] = entry
            self._held += _size(entry)
        elif other.half == entry.half:
            yield replace(entry, repeated=True)
        else:
            del self._waiting[entry.key]
            self._held -= _size(other)
            yield joined(other, entry)
        while self._held > self._limit:
            oldest = self._waiting.pop(next(iter(self._waiting)))
            self._held -= _size(oldest)
            yield oldest

    def finish(self) -> Iterator[Entry]:
        """Halves whose other half never came."""
        left, self._waiting, self._held = self._waiting, {}, 0
        yield from left.values()


def joined(one: Entry, other: Entry) -> Entry:
    """Two halves as one entry: the request's time and ids, the answer's status."""
    request, response = (one, other) if one.half == "request" else (other, one)
    return replace(
        request,
        half="both",
        response=response.response,
        status=response.status,
        time=request.time or response.time,
        truncated=request.truncated or response.truncated,
    )


def _size(entry: Entry) -> int:
    bodies = (entry.request, entry.response)
    return _OVERHEAD + sum(
        len(body.content) if body and isinstance(body.content, str | bytes) else 0 for body in bodies
    )
