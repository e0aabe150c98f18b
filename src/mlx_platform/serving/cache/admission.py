"""Who is let into a full cache, and when a cache is worth asking at all."""

import struct
from zlib import crc32

import numpy as np

from mlx_platform.core.tensors import Tensors

_ONE_IN = 16  # questions of a sample
_PART = 2048
_LONG_BYTES = 65_536
_MOST = 15
_PLACES = struct.Struct("<2I")
_HALVED = bytes(value >> 1 for value in range(256))


class Frequencies:
    """Roughly how often each key was asked for lately, in a fixed amount of memory.

    A count-min sketch of two rows with conservative update, whose counts are halved from time to time: the
    admission filter of TinyLFU (Einziger, Friedman, Manes, ACM Transactions on Storage 13(4), 2017). A
    newcomer that was asked for no more often than the entry it would push out stays out, so that a stream of
    questions that nobody repeats neither empties a full cache nor costs evictions.
    """

    def __init__(self, places: int = 2**16) -> None:
        self._mask = places - 1
        self._first, self._second = bytearray(places), bytearray(places)
        self._seen = 0

    def see(self, key: bytes, entries: int) -> None:
        """Count a question; `entries` is how many answers are kept at the moment."""
        one, two = self._places(key)
        first, second = self._first[one], self._second[two]
        if first <= second:
            if first < _MOST:
                self._first[one] = first + 1
                if first == second:
                    self._second[two] = second + 1
        elif second < _MOST:
            self._second[two] = second + 1
        self._seen += 1
        if self._seen >= max(1000, 10 * entries):
            self._first = bytearray(self._first.translate(_HALVED))
            self._second = bytearray(self._second.translate(_HALVED))
            self._seen //= 2

    def estimate(self, key: bytes) -> int:
        """How often the key was seen, never too low, up to 15 and halved over time."""
        one, two = self._places(key)
        return min(self._first[one], self._second[two])

    def _places(self, key: bytes) -> tuple[int, int]:
        one, two = _PLACES.unpack_from(key)
        return one & self._mask, two & self._mask


class Worth:
    """Decides which questions a cache is asked: all, or a sample while hardly any of them repeats.

    The sample is chosen by the question, so that one which repeats is in it each time or never: its hit rate
    is that of all questions, and when it rises, the cache is asked about everything again. After some time
    other questions are chosen, or a few that everybody asks might never be among them. The choice costs less
    than a key.

    Args:
        least: the share of hits from which the cache is worth its cost; 0 asks it always.
        window: questions between two decisions.
    """

    def __init__(self, least: float, window: int = 1024) -> None:
        self.sampling = False
        self._least = least
        self._window = window
        self._asked = 0
        self._hits = 0
        self._passed = 0
        self._turn = 0

    def takes(self, arrays: Tensors) -> bool:
        """Whether the question with these inputs goes to the cache."""
        if not self.sampling or (_draw(arrays) + self._turn) % _ONE_IN == 0:
            return True
        self._passed += 1
        if self._passed >= _ONE_IN * self._window:
            self._passed = self._asked = self._hits = 0
            self._turn += 1
        return False

    def learn(self, *, hit: bool) -> None:
        """What came of a question that went to the cache."""
        self._asked += 1
        self._hits += hit
        if self._asked >= (self._window // 8 if self.sampling else self._window):
            self.sampling = self._hits < self._least * self._asked
            self._asked = self._hits = 0


def _draw(arrays: Tensors) -> int:
    """A number that depends on the values alone; of long ones on a part of them."""
    drawn = 0
    for array in arrays.values():
        flat = array.reshape(-1)
        if array.dtype.kind in "USO":
            cells = [cell for cell in flat.tolist() if isinstance(cell, str | bytes)]
            drawn += sum([hash((cell[:_PART], cell[-_PART:])) for cell in cells])
            continue
        if flat.nbytes > _LONG_BYTES:
            flat = flat[:: flat.size // _PART]
        drawn = crc32(np.ascontiguousarray(flat).data, drawn & 0xFFFFFFFF)
    return drawn
