"""Rollouts as the journal keeps them: each transition is one event, in the same sequence as every move.

What a transition says is a document of whoever runs rollouts. Only the few words of it that other commands
need are read here, and trusted no more than anything else out of a registry. The event itself says whether
the rollout goes on: as long as it does, the alias `canary` is its candidate, and its last event lets it go.
So one compare-and-set decides about the aliases and about rollouts alike.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mlx_platform.core.errors import ConflictError, UsageError
from mlx_platform.core.text import plural, printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.journal import Event, Journal

CANARY = "canary"
"""The alias of the version that a rollout tries, for as long as it does."""
DOCUMENT = "rollout"
"""Where the evidence of a transition has its document, and that of a move the rollout that made it."""
TAG_PREFIX = "mlx.rollout."
"""Tags of the model in which servers that take part in a rollout leave word to each other."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAMELESS = "without an id"
_TEXT_CAP = 120


@frozen
class Transition:
    """One transition, as far as others than rollouts need to know it; every text in it is printable.

    `stable` and `candidate` are versions, None where the document or the event names none, and `channel` is
    the alias that the candidate is meant for. `step` counts from 0; `weight` is the percentage of requests
    that the candidate answers, `shadow` of those that it gets copies of.
    """

    id: str
    channel: str
    stable: int | None
    candidate: int | None
    state: str
    step: int | None
    weight: float | None
    shadow: float | None
    cause: str
    event: int

    @property
    def phrase(self) -> str:
        """The state in a few words: `step 2 (5 %)`, `paused in step 1 (100 % copied): no data`, `aborted`."""
        place = f"step {self.step + 1}" if self.step is not None else "a step"
        share = f" ({self.weight:g} %)" if self.weight else ""
        if not share and self.shadow:
            share = f" ({self.shadow:g} % copied)"
        match self.state:
            case "":
                words = "in a state that cannot be read"
            case "SHADOW" | "STEP":
                words = place + share
            case "PAUSED":
                words = f"paused in {place}{share}"
            case state:
                words = state.lower().replace("_", " ")
        return f"{words}: {self.cause.replace('_', ' ')}" if self.cause else words

    def sentence(self, model: str) -> str:
        """What is tried where, such as `The rollout 3f2a tries digits/3 for production: step 2 (5 %).`."""
        candidate = f"{model}/{self.candidate}" if self.candidate else "nobody"
        return f"The rollout {self.id} tries {candidate} for {self.channel}: {self.phrase}."

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "id": self.id,
            "channel": self.channel,
            "stable": self.stable,
            "candidate": self.candidate,
            "state": self.state,
            "step": self.step,
            "weight": self.weight,
            "shadow": self.shadow,
            "cause": self.cause,
            "event": self.event,
        }


def transition_of(event: Event) -> Transition | None:
    """What an event says about a rollout; None for one that is no transition."""
    if event.kind != "rollout":
        return None
    content = _content(event)
    return Transition(
        id=_text(content, "id") or _NAMELESS,
        channel=_text(content, "channel") or "production",
        stable=_whole(content, "stable"),
        candidate=event.to_version,
        state=_text(content, "state"),
        step=_whole(content, "step"),
        weight=_share(content, "weight"),
        shadow=_share(content, "shadow"),
        cause=_text(content, "cause"),
        event=event.number,
    )


def rollout_events(events: Iterable[Event]) -> tuple[tuple[Event, ...], ...]:
    """The transitions among valid events, oldest first, by rollout: the one that began first comes first."""
    found: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == "rollout":
            found.setdefault(_text(_content(event), "id") or _NAMELESS, []).append(event)
    return tuple(tuple(group) for group in found.values())


def active_rollout(journal: Journal) -> Transition | None:
    """The last transition of the rollout that goes on now; None when none does."""
    last = journal.last(CANARY)
    if last is None or last.to_version is None:
        return None
    return transition_of(last)


def counted(events: Collection[Event]) -> str:
    """How many moves valid events are, and how many transitions of rollouts if there are any."""
    groups = rollout_events(events)
    transitions = sum(map(len, groups))
    moves = plural(len(events) - transitions, "move")
    if not transitions:
        return moves
    return f"{moves} and {plural(transitions, 'transition')} of {plural(len(groups), 'rollout')}"


def superseded(name: str, journal: Journal, alias: str) -> tuple[str, ...]:
    """What a move of an alias does to the rollout that goes on for it, as a warning; none for no rollout."""
    active = active_rollout(journal)
    if active is None or active.channel != alias:
        return ()
    ends = f"A move of {name}@{alias} by hand ends it as superseded, and its candidate gets no more requests."
    return (f"{active.sentence(name)} {ends}",)


def check_document(document: Mapping[str, Any]) -> None:
    """Refuse a document that says of no rollout what it is about.

    Raises:
        UsageError: its id cannot name a rollout.
    """
    rollout = document.get("id")
    if not isinstance(rollout, str) or not _ID.fullmatch(rollout):
        raise UsageError("A rollout's id has 1 to 64 letters, digits, - and _.")


def refuse_out_of_turn(
    name: str, journal: Journal, document: Mapping[str, Any], candidate: int | None, after: int | None
) -> None:
    """Refuse a transition that cannot follow what the journal says.

    Args:
        name: the model.
        journal: of the model, as it is now.
        document: of the transition.
        candidate: the version that it tries; None for the end of a rollout.
        after: the last event that the writer has seen; None when it does not matter what happened since.

    Raises:
        ConflictError: another rollout goes on, this one has ended, its candidate would be another one, or
            somebody moved one of its aliases or wrote another transition since.
    """
    rollout, channel = str(document["id"]), str(document.get("channel") or "production")
    if after is not None:
        refuse_overtaken(name, journal, channel, after)
    active = active_rollout(journal)
    if active and active.id != rollout:
        raise ConflictError(
            f"Another rollout of {name} goes on. {active.sentence(name)}",
            hint=f"Wait for it, or end it: mlx rollout abort {name}",
            rollout=active.document(),
        )
    if active and candidate not in {None, active.candidate}:
        raise ConflictError(f"The rollout {rollout} tries {name}/{active.candidate}, and no other version.")
    if not active and (candidate is None or _known(journal, rollout)):
        raise ConflictError(
            f"The rollout {rollout} of {name} has ended.", hint=f"See: mlx rollout history {name}"
        )


def refuse_overtaken(name: str, journal: Journal, alias: str, after: int) -> None:
    """Refuse what was decided before somebody moved an alias, or before a rollout went on.

    Raises:
        ConflictError: says who did what.
    """
    since = (event for event in journal.valid if event.number > after)
    event = next((event for event in since if event.alias in {alias, CANARY}), None)
    if event is None:
        return
    who, transition = printable(event.actor, 80), transition_of(event)
    if transition:
        raise ConflictError(
            f"{who} was faster. The rollout {transition.id} of {name} is at: {transition.phrase}.",
            hint=f"See: mlx rollout status {name}",
            actual=event.number,
        )
    raise ConflictError(
        f"{who} moved {name}@{event.alias} to {event.to_version or 'nobody'} meanwhile.",
        hint=f"See: mlx history {name}",
        actual=event.number,
    )


def refuse_canary(name: str, journal: Journal, alias: str) -> None:
    """Refuse to move the alias that a rollout has taken.

    Raises:
        ConflictError: names the rollout.
    """
    active = active_rollout(journal) if alias == CANARY else None
    if active:
        raise ConflictError(
            f"{name}@{CANARY} belongs to a rollout. {active.sentence(name)}",
            hint=f"End it with: mlx rollout abort {name}",
            rollout=active.document(),
        )


def _known(journal: Journal, rollout: str) -> bool:
    return any(event.kind == "rollout" and _content(event).get("id") == rollout for event in journal.valid)


def _content(event: Event) -> Mapping[str, Any]:
    found = event.evidence.get(DOCUMENT)
    return found if isinstance(found, Mapping) else {}


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key)
    return printable(value, _TEXT_CAP) if isinstance(value, str) else ""


def _whole(content: Mapping[str, Any], key: str) -> int | None:
    value = content.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _share(content: Mapping[str, Any], key: str) -> float | None:
    value = content.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 100:
        return None
    return float(value)
