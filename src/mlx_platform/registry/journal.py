"""The journal: every move of an alias and every step of a rollout, as one sequence per model that only grows.

An event carries `after`, the number of the last valid event its writer had seen. It counts only if that
event is still the last valid one at its place in the sequence, so of several writers that saw the same state
exactly one wins, even when the alias has moved away and back in the meantime. The numbers are given out by
the registry, in one total order that every reader sees. Each event holds the hash of the valid one before
it: an event that was changed or removed breaks the chain, and a broken chain answers nothing. A number that
is not there is a row that was deleted: a registry gives out the next one only after the last was written.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.values import frozen
from mlx_platform.registry.anchor import Anchor, anchor_problem, parse_anchor, trail
from mlx_platform.registry.timeline import effective_times, event_time

EVENT_SCHEMA = "mlx.event/v1"
REASON_CAP = 1000  # characters
ACTOR_CAP = 200  # characters
Kind = Literal["promote", "rollback", "adopt", "rollout"]
"""`adopt` takes over what somebody did to the alias outside of mlx, `rollout` is a step of a rollout."""
_KINDS = frozenset(get_args(Kind))


@frozen
class Event:
    """One move of one alias, or one transition of a rollout, which is about the alias `canary`.

    `number` is the place in the sequence, 0 before the registry gave one. `digest` is the package digest of
    `to_version`, so that a version number that was given out twice cannot stand in for what was promoted.
    `hash` covers every other field but `number` and `valid`, and is empty for an event that was changed after
    it was written; `valid` is set by `fold`.
    """

    number: int
    id: str
    model: str
    alias: str
    from_version: int | None
    to_version: int | None
    digest: str
    after: int
    kind: Kind
    actor: str
    reason: str
    evidence: Mapping[str, Any]
    time: datetime
    prev_hash: str
    hash: str = ""
    valid: bool = False

    def document(self) -> dict[str, Any]:
        """Everything about the event, JSON-ready."""
        return {"number": self.number, **self._content(), "hash": self.hash, "valid": self.valid}

    def _content(self) -> dict[str, Any]:
        return {
            "schema": EVENT_SCHEMA,
            "id": self.id,
            "model": self.model,
            "alias": self.alias,
            "from_version": self.from_version,
            "to_version": self.to_version,
            "digest": self.digest,
            "after": self.after,
            "kind": self.kind,
            "actor": self.actor,
            "reason": self.reason,
            "evidence": dict(self.evidence),
            "time": rfc3339(self.time),
            "prev_hash": self.prev_hash,
        }

    def encode(self) -> str:
        """The text that the registry keeps: the hash, and behind it what it is the hash of."""
        content = _canonical(self._content())
        return f"{_sha256(content)} {content}"


def check_reason(reason: str) -> None:
    """Refuse a reason that the journal does not keep.

    Raises:
        UsageError: it is too long, or no UTF-8.
    """
    _check_text("reason", reason, REASON_CAP)


def check_actor(actor: str) -> None:
    """Refuse the name of somebody who acts that the journal does not keep.

    Raises:
        UsageError: it is too long, or no UTF-8.
    """
    _check_text("actor", actor, ACTOR_CAP)


def _check_text(what: str, text: str, cap: int) -> None:
    if len(text) > cap:
        raise UsageError(f"The {what} has more than {cap:,} characters.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The {what} is no valid UTF-8 text.") from error


def decode_event(number: int, text: str) -> Event | None:
    """Read back what `encode` wrote; None when the text is none of it."""
    stated, _, body = text.partition(" ")
    try:
        content = _DECODER.decode(body)
        event = Event(
            number=number,
            id=_text(content["id"]),
            model=_text(content["model"]),
            alias=_text(content["alias"]),
            from_version=_version(content["from_version"]),
            to_version=_version(content["to_version"]),
            digest=_text(content["digest"]),
            after=_count(content["after"]),
            kind=_kind(content["kind"]),
            actor=_text(content["actor"]),
            reason=_text(content["reason"]),
            evidence=dict(content["evidence"]),
            time=datetime.fromisoformat(_text(content["time"])).astimezone(UTC),
            prev_hash=_text(content["prev_hash"]),
            hash=stated if stated == _sha256(body) else "",
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return event


@frozen
class Journal:
    """A folded sequence: events oldest first, and what is wrong with it (nothing, as a rule).

    `anchor` is how far it had come when that was last written down, `end` how far it has come.
    """

    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()
    anchor: Anchor | None = None
    end: Anchor | None = None

    @property
    def lag(self) -> int:
        """How many rows the anchor is behind; 0 when it is up to date."""
        return (self.end.number if self.end else 0) - (self.anchor.number if self.anchor else 0)

    @property
    def valid(self) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.valid)

    @property
    def head(self) -> Event | None:
        """The last event that counts."""
        return next((event for event in reversed(self.events) if event.valid), None)

    def moves(self, alias: str) -> tuple[Event, ...]:
        """The valid events of one alias, oldest first."""
        return tuple(event for event in self.events if event.valid and event.alias == alias)

    def last(self, alias: str) -> Event | None:
        moves = self.moves(alias)
        return moves[-1] if moves else None

    def holder(self, alias: str) -> int | None:
        """The version that holds the alias now."""
        last = self.last(alias)
        return last.to_version if last else None

    def aliases(self) -> tuple[str, ...]:
        """Every alias that ever moved, by name."""
        return tuple(sorted({event.alias for event in self.events if event.valid}))

    def in_force(self, moment: datetime, now: datetime) -> dict[str, tuple[Event, datetime]]:
        """The last move of each alias at a moment, and since when its holder held it.

        Args:
            moment: the one asked about.
            now: the time of whoever asks; see `effective_times`.
        """
        valid = self.valid
        times = effective_times([event.time for event in valid], now)
        found: dict[str, tuple[Event, datetime]] = {}
        for event, time in zip(valid, times, strict=True):
            if time <= moment:
                # Within a rollout its alias stays where it is.
                stays = event.alias in found and event.from_version == event.to_version
                found[event.alias] = (event, found[event.alias][1] if stays else time)
        return found

    def previous_holders(self, alias: str) -> tuple[int, ...]:
        """Who held the alias before, latest first, however it left."""
        return tuple(
            event.from_version
            for event in reversed(self.moves(alias))
            if event.from_version not in {None, event.to_version}
        )

    def rolled_back(self, alias: str) -> dict[int, Event]:
        """The versions that a rollback took the alias from and that did not get it back, with the move."""
        found: dict[int, Event] = {}
        for event in self.moves(alias):
            if event.kind == "rollback" and event.from_version is not None:
                found[event.from_version] = event
            if event.to_version is not None:
                found.pop(event.to_version, None)
        return found

    def rollback_targets(self, alias: str) -> tuple[int, ...]:
        """Where a rollback may go, best first.

        A promotion puts a version on top of a pile, a rollback takes the top away until its target lies
        there. So a second rollback goes one further back, and never returns to a version that was rolled
        back from; only promoting it again does. What somebody did outside of mlx is a promotion, unless the
        alias went back to a version in the pile or was taken away: then it is a rollback. What a rollout
        tries leaves nothing to go back to.
        """
        moves = self.moves(alias)
        # Who held it before the first move was put there by somebody else, and is as good as promoted.
        first = moves[0].from_version if moves else None
        pile = [] if first is None else [first]
        for event in moves:
            if event.kind == "rollout":
                pile = []
            elif event.kind == "rollback" or (event.kind == "adopt" and event.to_version in {None, *pile}):
                pile = pile[:-1]
                # A target that never held the alias is not in the pile: it takes the place of the top.
                while event.to_version in pile and pile[-1] != event.to_version:
                    pile.pop()
            if event.to_version is not None and pile[-1:] != [event.to_version]:
                pile.append(event.to_version)
        holder = self.holder(alias)
        return tuple(dict.fromkeys(version for version in reversed(pile) if version != holder))


def read_journal(model: str, rows: Iterable[tuple[int, str]], anchor: str = "") -> Journal:
    """Read a journal as the registry keeps it.

    Args:
        model: the model whose journal it is.
        rows: number and text of every row, in any order. A row without a readable event breaks the journal:
            passing over it would let whoever takes the newest event's text away put the version before it
            live.
        anchor: what the model's tag says, empty when it has none. It must have been read before the rows: a
            journal that grows meanwhile is then no shorter than its anchor.
    """
    # A page that was read while the journal grew may repeat the last row of the page before it.
    ordered = sorted(set(rows))
    events, problems = [], _gaps([number for number, _ in ordered])
    for number, text in ordered:
        event = decode_event(number, text)
        if event is None:
            problems.append(f"event {number} cannot be read")
        else:
            events.append(event)
    digests = trail(ordered)
    problem = anchor_problem(anchor, digests)
    folded = fold(model, events)
    last = max(digests, default=0)
    return Journal(
        events=folded.events,
        problems=(*problems, *folded.problems, *([problem] if problem else [])),
        anchor=parse_anchor(anchor),
        end=Anchor(last, digests[last]) if last > 0 else None,
    )


def fold(model: str, events: Iterable[Event]) -> Journal:
    """Decide which events count, and find what was changed or taken away.

    Args:
        model: the model whose journal it is.
        events: in any order; `valid` is ignored.
    """
    judged: list[Event] = []
    problems: list[str] = []
    head: Event | None = None
    holders: dict[str, int | None] = {}
    known = {0: ""}
    for event in sorted(events, key=lambda event: event.number):
        latest = event.after == (head.number if head else 0)
        problem = _problem(event, model, known)
        if not problem and latest and event.from_version != holders.get(event.alias, event.from_version):
            problem = f"event {event.number} moves {event.alias} from where it was not"
        if problem:
            problems.append(problem)
        counts = latest and not problem
        judged.append(replace(event, valid=counts) if counts != event.valid else event)
        if counts:
            head = judged[-1]
            holders[event.alias] = event.to_version
            known[event.number] = event.hash
    return Journal(tuple(judged), tuple(problems))


def next_event(
    journal: Journal,
    *,
    model: str,
    alias: str,
    from_version: int | None,
    to: int | None,
    digest: str,
    kind: Kind,
    actor: str,
    reason: str,
    evidence: Mapping[str, Any],
    time: datetime,
    id: str,  # noqa: A002 - the field's name
) -> Event:
    """The event that moves an alias, as seen by a writer who knows this journal.

    `from_version` is the journal's holder, or for an alias that it has never seen, whoever holds it.
    `time` is the writer's clock; see `event_time`.
    """
    head = journal.head
    time = event_time(time, head.time if head else None)
    event = Event(
        number=0,
        id=id,
        model=model,
        alias=alias,
        from_version=from_version,
        to_version=to,
        digest=digest,
        after=head.number if head else 0,
        kind=kind,
        actor=actor,
        reason=reason,
        evidence=evidence,
        # The text keeps milliseconds, and what is read back shall be what was written.
        time=time.replace(microsecond=time.microsecond // 1000 * 1000),
        prev_hash=head.hash if head else "",
    )
    return replace(event, hash=event.encode().partition(" ")[0])


def _gaps(numbers: Sequence[int]) -> list[str]:
    problems = []
    before = 0
    for number in numbers:
        if number <= before:
            problems.append(f"event {number} stands where no event can")
        elif number == before + 2:
            problems.append(f"event {number - 1} is missing")
        elif number > before + 2:
            problems.append(f"events {before + 1} to {number - 1} are missing")
        before = max(before, number)
    return problems


def _problem(event: Event, model: str, known: Mapping[int, str]) -> str:
    if not event.hash:
        return f"event {event.number} was changed after it was written"
    if event.model != model:
        return f"event {event.number} belongs to another model"
    if event.after not in known:
        return f"event {event.number} follows event {event.after}, which is missing"
    if event.prev_hash != known[event.after]:
        return f"event {event.number} does not follow the event before it"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# NaN and infinity are no JSON, and could not be written back.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError
    return value


def _version(value: Any) -> int | None:
    return None if value is None else _count(value)


def _kind(value: Any) -> Kind:
    if value not in _KINDS:
        raise ValueError
    return cast("Kind", value)
