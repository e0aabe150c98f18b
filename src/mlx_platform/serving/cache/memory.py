"""Arrays kept in this process, bounded by bytes; the least recently used make room."""

from collections import OrderedDict
from dataclasses import dataclass

from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.cache.admission import Frequencies
from mlx_platform.serving.cache.key import array_bytes
from mlx_platform.serving.cache.value import copied

_ENTRY_BYTES = 400  # key, places in two tables, and the entry itself


@dataclass(frozen=True, slots=True)
class _Entry:
    arrays: dict[str, Array]
    size: int


class Memory:
    """Keeps arrays by key; used from one thread.

    Args:
        most_bytes: memory of all entries together.
        most_value_bytes: a larger value is not kept.
    """

    def __init__(self, most_bytes: int, most_value_bytes: int) -> None:
        self.size = 0
        self.evictions = 0
        self.refused = 0
        self._most = most_bytes
        self._most_value = min(most_value_bytes, most_bytes)
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._frequencies = Frequencies()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> dict[str, Array] | None:
        """The caller's own copy of what is kept, None where nothing is; the question counts either way."""
        self._frequencies.see(key, len(self._entries))
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return copied(entry.arrays)

    def put(self, key: bytes, arrays: Tensors) -> None:
        """Keep a copy, unless it is too large, or less asked for than what would have to go."""
        size = array_bytes(arrays) + _ENTRY_BYTES
        if size > self._most_value or key in self._entries:
            return
        while self.size + size > self._most:
            oldest = next(iter(self._entries))
            if self._frequencies.estimate(key) <= self._frequencies.estimate(oldest):
                self.refused += 1
                return
            self.size -= self._entries.pop(oldest).size
            self.evictions += 1
        self._entries[key] = _Entry(copied(arrays), size)
        self.size += size
