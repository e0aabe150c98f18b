"""Memory that outlives the process that writes it: what that was doing when it ended.

A worker writes and the supervisor reads once the worker is dead, so nothing needs a lock across processes.
"""

import mmap
import os

DIGEST_BYTES = 16
_LONE, _JOINED = 64, 1024  # places for inputs that run alone, and that share runs or wait
_INPUTS = (_LONE + _JOINED) * DIGEST_BYTES


class FlightRecorder:
    """Places for connections and for inputs.

    Args:
        descriptor: of the memory; see `create`. It is closed here.
        connections: how many places for connections there are.
    """

    def __init__(self, descriptor: int, connections: int) -> None:
        try:
            self._memory = mmap.mmap(descriptor, _INPUTS + connections)
        finally:
            os.close(descriptor)
        self._free_lone = list(range(_LONE))
        self._free_joined = list(range(_LONE, _LONE + _JOINED))

    @staticmethod
    def create(connections: int) -> int:
        """A descriptor of memory, all of it zero, that a child may inherit."""
        descriptor = os.memfd_create("mlx-flight-recorder")
        os.ftruncate(descriptor, _INPUTS + connections)
        return descriptor

    def mark_busy(self, connection: int, *, busy: bool) -> None:
        """Note whether a connection waits for an answer of which nothing was sent."""
        self._memory[_INPUTS + connection] = busy

    def is_busy(self, connection: int) -> bool:
        return bool(self._memory[_INPUTS + connection])

    def begin(self, digest: bytes, *, alone: bool) -> int | None:
        """Note inputs that are worked on; their place, None when all are taken."""
        free = self._free_lone if alone else self._free_joined
        try:
            place = free.pop()
        except IndexError:
            return None
        start = place * DIGEST_BYTES
        self._memory[start : start + DIGEST_BYTES] = digest
        return place

    def end(self, place: int | None) -> None:
        if place is None:
            return
        start = place * DIGEST_BYTES
        self._memory[start : start + DIGEST_BYTES] = bytes(DIGEST_BYTES)
        (self._free_lone if place < _LONE else self._free_joined).append(place)

    def suspects(self) -> tuple[set[bytes], set[bytes]]:
        """The inputs that were running alone, and all others that were worked on."""
        lone: set[bytes] = set()
        joined: set[bytes] = set()
        for place in range(_LONE + _JOINED):
            digest = self._memory[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]
            if any(digest):
                (lone if place < _LONE else joined).add(digest)
        return lone, joined

    def clear(self) -> None:
        """Forget everything, for the next process that writes here."""
        self._memory[:] = bytes(len(self._memory))

    def close(self) -> None:
        self._memory.close()
