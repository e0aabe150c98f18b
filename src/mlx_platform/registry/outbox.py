"""The outbox: which moves a sink has still to be told of, and when. It decides; others speak.

A sink's place in a model's journal is its cursor. Only events that count are told, oldest first, and the
cursor passes one only once it was delivered, or was tried so often that it is parked. Whoever dies between
telling and moving the cursor tells it again, with the same id: at least once, never less.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Protocol

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import SinkSettings
from mlx_platform.core.text import printable
from mlx_platform.registry.journal import EVENT_SCHEMA, Event
from mlx_platform.registry.rollout import transition_of

CURSOR_PREFIX = "mlx.outbox."
TEST = "test"
FIRST_SIGHT = timedelta(hours=1)
"""How far back a new sink looks, so that the move during which it is first seen is not passed over."""

ERROR_CAP = 200  # characters of what a receiver said
PARKED_CAP = 300  # numbers: a tag of a registered model holds 5,000 characters on some databases
_CURSOR_SCHEMA = "mlx.outbox/v1"
_FIRST_WAIT = 5.0  # seconds
_LONGEST_WAIT = 6 * 3600.0
_LONGEST_ASKED = 24 * 3600.0
_LONGEST = timedelta(seconds=1.1 * _LONGEST_ASKED + 1)
_TEXT_CAP = 4096
_ITEMS_CAP = 100
_NUMBER_CAP = 1 << 53  # beyond it, JSON parsers disagree
_DEPTH_CAP = 8
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Message:
    """What is told: an id that stays the same when it is told again, and the JSON document about it."""

    id: str
    document: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        """The document in ASCII, so that no text in it can end up in anything but a JSON string."""
        return json.dumps(self.document, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of telling it once.

    `said` is one printable phrase, `retry_after` are seconds, and `final` asks not to be told again.
    """

    delivered: bool
    said: str
    retry_after: float | None = None
    final: bool = False


class Sender(Protocol):
    """A sink that is ready to be told."""

    def send(self, message: Message, *, timeout: float, now: datetime) -> Answer:
        """Tell it once; whatever goes wrong is an answer, not an error."""
        ...


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a sink has come in one journal.

    Every event up to `settled` was delivered, was not for this sink, or is in `parked`. `attempts` counts the
    failed attempts at the event `trying`, which is not tried again before `next_try`.
    """

    settled: int = 0
    parked: tuple[int, ...] = ()
    trying: int = 0
    attempts: int = 0
    next_try: datetime | None = None
    error: str = ""

    def encode(self) -> str:
        """The text of the tag."""
        content = {
            "schema": _CURSOR_SCHEMA,
            "settled": self.settled,
            "parked": list(self.parked),
            "trying": self.trying,
            "attempts": self.attempts,
            "next_try": rfc3339(self.next_try) if self.next_try else None,
            "error": self.error,
        }
        return json.dumps(content, separators=(",", ":"))

    def due(self, now: datetime) -> bool:
        """Whether the next event may be tried."""
        # A time further away than any wait was written by a clock that was wrong.
        return self.next_try is None or not now < self.next_try <= now + _LONGEST

    def passed(self, number: int) -> "Cursor":
        """The cursor once everything up to this number needs nothing more."""
        # The latest error stays to be seen with what is parked for it.
        return Cursor(max(self.settled, number), self.parked, error=self.error if self.parked else "")

    def after(
        self, number: int, answer: Answer, *, now: datetime, max_attempts: int, jitter: float
    ) -> "Cursor":
        """The cursor after one attempt at the first pending event; `jitter` is in [0, 1)."""
        if answer.delivered:
            return self.passed(number)
        attempts = self.attempts + 1 if self.trying == number else 1
        if answer.final or attempts >= max_attempts:
            return replace(self.passed(number), parked=_newest({*self.parked, number}), error=answer.said)
        wait = waiting_time(attempts, answer.retry_after, jitter)
        return replace(
            self,
            trying=number,
            attempts=attempts,
            next_try=_whole_second(now + timedelta(seconds=wait)),
            error=answer.said,
        )

    def unparked(self, number: int) -> "Cursor":
        """The cursor once a parked event was delivered after all."""
        left = tuple(other for other in self.parked if other != number)
        # An error is of what is parked or waits for another attempt; nobody is helped by a past one.
        return replace(self, parked=left, error=self.error if left or self.trying else "")


def waiting_time(attempts: int, retry_after: float | None, jitter: float) -> float:
    """Seconds until the next attempt: what the receiver asks for, else 5, 20, 80 and so on up to 6 hours."""
    if retry_after is not None:
        wait = min(max(retry_after, 1.0), _LONGEST_ASKED)
        return wait * (1 + 0.1 * jitter)  # never earlier than asked
    wait = min(_FIRST_WAIT * 4.0 ** (min(attempts, 20) - 1), _LONGEST_WAIT)
    return wait * (0.8 + 0.4 * jitter)


def decode_cursor(text: str, head: int) -> Cursor | None:
    """Read back a tag; None for one that no cursor of this journal can be, such as one beyond its head."""
    try:
        content = json.loads(text)
        parked = tuple(sorted({_count(number) for number in content["parked"]}))
        settled = _count(content["settled"])
        at = content["next_try"]
        cursor = Cursor(
            settled=settled,
            parked=parked,
            trying=_count(content["trying"]),
            attempts=_count(content["attempts"]),
            next_try=None if at is None else datetime.fromisoformat(at).astimezone(UTC),
            error=printable(str(content["error"]), ERROR_CAP),
        )
        known = content["schema"] == _CURSOR_SCHEMA and settled <= head and parked[-1:] <= (settled,)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return cursor if known else None


def first_cursor(events: Sequence[Event], start: str, now: datetime) -> Cursor:
    """Where a sink begins that has no cursor yet.

    Args:
        events: the valid events of the journal, oldest first.
        start: `beginning`, or `now`, which takes in the moves of the hour before: among them the very move
            during which the sink is first seen, and one that another process made at the same time.
        now: the present moment.
    """
    if start == "beginning":
        return Cursor()
    settled = 0
    for event in events:
        if event.time <= now - FIRST_SIGHT:
            settled = event.number
    return Cursor(settled)


def merged(ours: Cursor, stored: Cursor) -> Cursor:
    """One cursor out of those of two couriers that knew nothing of each other: what either told is told."""
    ahead = stored if stored.settled > ours.settled else ours
    both = {*ours.parked, *stored.parked}
    parked = {
        number
        for number in both
        if not any(number <= one.settled and number not in one.parked for one in (ours, stored))
    }
    return replace(ahead, parked=_newest(parked))


def check_sinks(sinks: Sequence[SinkSettings]) -> None:
    """Refuse sinks that cannot be told apart.

    Raises:
        UsageError: one has no name, or the name of another.
    """
    names = [sink.name for sink in sinks]
    for sink in sinks:
        if not sink.name or names.count(sink.name) > 1:
            what = f"is called {sink.name!r} like another one" if sink.name else "has no name"
            raise UsageError(
                f"A sink of events {what}.", hint="Give each [[events.sinks]] a name of its own."
            )


def wants_model(sink: SinkSettings, model: str) -> bool:
    """Whether a sink is to be told of a model's moves."""
    return any(fnmatchcase(model, pattern) for pattern in sink.models)


def pending(sink: SinkSettings, cursor: Cursor, events: Iterable[Event]) -> tuple[Event, ...]:
    """The events behind the cursor that the sink asked for, oldest first."""
    return tuple(event for event in events if event.number > cursor.settled and _wants(sink, event))


def _wants(sink: SinkSettings, event: Event) -> bool:
    return (
        event.kind in sink.kinds
        and wants_model(sink, event.model)
        and any(fnmatchcase(alias, pattern) for alias in _aliases(event) for pattern in sink.aliases)
    )


def _aliases(event: Event) -> tuple[str, ...]:
    """What an event is about: a rollout concerns also those who watch the alias that it is for."""
    transition = transition_of(event)
    return (event.alias, transition.channel) if transition else (event.alias,)


def message_of(event: Event, labels: Mapping[int, str]) -> Message:
    """What is told of a move.

    Args:
        event: a valid one.
        labels: of the versions it names, as far as they are known.
    """
    return make_message(
        # An id is whatever its writer chose; the hash was computed here.
        event.id if _ID.fullmatch(event.id) else event.hash,
        event.kind,
        event.time,
        {
            "number": event.number,
            "model": event.model,
            "alias": event.alias,
            "from_version": event.from_version,
            "to_version": event.to_version,
            "from_label": labels.get(event.from_version or 0, ""),
            "to_label": labels.get(event.to_version or 0, ""),
            "digest": event.digest,
            "actor": event.actor,
            "reason": event.reason,
            "evidence": event.evidence,
        },
    )


def trial_message(id: str, actor: str, now: datetime) -> Message:  # noqa: A002 - the field's name
    """A message that has the form of a move, and is none."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("from_version", "to_version", "from_label", "to_label", "digest"), None
    )
    content = {"number": 0, "model": TEST, "alias": TEST, **nothing, "actor": actor}
    return make_message(id, TEST, now, {**content, "reason": "a test of this sink", "evidence": {}})


def make_message(id: str, kind: str, time: datetime, content: Mapping[str, Any]) -> Message:  # noqa: A002 - the field's name
    """A message of a kind, about whatever its content says."""
    data = {"schema": EVENT_SCHEMA, "id": id, "kind": kind, "time": rfc3339(time), **content}
    return Message(id, {"type": f"mlx.{kind}", "timestamp": rfc3339(time), "data": _plain(data)})


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy that every JSON parser takes: finite, of bounded size and depth, and valid Unicode."""
    if isinstance(value, str):
        return value[:_TEXT_CAP].encode("utf-8", "replace").decode()
    if isinstance(value, int | float):
        return value if abs(value) < _NUMBER_CAP else None
    if isinstance(value, Mapping) and depth < _DEPTH_CAP:
        items = list(value.items())[:_ITEMS_CAP]
        return {_plain(str(key)): _plain(inner, depth + 1) for key, inner in items}
    if isinstance(value, list | tuple) and depth < _DEPTH_CAP:
        return [_plain(inner, depth + 1) for inner in value[:_ITEMS_CAP]]
    return None


def _newest(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers)[-PARKED_CAP:])


def _whole_second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0) + timedelta(seconds=1 if moment.microsecond else 0)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError
    return value
