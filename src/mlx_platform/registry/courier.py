"""Carries events from the journals to the sinks, and keeps each sink's cursor in the registry.

The cursor is a tag of the journal's own registered model, so that every machine knows how far a sink has
come. On one machine a file lock lets one courier at a time serve a sink; two machines at once may tell the
same event twice, with the same id.
"""

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from mlx_platform.core.clock import Clock
from mlx_platform.core.files import file_lock
from mlx_platform.core.settings import Settings, SinkSettings
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.journal import Event
from mlx_platform.registry.ledger import Ledger
from mlx_platform.registry.outbox import (
    CURSOR_PREFIX,
    Answer,
    Cursor,
    Message,
    Sender,
    decode_cursor,
    first_cursor,
    merged,
    message_of,
    pending,
    wants_model,
)
from mlx_platform.registry.ref import JOURNAL_PREFIX, is_name
from mlx_platform.registry.version import version_of

_LEAST_SECONDS = 0.05  # less is no attempt


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a sink is in a model's journal: its cursor, and the events it has still to be told of.

    `new` says that it has no cursor of its own yet.
    """

    sink: str
    model: str
    cursor: Cursor
    pending: tuple[Event, ...] = ()
    new: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came of one round: the numbers that were delivered and parked in it, and what is left."""

    standing: Standing
    delivered: tuple[int, ...] = ()
    parked: tuple[int, ...] = ()


def make_sender(sink: SinkSettings, environment: Mapping[str, str], folder: Path) -> Sender:
    """Make a sink ready to be told.

    Raises:
        UsageError: its settings cannot be used, or its secret is not in the environment.
    """
    if sink.kind == "command":
        from mlx_platform.registry.hook_command import CommandHook

        return CommandHook(sink, environment, folder)
    from mlx_platform.registry.webhook import Webhook

    return Webhook(sink, environment)


class Courier:
    """Serves the sinks of one registry.

    Args:
        settings: where the registry is.
        clock: the time of attempts.
        jitter: gives numbers in [0, 1), which keep machines from trying again in step.
    """

    def __init__(
        self, settings: Settings, clock: Clock, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self._backend = Backend(settings)
        self._ledger = Ledger(self._backend, clock)
        self._locks = settings.path(settings.cache.dir) / "outbox"
        self._clock = clock
        self._jitter = jitter

    def models(self) -> tuple[str, ...]:
        """Every model that has a journal, by name."""
        names = (
            name.removeprefix(JOURNAL_PREFIX)
            for name in self._backend.reader.names()
            if name.startswith(JOURNAL_PREFIX)
        )
        return tuple(sorted(filter(is_name, names)))

    def standing(self, sink: SinkSettings, model: str) -> Standing:
        """Where a sink is; nothing is written.

        Raises:
            IntegrityError: the journal is broken, so that nobody can tell what happened.
        """
        return self._look(sink, model)[0]

    def deliver(
        self,
        sink: SinkSettings,
        sender: Sender,
        model: str,
        *,
        seconds: float | None = None,
        eager: bool = False,
        patience: float = 10.0,
    ) -> Delivery:
        """Tell a sink what it has still to be told of a model, oldest first, until one event fails.

        Args:
            sink: the sink.
            sender: the same, ready to be told.
            model: the model.
            seconds: for all of it; without them each attempt has the sink's own timeout.
            eager: try what failed at once, without waiting for its time.
            patience: seconds to wait for another courier of this machine.

        Raises:
            IntegrityError: the journal is broken; nothing is told.
            UnavailableError: the registry cannot be read or written, or another courier is at it.
        """
        if not wants_model(sink, model):
            return Delivery(Standing(sink.name, model, Cursor()))
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._alone(sink, patience):
            total = Delivery(Standing(sink.name, model, Cursor()))
            while True:
                now = self._round(sink, sender, model, deadline, eager=eager)
                total = Delivery(now.standing, total.delivered + now.delivered, total.parked + now.parked)
                # What moved meanwhile counts on the one who holds the lock.
                if now.standing.pending or not (now.delivered or now.parked):
                    return total

    def send_again(
        self, sink: SinkSettings, sender: Sender, model: str, numbers: Sequence[int]
    ) -> dict[int, Answer | None]:
        """Tell events once more, parked or not; None for a number that is no event that counts.

        Raises:
            IntegrityError: the journal is broken.
            UnavailableError: the registry cannot be read or written, or another courier is at it.
        """
        with self._alone(sink, 10.0):
            standing, events = self._look(sink, model)
            cursor, waiting = standing.cursor, standing.pending
            known = {event.number: event for event in events}
            answers: dict[int, Answer | None] = dict.fromkeys(sorted(set(numbers)))
            for number in answers:
                if number not in known:
                    continue
                answer = self._tell(sink, sender, known[number], sink.timeout)
                answers[number] = answer
                if not answer.delivered:
                    continue
                if number in cursor.parked:
                    cursor = self._keep(sink, model, cursor.unparked(number))
                elif waiting and number == waiting[0].number:
                    # What was due next was told, so that it is told no second time.
                    waiting = waiting[1:]
                    cursor = self._keep(sink, model, cursor.passed(number))
            return answers

    # Within

    def _round(
        self, sink: SinkSettings, sender: Sender, model: str, deadline: float | None, *, eager: bool
    ) -> Delivery:
        standing, events = self._look(sink, model)
        cursor, waiting = standing.cursor, standing.pending
        if standing.new and events:
            # Whoever dies in the first attempt must not find the sink new again.
            cursor = self._keep(sink, model, cursor)
        delivered: list[int] = []
        parked: list[int] = []
        while waiting:
            event, now = waiting[0], self._clock()
            left = sink.timeout if deadline is None else min(sink.timeout, deadline - time.monotonic())
            if left < _LEAST_SECONDS or not (eager or cursor.due(now)):
                break
            answer = self._tell(sink, sender, event, left)
            cursor = cursor.after(
                event.number,
                answer,
                now=self._clock(),
                max_attempts=sink.max_attempts,
                jitter=self._jitter(),
            )
            cursor = self._keep(sink, model, cursor)
            if cursor.settled < event.number:
                break
            (delivered if answer.delivered else parked).append(event.number)
            waiting = waiting[1:]
        if not waiting and events and cursor.settled < events[-1].number:
            cursor = self._keep(sink, model, cursor.passed(events[-1].number))
        return Delivery(Standing(sink.name, model, cursor, waiting), tuple(delivered), tuple(parked))

    def _look(self, sink: SinkSettings, model: str) -> tuple[Standing, tuple[Event, ...]]:
        # The cursor first: read after the journal, it could be ahead of it and seem forged.
        text = self._backend.reader.model_tags(JOURNAL_PREFIX + model).get(CURSOR_PREFIX + sink.name)
        events = self._ledger.journal(model).valid
        stored = decode_cursor(text, events[-1].number if events else 0) if text is not None else None
        cursor = stored or first_cursor(events, sink.start, self._clock())
        waiting = pending(sink, cursor, events)
        return Standing(sink.name, model, cursor, waiting, new=stored is None), events

    def _tell(self, sink: SinkSettings, sender: Sender, event: Event, seconds: float) -> Answer:
        message = self._message(event)
        return sender.send(message, timeout=min(sink.timeout, seconds), now=self._clock())

    def _message(self, event: Event) -> Message:
        numbers = [number for number in (event.from_version, event.to_version) if number]
        found = (version_of(row, {}) for row in self._backend.reader.rows(event.model, numbers=numbers))
        return message_of(event, {version.number: version.label for version in found if version})

    def _keep(self, sink: SinkSettings, model: str, cursor: Cursor) -> Cursor:
        journal, tag = JOURNAL_PREFIX + model, CURSOR_PREFIX + sink.name
        reader = self._backend.reader
        text = reader.model_tags(journal).get(tag)
        # Another machine may have gone on meanwhile.
        stored = decode_cursor(text, reader.rows(journal, limit=1)[0].number) if text else None
        kept = merged(cursor, stored) if stored else cursor
        if kept.encode() != text:
            self._backend.writer.set_model_tags(journal, {tag: kept.encode()})
        return kept

    def _alone(self, sink: SinkSettings, patience: float) -> AbstractContextManager[None]:
        database = self._backend.database
        if database:
            lock = database.with_name(f".{database.name}.outbox.{sink.name}.lock")
        else:
            registry = hashlib.sha256(self._backend.shown.encode()).hexdigest()[:16]
            lock = self._locks / f"{registry}.{sink.name}.lock"
        return file_lock(lock, timeout=patience, purpose=f"delivering to {sink.name}")
