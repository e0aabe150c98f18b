"""Rows drawn for a label with known probabilities, in one pass, whatever their number.

Priority sampling (Duffield, Lund and Thorup, J. ACM 54, 2007): a row of weight w and a random number u in
(0, 1] has the priority w / u, and those with the highest are drawn. With the highest priority that was not
drawn for a threshold t, a row was drawn with probability min(1, w / t), and the sum of a value over the rows
that were drawn, each divided by its probability, estimates without bias the sum over all (Horvitz and
Thompson, 1952). Equal weights give a simple random sample.

The random number comes from the row's content and a seed, so that the same rows are drawn again whatever
their order, and a row that comes several times is drawn once.
"""

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class Drawn(Generic[_Item]):
    """A row that was drawn: its content's key, its weight, and the probability with which it was."""

    key: str
    item: _Item
    weight: float
    probability: float


class PrioritySample(Generic[_Item]):
    """The rows of the highest priorities; memory for `most` and one more.

    Args:
        most: rows that may be drawn.
        seed: of the draw.

    Attributes:
        offered: rows that came, with repetitions.
        repeated: of them those whose content had come before and was still kept.
    """

    def __init__(self, most: int, seed: int = 0) -> None:
        self.offered = 0
        self.repeated = 0
        self._most = most
        self._seed = seed
        self._heap: list[tuple[float, str]] = []
        self._kept: dict[str, tuple[float, _Item]] = {}

    def offer(self, key: str, weight: float, make: Callable[[], _Item]) -> None:
        """Let a row take part.

        Args:
            key: of its content.
            weight: above 0; a row of twice the weight is drawn about twice as often.
            make: called for what is to be kept of it, only where it is kept.
        """
        self.offered += 1
        if key in self._kept:
            self.repeated += 1
            return
        entry = (weight / _uniform(self._seed, key), key)
        if len(self._heap) <= self._most:
            heapq.heappush(self._heap, entry)
        elif entry > self._heap[0]:
            _, gone = heapq.heapreplace(self._heap, entry)
            del self._kept[gone]
        else:
            return
        self._kept[key] = (weight, make())

    def __len__(self) -> int:
        """How many rows could be drawn."""
        return min(self._most, len(self._heap))

    def take(self, count: int) -> list[Drawn[_Item]]:
        """Draw so many at most, the highest priority first."""
        ranked = sorted(self._heap, reverse=True)
        chosen, rest = ranked[:count], ranked[count:]
        threshold = rest[0][0] if rest else 0.0
        found = []
        for _, key in chosen:
            weight, item = self._kept[key]
            probability = min(1.0, weight / threshold) if threshold else 1.0
            found.append(Drawn(key, item, weight, probability))
        return found


class StratifiedSample(Generic[_Item]):
    """The same within strata, of which each gets an equal part of what is drawn.

    Strata with fewer rows give all they have, and leave the rest of their part to the others.

    Args:
        most: rows that may be drawn in all.
        seed: of the draw.
        strata: that are told apart; rows of further ones share one.
    """

    def __init__(self, most: int, seed: int = 0, strata: int = 200) -> None:
        self._most = most
        self._seed = seed
        self._limit = strata
        self._strata: dict[str, PrioritySample[_Item]] = {}

    @property
    def offered(self) -> int:
        return sum(stratum.offered for stratum in self._strata.values())

    @property
    def repeated(self) -> int:
        return sum(stratum.repeated for stratum in self._strata.values())

    def offer(self, stratum: str, key: str, weight: float, make: Callable[[], _Item]) -> None:
        """Let a row of a stratum take part; see `PrioritySample.offer`."""
        if stratum not in self._strata and len(self._strata) >= self._limit:
            stratum = OTHERS
        sample = self._strata.get(stratum)
        if sample is None:
            sample = self._strata[stratum] = PrioritySample(self._most, self._seed)
        sample.offer(key, weight, make)

    def take(self, count: int) -> list[Drawn[_Item]]:
        """Draw so many at most, stratum after stratum."""
        found: list[Drawn[_Item]] = []
        waiting = sorted(self._strata.items(), key=lambda entry: (len(entry[1]), entry[0]))
        for place, (_, stratum) in enumerate(waiting):
            part = -(-(count - len(found)) // (len(waiting) - place))
            found += stratum.take(min(part, len(stratum)))
        return found


def _uniform(seed: int, key: str) -> float:
    digest = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 1) / 2**64
