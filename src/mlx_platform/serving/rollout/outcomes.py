"""What becomes of answers later: which arm a request went to, and what is told of it, once."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Generic, TypeVar

from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.rollout.counts import Arm, Window
from mlx_platform.traffic.feedback import Feedback, Value

COUNTED, REPEATED, CONTRADICTED, UNKNOWN, LATE, OTHER = (
    *("counted", "repeated", "contradicted"),
    *("unknown", "late", "other"),
)
FATES = (COUNTED, REPEATED, CONTRADICTED, UNKNOWN, LATE, OTHER)
"""What may become of an entry, the first that fits one of its outcomes.

It counts; the same was told before; something else was told before; nobody here answered such a request; the
window in which it was answered is over; or no metric of the rollout is about it.
"""

_Kept = TypeVar("_Kept")


class Recent(Generic[_Kept]):
    """The last things that were noted, between half and all of `most` of them."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._young: dict[str, _Kept] = {}
        self._old: dict[str, _Kept] = {}

    def note(self, key: str, value: _Kept) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def find(self, key: str) -> _Kept | None:
        found = self._young.get(key)
        return found if found is not None else self._old.get(key)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class Outcomes:
    """Joins feedback with the arms of one rollout.

    Args:
        metrics: the outcomes that count; others are none of this rollout's.
        remembered: of how many requests it is known who answered them.
    """

    def __init__(self, metrics: frozenset[str], remembered: int) -> None:
        self._metrics = metrics
        self._answered: Recent[tuple[Arm, int]] = Recent(remembered)
        self._told: Recent[Value] = Recent(remembered)

    def answered(self, request_id: str, arm: Arm, window: int) -> None:
        """Note who answered a request, where anybody may tell something of it that counts."""
        if self._metrics:
            self._answered.note(request_id, (arm, window))

    def take(
        self, entry: Feedback, window: Window, arm: Arm | None = None, since: datetime | None = None
    ) -> str:
        """Count an entry.

        Args:
            entry: what was told.
            window: that is being counted.
            arm: who answered the request, where the caller knows it and this server may not.
            since: when the window began. Of such a request nobody here knows the window; what became of it
                before then belongs to an earlier one.

        Returns:
            One of `FATES`.
        """
        known = self._answered.find(entry.request_id)
        if known is None and arm is not None:
            early = since is not None and entry.time < since
            known = (arm, window.number - early)
        fates = {self._take_one(entry, name, known, window) for name in entry.outcomes}
        return next(fate for fate in FATES if fate in fates)

    def _take_one(self, entry: Feedback, name: str, known: tuple[Arm, int] | None, window: Window) -> str:
        value = entry.outcomes[name]
        if known is None:
            return UNKNOWN
        if name not in self._metrics or isinstance(value, str):
            return OTHER
        arm, number = known
        if number != window.number:
            return LATE
        place = f"{entry.request_id} {name}"
        before = self._told.find(place)
        if before is not None:
            return REPEATED if before == value else CONTRADICTED
        self._told.note(place, value)
        window.arm(arm).outcome(name, float(value))
        return COUNTED


def fate_samples(fates: Counter[str]) -> Iterator[Sample]:
    """How many entries came to what."""
    for fate in FATES:
        yield Sample(
            "mlx_feedback", "Entries of feedback, by what became of them.", fates[fate], (("fate", fate),)
        )
