"""Which layers must stay in float32, so that the answers stay close enough to the original's.

Steered by the divergence of the answers, which is smooth where accuracy is a matter of luck: each layer is
taken back to float alone, layers are ordered by what that gains for its bytes, the fewest first layers of
that order that suffice are found by doubling and bisection, and what turns out not to be needed among them
becomes integer again. No label is looked at.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlx_platform.quantize.sensitivity import Distance, Sensitivity

_PROPOSALS = 3
_HALF = 0.5  # of the divergence is left by each proposal of what the one before it left
_SLACK = 1.1  # how much more divergence may remain after pruning
_RANKING = 0.6  # share of the time that may go into looking at layers alone

Reverted = frozenset[str]


class Memory(Protocol):
    """Keeps what was measured, perhaps from one process to the next."""

    def recall(self, reverted: Reverted) -> Distance | None: ...

    def keep(self, reverted: Reverted, distance: Distance) -> None: ...


@dataclass(slots=True)
class Forgetful:
    """The memory of one search alone."""

    known: dict[Reverted, Distance] = field(default_factory=dict)

    def recall(self, reverted: Reverted) -> Distance | None:
        return self.known.get(reverted)

    def keep(self, reverted: Reverted, distance: Distance) -> None:
        self.known[reverted] = distance


@dataclass(frozen=True, slots=True)
class Limits:
    """`evals` is how many candidates may be measured, `seconds` how long that may take; None is no limit."""

    evals: int = 200
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Layers to leave in float32. `fits` says that the loss is within what was asked for."""

    reverted: Reverted
    distance: Distance
    fits: bool


@dataclass(frozen=True, slots=True)
class _Goal:
    """What a proposal must keep to."""

    loss: float
    divergence: float

    def met(self, distance: Distance) -> bool:
        return distance.loss <= self.loss and distance.divergence <= self.divergence


class _SpentError(Exception):
    """Nothing more may be measured."""


class Search:
    """One search over the layers of one model.

    Attributes:
        ranking: the layers that were measured alone, by gain for cost, once `proposals` has begun.
        points: everything that was measured, in order.
        stopped: which limit ended it, `evals` or `time`; empty while none did.
        unranked: layers that were not looked at alone, as what the limit `cut` left was needed to put layers
            together.
    """

    def __init__(
        self,
        costs: Mapping[str, int],
        measure: Callable[[Reverted], Distance],
        tolerated: float,
        limits: Limits,
        *,
        memory: Memory | None = None,
        advance: Callable[[int], None] = lambda _measured: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up.

        Args:
            costs: the bytes that each layer takes more in float32, the most suspicious layer first: where the
                limits are too narrow to look at every layer alone, the last ones are not.
            measure: the distance of the candidate in which these layers are float.
            tolerated: the largest loss that is good enough.
            limits: when to stop.
            memory: of candidates that were measured before.
            advance: told of each candidate that is done.
            clock: seconds.
        """
        self.ranking: tuple[Sensitivity, ...] = ()
        self.points: list[tuple[Reverted, Distance]] = []
        self.stopped = ""
        self.cut = ""
        self.unranked = 0
        self._costs = dict(costs)
        self._measure = measure
        self._tolerated = tolerated
        self._limits = limits
        self._memory: Memory = memory or Forgetful()
        self._advance = advance
        self._clock = clock
        self._began = clock()
        self._spent = 0

    @property
    def expected(self) -> int:
        """About how many candidates will be measured."""
        layers = len(self._costs)
        return min(1 + layers + 2 * layers.bit_length() + layers // 4, self._limits.evals)

    def proposals(self) -> Iterator[Proposal]:
        """Candidates from the loosest to the strictest: each leaves half of the divergence of the one before.

        The candidate with every layer in integers is not among them. Where the loss of none is tolerated, the
        divergence alone decides. Where a limit ends the search before there is one, the best of what was
        measured is.
        """
        proposed: set[Reverted] = set()
        try:
            whole = self.measured(Reverted())
            order, tolerated = self._order(whole), self._tolerated
            bound = math.inf if whole.loss > self._tolerated else whole.divergence * _HALF
            for _ in range(_PROPOSALS):
                goal = _Goal(tolerated, bound)
                found = self._fewest(order, goal)
                if found is None and not proposed:
                    # Nothing is good enough on these rows; those that judge may think otherwise.
                    tolerated, goal = math.inf, _Goal(math.inf, whole.divergence * _HALF)
                    found = self._fewest(order, goal)
                if found is None:
                    break
                found = self._pruned(order, found, goal)
                if found.reverted not in proposed:
                    proposed.add(found.reverted)
                    yield found
                bound = found.distance.divergence * _HALF
        except _SpentError:
            best = None if proposed else self._best()
            if best is not None:
                yield best

    def measured(self, reverted: Reverted) -> Distance:
        """Measure a candidate, unless it was before.

        Raises:
            _SpentError: a limit is reached.
        """
        known = self._memory.recall(reverted)
        if known is None:
            if self._spent >= self._limits.evals:
                self.stopped = "evals"
            elif self._limits.seconds is not None and self._clock() - self._began > self._limits.seconds:
                self.stopped = "time"
            if self.stopped:
                raise _SpentError
            self._spent += 1
            known = self._measure(reverted)
            self._memory.keep(reverted, known)
            self._advance(1)
        if all(reverted != before for before, _ in self.points):
            self.points.append((reverted, known))
        return known

    def _order(self, whole: Distance) -> tuple[str, ...]:
        """Every layer, the most gain for its bytes first; those that no time was left for come last."""
        found = []
        for node, cost in self._costs.items():
            alone = Reverted({node})
            if self._memory.recall(alone) is None:
                self.cut = self._scarce()
            if self.cut:
                break
            distance = self.measured(alone)
            found.append(Sensitivity(node, whole.divergence - distance.divergence, cost, distance))
        self.unranked = len(self._costs) - len(found)
        self.ranking = tuple(sorted(found, key=lambda one: -one.gain / max(1, one.cost)))
        ranked = [one.node for one in self.ranking]
        return (*ranked, *(node for node in self._costs if node not in ranked))

    def _scarce(self) -> str:
        """The limit of which all that is left is needed to put layers together, or an empty text."""
        if self._limits.evals - self._spent <= 2 * len(self._costs).bit_length():
            return "evals"
        seconds = self._limits.seconds
        late = seconds is not None and self._clock() - self._began > _RANKING * seconds
        return "time" if late else ""

    def _fewest(self, order: Sequence[str], goal: _Goal) -> Proposal | None:
        """The fewest first layers of the order that meet a goal; None where all but one do not."""
        most = len(order) - 1
        below, count = 0, 1
        while count <= most and not goal.met(self.measured(Reverted(order[:count]))):
            below, count = count, 2 * count
        if count > most:
            if below >= most or not goal.met(self.measured(Reverted(order[:most]))):
                return None
            count = most
        while below + 1 < count:
            middle = (below + count) // 2
            if goal.met(self.measured(Reverted(order[:middle]))):
                count = middle
            else:
                below = middle
        reverted = Reverted(order[:count])
        return self._proposal(reverted, self.measured(reverted))

    def _pruned(self, order: Sequence[str], found: Proposal, goal: _Goal) -> Proposal:
        """The same with those layers integer again that are not needed, the least useful first."""
        limit = found.distance.divergence * _SLACK
        for node in reversed([node for node in order if node in found.reverted]):
            fewer = found.reverted - {node}
            if not fewer:
                break
            try:
                distance = self.measured(fewer)
            except _SpentError:
                break
            if goal.met(distance) and distance.divergence <= limit:
                found = self._proposal(fewer, distance)
        return found

    def _best(self) -> Proposal | None:
        """Of what was measured: what is tolerated at the least cost, else the closest."""
        left = [point for point in self.points if 0 < len(point[0]) < len(self._costs)]
        if not left:
            return None

        def rank(point: tuple[Reverted, Distance]) -> tuple[bool, float]:
            reverted, distance = point
            fits = distance.loss <= self._tolerated
            return not fits, sum(map(self._costs.__getitem__, reverted)) if fits else distance.divergence

        reverted, distance = min(left, key=rank)
        return self._proposal(reverted, distance)

    def _proposal(self, reverted: Reverted, distance: Distance) -> Proposal:
        return Proposal(reverted, distance, fits=distance.loss <= self._tolerated)
