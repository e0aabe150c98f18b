"""How many rows of a kind are best run together, learnt from the runs that there are."""

from collections import deque
from statistics import median

_REMEMBERED = 5  # runs of a size
_TOLERANCE = 1.1  # a row may take so many times as long as in the best size
_FORGOTTEN = 1000  # runs after which a size that was left alone is tried again


class RunSizes:
    """What a row takes in runs of 1, 2 to 3, 4 to 7 rows and so on, and from where on more rows cost more.

    Beyond what fits into the caches of a processor a row in a large run takes longer than in a small one, and
    how much fits depends on how long the rows are, which no measurement at the start can know.

    Attributes:
        most: rows up to which larger runs were not seen to be worse; None while nothing is too large.
    """

    __slots__ = ("_age", "_last", "_paces", "most")

    def __init__(self) -> None:
        self.most: int | None = None
        self._paces: list[deque[float]] = []
        self._last: list[int] = []
        self._age = 0

    def learn(self, rows: int, seconds: float) -> None:
        """Take a run into account."""
        size = rows.bit_length() - 1
        while len(self._paces) <= size:
            self._paces.append(deque(maxlen=_REMEMBERED))
            self._last.append(self._age)
        self._age += 1
        self._last[size] = self._age
        self._paces[size].append(seconds / rows)
        for other, last in enumerate(self._last):
            if self._age - last > _FORGOTTEN:
                self._paces[other].clear()
        self.most = self._find_most()

    def _find_most(self) -> int | None:
        # The median of few: the first run of a size is slow, and others may use the machine.
        known = {size: median(paces) for size, paces in enumerate(self._paces) if len(paces) == _REMEMBERED}
        if len(known) < 2:
            return None
        best = min(known, key=lambda size: known[size])
        too_large = [size for size in known if size > best and known[size] > _TOLERANCE * known[best]]
        return (1 << min(too_large)) - 1 if too_large else None
