"""Answers by the meaning of their question: the nearest vector among those of the same partition."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.cache.value import copied

Vector = npt.NDArray[np.float32]
"""Of length 1, so that a product of two is their cosine."""

_FIRST_ROWS = 16
_ROUNDING = 1e-6  # two vectors of the same text may be so far from 1


@dataclass(slots=True)
class _Partition:
    """The vectors of one partition, row by row, with the number and the answer of each entry."""

    vectors: npt.NDArray[np.float32]
    numbers: list[int] = field(default_factory=list)
    answers: list[dict[str, Array]] = field(default_factory=list)

    def add(self, number: int, vector: Vector, answer: dict[str, Array]) -> None:
        if len(self.numbers) == len(self.vectors):
            self.vectors = np.concatenate([self.vectors, np.empty_like(self.vectors)])
        self.vectors[len(self.numbers)] = vector
        self.numbers.append(number)
        self.answers.append(answer)

    def remove(self, number: int) -> None:
        """The last row takes the place of the one that goes."""
        row, last = self.numbers.index(number), len(self.numbers) - 1
        self.vectors[row] = self.vectors[last]
        self.numbers[row], self.answers[row] = self.numbers[last], self.answers[last]
        self.numbers.pop()
        self.answers.pop()


class Meanings:
    """Keeps answers under vectors, at most `most_entries` in all; the least recently used make room.

    Entries of different partitions never meet, however near they are. Used from one thread.
    """

    def __init__(self, most_entries: int, similarity: float) -> None:
        self.evictions = 0
        self._most = most_entries
        self.similarity = similarity
        self._partitions: dict[bytes, _Partition] = {}
        self._order: OrderedDict[int, bytes] = OrderedDict()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, partition: bytes, vector: Vector) -> dict[str, Array] | None:
        """The caller's own copy of the nearest answer, if its question is near enough."""
        group = self._partitions.get(partition)
        if group is None:
            return None
        closeness = group.vectors[: len(group.numbers)] @ vector
        best = int(np.argmax(closeness))
        # Not `<`: nothing is near a vector that is no number.
        if not closeness[best] >= self.similarity - _ROUNDING:
            return None
        self._order.move_to_end(group.numbers[best])
        return copied(group.answers[best])

    def add(self, partition: bytes, vector: Vector, answer: Tensors) -> None:
        """Keep a copy of an answer."""
        while len(self._order) >= self._most:
            self._remove_oldest()
        group = self._partitions.get(partition)
        if group is None:
            empty = np.empty((_FIRST_ROWS, len(vector)), np.float32)
            group = self._partitions[partition] = _Partition(empty)
        number = next(self._numbers)
        group.add(number, vector, copied(answer))
        self._order[number] = partition

    def _remove_oldest(self) -> None:
        number, partition = self._order.popitem(last=False)
        group = self._partitions[partition]
        group.remove(number)
        if not group.numbers:
            del self._partitions[partition]
        self.evictions += 1
