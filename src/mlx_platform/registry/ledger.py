"""The journals of a registry: reading them, and moving an alias through them.

The journal of a model is kept as the versions of a second registered model beside it. MLflow gives each the
next number, on every backend, and that is all the order that compare-and-set needs.
"""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from mlx_platform.core.clock import Clock
from mlx_platform.core.errors import ConflictError, IntegrityError, MlxError
from mlx_platform.core.text import printable
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.journal import Event, Journal, Kind, decode_event, fold, next_event
from mlx_platform.registry.ref import JOURNAL_PREFIX, is_alias
from mlx_platform.registry.version import Version

EVENT_TAG = "mlx.event"
_MODEL_TAG = "mlx.journal"
_ATTEMPTS = 20


class Anything:
    """The expectation of somebody who expects nothing."""


ANYTHING: Final = Anything()
Expected = int | None | Anything


class Ledger:
    """The journals of one registry."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    def journal(self, name: str) -> Journal:
        """A model's journal, empty when nothing ever moved.

        Raises:
            IntegrityError: an event was changed or taken away.
        """
        events: list[Event] = []
        problems: list[str] = []
        for row in self._backend.reader.rows(JOURNAL_PREFIX + name):
            # A row is written together with its event. Passing over one that has none would let whoever
            # takes the newest event's tag away put the version before it live.
            event = decode_event(row.number, row.tags.get(EVENT_TAG, ""))
            if event is None:
                problems.append(f"event {row.number} cannot be read")
            else:
                events.append(event)
        journal = fold(name, events)
        problems += journal.problems
        if problems:
            raise IntegrityError(
                f"The journal of {name} is broken: {printable(problems[0], 200)}.",
                hint=f"Somebody changed {JOURNAL_PREFIX}{name} in MLflow; restore it from a backup.",
                problems=[printable(problem, 200) for problem in problems[:20]],
            )
        return journal

    def holders(self, name: str, journal: Journal | None = None) -> dict[str, int]:
        """Who holds which alias: the journal's word, and MLflow's for aliases that it has never seen."""
        journal = journal or self.journal(name)
        found = {
            alias: number for alias, number in self._backend.reader.aliases(name).items() if is_alias(alias)
        }
        for alias in journal.aliases():
            number = journal.holder(alias)
            if number is None:
                found.pop(alias, None)
            else:
                found[alias] = number
        return dict(sorted(found.items()))

    def differences(self, name: str, alias: str | None = None) -> tuple[str, ...]:
        """Where MLflow's aliases, or one of them, are not what the journal says, one sentence each."""
        journal = self.journal(name)
        aliases = self._backend.reader.aliases(name)
        return tuple(
            f"MLflow says that {name}@{held} is {aliases.get(held, 'nobody')}, "
            f"the journal says {journal.holder(held) or 'nobody'}; the journal counts. "
            "Somebody changed one of them outside of mlx."
            for held in journal.aliases()
            if alias in {None, held} and aliases.get(held) != journal.holder(held)
        )

    def move(
        self,
        version: Version,
        alias: str,
        *,
        expect: Expected = ANYTHING,
        kind: Kind,
        actor: str,
        reason: str,
        evidence: Mapping[str, Any],
    ) -> Event | None:
        """Move an alias to a version by compare-and-set; None when the version holds it already.

        Raises:
            ConflictError: the alias is not where it was expected, or somebody else moved it meanwhile.
        """
        name = version.name
        seen: Event | None = None
        for attempt in range(_ATTEMPTS):
            journal = self.journal(name)
            last = journal.last(alias)
            holder = last.to_version if last else self._backend.reader.aliases(name).get(alias)
            here = holder == version.number
            if attempt and last != seen and not (here and isinstance(expect, Anything)):
                raise _moved(name, alias, last)
            if not isinstance(expect, Anything) and expect != holder:
                raise unexpected(name, alias, holder, expect)
            if here:
                if last:
                    self._project(name, alias)
                return None
            seen = last
            event = next_event(
                journal,
                model=name,
                alias=alias,
                from_version=holder,
                to=version.number,
                digest=version.digest,
                kind=kind,
                actor=actor,
                reason=reason,
                evidence=evidence,
                time=self._clock(),
                id=uuid.uuid4().hex,
            )
            written = self._append(event)
            if written.valid:
                self._project(name, alias)
                return written
        raise ConflictError(f"The aliases of {name} move too often right now.", hint="Try again in a moment.")

    def _append(self, event: Event) -> Event:
        name = JOURNAL_PREFIX + event.model
        writer = self._backend.writer
        writer.ensure_model(
            name,
            tags={_MODEL_TAG: event.model},
            description=f"The journal of {event.model}, written by mlx: every version is a move of an alias. "
            "It is not a model. Do not edit or delete it: aliases, history and rollback are read from it.",
        )
        failure: MlxError | None = None
        try:
            writer.create_version(
                name,
                f"models:/{event.model}/{event.to_version}",
                tags={EVENT_TAG: event.encode()},
                description=_sentence(event),
            )
        except MlxError as error:
            failure = error
        # The answer may have been lost on the way back although the event was written.
        written = next((found for found in self.journal(event.model).events if found.id == event.id), None)
        if written is None:
            raise failure or IntegrityError(
                f"The journal of {event.model} lost an event that was just written."
            )
        return written

    def _project(self, name: str, alias: str) -> None:
        """Make MLflow's alias follow the journal, also when the journal goes on meanwhile."""
        wanted = self.journal(name).holder(alias)
        for _ in range(_ATTEMPTS):
            if self._backend.reader.aliases(name).get(alias) != wanted:
                self._backend.writer.set_alias(name, alias, wanted)
            # A slow writer must not leave its older holder over a newer one.
            now = self.journal(name).holder(alias)
            if now == wanted:
                return
            wanted = now


def _sentence(event: Event) -> str:
    before = event.from_version or "nobody"
    text = f"{event.kind} {event.alias}: {before} → {event.to_version} by {event.actor}"
    return f"{text}: {event.reason}" if event.reason else text


def _moved(name: str, alias: str, last: Event | None) -> ConflictError:
    now = last.to_version if last else None
    who = printable(last.actor, 80) if last else "Somebody else"
    return ConflictError(
        f"{who} moved {name}@{alias} to {now or 'nobody'} at the same time.",
        hint=f"See: mlx history {name}",
        actual=now,
    )


def unexpected(name: str, alias: str, holder: int | None, expect: int | None) -> ConflictError:
    """The error of an alias that is not where its mover has seen it."""
    return ConflictError(
        f"{name}@{alias} is {holder or 'nobody'}, not {expect or 'nobody'} as expected.",
        hint=f"See: mlx history {name} --alias {alias}",
        expected=expect,
        actual=holder,
    )
