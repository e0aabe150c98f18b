"""Which entries have been met: exactly, at eight bytes for each of many millions."""

import hashlib

import numpy as np

from mlx_platform.core.tensors import Array

_RECENT = 1 << 18
_BITS = {"request": ("q",), "response": ("a",), "both": ("q", "a")}


class Seen:
    """Halves of entries by 64-bit digests of their keys; ten million collide once in 400,000 logs."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted: list[Array] = []

    def add(self, key: str, half: str) -> bool:
        """Remember an entry; False when all of it had been met."""
        fresh = [digest for digest in (_digest(f"{side}{key}") for side in _BITS[half]) if digest not in self]
        self._recent.update(fresh)
        if len(self._recent) >= _RECENT:
            self._settle()
        return bool(fresh)

    def __contains__(self, digest: int) -> bool:
        if digest in self._recent:
            return True
        wanted = np.uint64(digest)
        for known in self._sorted:
            at = int(np.searchsorted(known, wanted))
            if at < len(known) and known[at] == wanted:
                return True
        return False

    def _settle(self) -> None:
        """Sort the recent ones, and merge arrays of about one size, so that there are few."""
        new = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
        self._recent = set()
        while self._sorted and len(self._sorted[-1]) <= len(new):
            new = np.sort(np.concatenate([self._sorted.pop(), new]))
        self._sorted.append(new)


def _digest(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )
