"""A rollout as its events tell it: what is tried, how far it is, and why it is there.

Every transition is one event with a document of everything that can change; the plan stands in the first one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import IntegrityError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.serving.rollout.counts import ArmCounts
from mlx_platform.serving.rollout.plan import Plan, Step, plan_from_document

State = Literal[
    "SHADOW",
    "STEP",
    "PAUSED",
    "PROMOTING",
    "BAKING",
    "PROMOTED",
    "ABORTED",
    "ROLLED_BACK",
    "SUPERSEDED",
    "COMPLETED",
]
"""COMPLETED is the end of an A/B test, or of a plan of shadow alone, which promote nothing."""
ACTIVE: frozenset[str] = frozenset({"SHADOW", "STEP", "PAUSED", "PROMOTING", "BAKING"})
ROUTED: frozenset[str] = frozenset({"SHADOW", "STEP", "PAUSED", "PROMOTING"})


@frozen
class Rollout:
    """Where a rollout stands.

    Attributes:
        id: also the seed of the assignment.
        model: its name.
        channel: the alias that the candidate is meant for.
        stable: the version that held the channel when it began.
        candidate: the version that is tried.
        stable_digest: of the package.
        candidate_digest: likewise.
        plan: of its first event.
        state: see `State`.
        step: the index of the plan's step, from 0.
        window: counts what is measured together: everything before it is forgotten.
        weight: the percentage of requests that the candidate answers; `split` says whether that holds.
        shadow: the percentage of the stable version's requests that are copied to the candidate.
        started_at: when it began.
        state_since: when it came into this state.
        step_since: when this window began.
        held_s: seconds since it began that the deadline does not count: those of pauses, without the present
            one, and all of them before somebody last let it go on.
        controller: the server that judges.
        cause: a word for why it is in this state, such as `no_data`.
        reason: the same as a sentence, or what somebody said.
        actor: who brought it there.
        verdicts: the metrics of the look that led here, as `MetricVerdict.document` has them.
        baseline: what is kept of the stable version's counts of earlier windows; baking compares with it.
        overridden: what was let pass by hand when it began, as `mlx promote --override` names it.
        event: the number of its last event; 0 before the first is written.
    """

    id: str
    model: str
    channel: str
    stable: int
    candidate: int
    stable_digest: str
    candidate_digest: str
    plan: Plan
    state: State
    step: int
    window: int
    weight: float
    shadow: float
    started_at: datetime
    state_since: datetime
    step_since: datetime
    held_s: float = 0.0
    controller: str = ""
    cause: str = ""
    reason: str = ""
    actor: str = ""
    verdicts: tuple[Mapping[str, Any], ...] = ()
    baseline: Mapping[str, Any] | None = None
    overridden: tuple[str, ...] = ()
    event: int = 0

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def split(self) -> tuple[float, float]:
        """What a router does while the lease holds: percent to answer, percent to copy. Else (0, 0)."""
        return (self.weight, self.shadow) if self.state in ROUTED else (0.0, 0.0)

    @property
    def share(self) -> float:
        """The percentage of requests that the candidate answers; all once it is promoted."""
        return 100.0 if self.state in {"BAKING", "PROMOTED"} else self.split[0]

    @property
    def at(self) -> Step:
        """The plan's step."""
        return self.plan.steps[self.step]

    @property
    def ref(self) -> str:
        return f"{self.model}/{self.candidate}"

    def elapsed_s(self, now: datetime) -> float:
        """Seconds since this window began, never negative."""
        return max(0.0, (now - self.step_since).total_seconds())

    def progress_s(self, now: datetime) -> float:
        """Seconds that the deadline counts: since it began or somebody let it go on, without pauses."""
        paused = (now - self.state_since).total_seconds() if self.state == "PAUSED" else 0.0
        return max(0.0, (now - self.started_at).total_seconds() - self.held_s - max(0.0, paused))

    def document(self) -> dict[str, Any]:
        """What its next event says, JSON-ready; with the plan while there is no event."""
        found: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, datetime):
                value = rfc3339(value)
            elif entry.name == "verdicts":
                value = [dict(verdict) for verdict in value]
            elif entry.name == "overridden":
                value = list(value)
            elif entry.name == "held_s":
                value = round(value, 3)
            if entry.name not in {"plan", "event"} and value not in ("", None, []):
                found[entry.name] = value
        if not self.event:
            found["plan"] = self.plan.document()
        return found


def rollout_of(documents: Iterable[tuple[int, Mapping[str, Any]]]) -> Rollout:
    """The rollout that its events describe.

    Args:
        documents: the number and the document of each valid event of one rollout, oldest first.

    Raises:
        IntegrityError: they are none of a rollout, or one that this version of mlx does not understand.
    """
    every = list(documents)
    if not every:
        raise IntegrityError("A rollout without any event.")
    try:
        plan = plan_from_document(every[0][1].get("plan"))
        number, last = every[-1]
        return _read(last, plan, number)
    except UsageError as error:
        raise IntegrityError(error.message) from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise IntegrityError(
            f"The last event of the rollout cannot be understood: {printable(str(error), 80)}.",
            hint="Another version of mlx may have written it.",
        ) from error


def _read(document: Mapping[str, Any], plan: Plan, number: int) -> Rollout:
    state = document["state"]
    if state not in get_args(State):
        raise ValueError(f"unknown state {state!r}")
    step = _whole(document["step"])
    if step >= len(plan.steps):
        raise ValueError(f"there is no step {step}")
    verdicts = tuple(_table(verdict) for verdict in document.get("verdicts", ()))
    baseline = None if document.get("baseline") is None else _table(document["baseline"])
    if baseline is not None:
        ArmCounts.from_document(baseline)
    return Rollout(
        id=_text(document, "id", needed=True),
        model=_text(document, "model", needed=True),
        channel=_text(document, "channel", needed=True),
        stable=_whole(document["stable"]),
        candidate=_whole(document["candidate"]),
        stable_digest=_text(document, "stable_digest"),
        candidate_digest=_text(document, "candidate_digest"),
        plan=plan,
        state=state,
        step=step,
        window=_whole(document["window"]),
        weight=_share(document["weight"]),
        shadow=_share(document["shadow"]),
        started_at=_time(document["started_at"]),
        state_since=_time(document["state_since"]),
        step_since=_time(document["step_since"]),
        held_s=_seconds(document.get("held_s", 0.0)),
        controller=_text(document, "controller"),
        cause=_text(document, "cause"),
        reason=_text(document, "reason"),
        actor=_text(document, "actor"),
        verdicts=verdicts,
        baseline=baseline,
        overridden=tuple(str(name) for name in document.get("overridden", ())),
        event=number,
    )


def _text(document: Mapping[str, Any], key: str, *, needed: bool = False) -> str:
    value = document[key] if needed else document.get(key, "")
    if not isinstance(value, str) or (needed and not value):
        raise TypeError(f"{key} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise TypeError("a count is none")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise TypeError("seconds are none")
    return float(value)


def _share(value: Any) -> float:
    if _seconds(value) > 100:
        raise ValueError("a percentage above 100")
    return float(value)


def _time(value: Any) -> datetime:
    if not isinstance(value, str):
        raise TypeError("a time is none")
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment.astimezone(UTC)


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("a table is none")
    return dict(value)
