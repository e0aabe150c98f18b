"""The journals of a registry: reading them, and moving an alias through them.

The journal of a model is kept as the versions of a second registered model beside it. MLflow gives each the
next number, on every backend, and that is all the order that compare-and-set needs.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from mlx_platform.core.clock import Clock
from mlx_platform.core.errors import (
    ConflictError,
    IntegrityError,
    MlxError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from mlx_platform.core.text import printable
from mlx_platform.registry.anchor import ANCHOR_TAG
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.difference import Difference, compare
from mlx_platform.registry.journal import Event, Journal, Kind, next_event, read_journal
from mlx_platform.registry.ref import JOURNAL_PREFIX, is_alias
from mlx_platform.registry.refusals import LostError
from mlx_platform.registry.rollout import (
    CANARY,
    DOCUMENT,
    check_document,
    refuse_canary,
    refuse_out_of_turn,
    refuse_overtaken,
    transition_of,
)
from mlx_platform.registry.sight import Sight
from mlx_platform.registry.standing import Standing, rolled_back
from mlx_platform.registry.version import Version

EVENT_TAG = "mlx.event"
_MODEL_TAG = "mlx.journal"
_ATTEMPTS = 20
_EVENT_CAP = 100_000  # characters of a tag of a version, on every database


class Anything:
    """The expectation of somebody who expects nothing."""


ANYTHING: Final = Anything()
Expected = int | None | Anything


class Ledger:
    """The journals of one registry."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    def examine(self, name: str) -> Journal:
        """A model's journal, also one that is broken: `problems` says how."""
        reader = self._backend.reader
        anchor = reader.model_tags(name).get(ANCHOR_TAG, "")  # first; see `read_journal`
        rows = reader.rows(JOURNAL_PREFIX + name)
        return read_journal(name, ((row.number, row.tags.get(EVENT_TAG, "")) for row in rows), anchor)

    def journal(self, name: str) -> Journal:
        """A model's journal, empty when nothing ever moved.

        Raises:
            IntegrityError: an event was changed or taken away.
        """
        journal = self.examine(name)
        if journal.problems:
            raise IntegrityError(
                f"The journal of {name} is broken: {printable(journal.problems[0], 200)}.",
                hint=f"Somebody changed {JOURNAL_PREFIX}{name} or the tag {ANCHOR_TAG} in MLflow. "
                f"See: mlx doctor registry {name}",
                problems=[printable(problem, 200) for problem in journal.problems[:20]],
            )
        return journal

    def holders(self, name: str, journal: Journal | None = None) -> dict[str, int]:
        """Who holds which alias: the journal's word, and MLflow's for aliases that it has never seen."""
        return _holders(journal or self.journal(name), self._backend.reader.aliases(name))

    def sight(self, name: str, known: Journal | None = None) -> Sight:
        """Look at a model; its journal is read only where it has grown since it was last known.

        Raises:
            IntegrityError: the journal is broken.
        """
        glance = self._backend.reader.glance(name, JOURNAL_PREFIX + name)
        end = known.end.number if known and known.end else 0
        journal = known if known and end == glance.end else self.journal(name)
        return Sight(name, _holders(journal, glance.aliases), glance.tags, journal)

    def standing(self, name: str, journal: Journal | None = None) -> Standing:
        """How the versions of a model stand with its aliases.

        Raises:
            IntegrityError: the journal is broken, so nobody can tell.
        """
        journal = journal or self.journal(name)
        return Standing(self.holders(name, journal), rolled_back(journal))

    def standing_if_known(self, name: str) -> Standing:
        """The same, in doubt where the journal is broken: what needs no alias must stay usable."""
        try:
            return self.standing(name)
        except IntegrityError as error:
            return Standing(doubt=error.message)

    def differences(self, name: str, journal: Journal | None = None) -> tuple[Difference, ...]:
        """Where MLflow's aliases are not what the journal says; read anew unless it is at hand."""
        return compare(journal or self.journal(name), self._backend.reader.aliases(name))

    def move(
        self,
        name: str,
        alias: str,
        to: Version | None,
        *,
        expect: Expected = ANYTHING,
        kind: Kind,
        actor: str,
        reason: str,
        evidence: Mapping[str, Any],
        after: int | None = None,
    ) -> Event | None:
        """Move an alias to a version, or to nobody, by compare-and-set; None when it is there already.

        An `adopt` starts where the journal says the alias is, every other move at its holder. With `after`,
        an event that the caller has seen, the move counts only if no rollout went on since, either.

        Raises:
            ConflictError: the alias is not where it was expected, somebody else moved it meanwhile, or it is
                the one that a rollout has taken.
        """
        target = to.number if to else None
        seen: Event | None = None
        for attempt in range(_ATTEMPTS):
            journal = self.journal(name)
            last = journal.last(alias)
            holder = last.to_version if last else self._unseen(name, alias, kind)
            with self._anchored(name, alias, journal, attempt):
                refuse_canary(name, journal, alias)
                if after is not None:
                    refuse_overtaken(name, journal, alias, after)
            here = holder == target
            if attempt and last != seen and not (here and isinstance(expect, Anything)):
                # The winner may have died before MLflow's alias followed, and this row has no anchor yet.
                self._settle(name, alias, journal)
                raise _moved(name, alias, last)
            if not isinstance(expect, Anything) and expect != holder:
                raise unexpected(name, alias, holder, expect)
            if here:
                # Also where the alias is MLflow's alone: somebody may have died before a row was anchored.
                self._settle(name, alias if last else None, journal)
                return None
            seen = last
            event = next_event(
                journal,
                model=name,
                alias=alias,
                from_version=holder,
                to=target,
                digest=to.digest if to else "",
                kind=kind,
                actor=actor,
                reason=reason,
                evidence=evidence,
                time=self._clock(),
                id=uuid.uuid4().hex,
            )
            written, journal = self._append(event, first=not journal.events)
            if written.valid:
                try:
                    self._settle(name, alias, journal)
                except UnavailableError as error:
                    raise _perhaps(event, error) from error
                return written
        raise ConflictError(f"The aliases of {name} move too often right now.", hint="Try again in a moment.")

    def transition(
        self,
        name: str,
        document: Mapping[str, Any],
        *,
        candidate: Version | None,
        after: int | None,
        actor: str,
        reason: str,
    ) -> Event:
        """Write a transition of a rollout by compare-and-set; see `Catalog.transition`."""
        check_document(document)
        number = candidate.number if candidate else None
        for attempt in range(_ATTEMPTS):
            journal = self.journal(name)
            with self._anchored(name, CANARY, journal, attempt):
                refuse_out_of_turn(name, journal, document, number, after)
            last = journal.last(CANARY)
            event = next_event(
                journal,
                model=name,
                alias=CANARY,
                from_version=last.to_version if last else self._unseen(name, CANARY, "rollout"),
                to=number,
                digest=candidate.digest if candidate else "",
                kind="rollout",
                actor=actor,
                reason=reason,
                evidence={DOCUMENT: dict(document)},
                time=self._clock(),
                id=uuid.uuid4().hex,
            )
            if len(event.encode()) > _EVENT_CAP:
                raise UsageError(f"The document of a rollout has more than {_EVENT_CAP:,} characters.")
            written, journal = self._append(event, first=not journal.events)
            if written.valid:
                try:
                    self._settle(name, CANARY, journal)
                except UnavailableError as error:
                    raise _perhaps(event, error) from error
                return written
        raise ConflictError(f"The aliases of {name} move too often right now.", hint="Try again in a moment.")

    @contextmanager
    def _anchored(self, name: str, alias: str, journal: Journal, attempt: int) -> Iterator[None]:
        """Refuse a writer whose row came too late only once that row, which stays, is anchored."""
        try:
            yield
        except ConflictError:
            if attempt:
                self._settle(name, alias if alias in journal.aliases() else None, journal)
            raise

    def settle(self, name: str, alias: str | None) -> None:
        """Make the anchor, and one of MLflow's aliases, follow the journal; one it never saw stays as it is.

        Raises:
            NotFoundError: the version that holds the alias is not there any more.
        """
        journal = self.journal(name)
        self._settle(name, alias if alias in journal.aliases() else None, journal)

    def _unseen(self, name: str, alias: str, kind: Kind) -> int | None:
        return None if kind == "adopt" else self._backend.reader.aliases(name).get(alias)

    def _append(self, event: Event, *, first: bool) -> tuple[Event, Journal]:
        name = JOURNAL_PREFIX + event.model
        writer = self._backend.writer
        if first:
            writer.ensure_model(
                name,
                tags={_MODEL_TAG: event.model},
                description=f"The journal of {event.model}, written by mlx: every version is a move of an "
                "alias or a step of a rollout. It is not a model. Do not edit or delete it: aliases, "
                "history, rollbacks and rollouts are read from it.",
            )
        failure: MlxError | None = None
        try:
            writer.create_version(
                name,
                f"models:/{event.model}/{event.to_version or self._any(event)}",
                tags={EVENT_TAG: event.encode()},
                description=_sentence(event),
            )
        except MlxError as error:
            failure = error
        # The answer may have been lost on the way back although the event was written.
        try:
            journal = self.journal(event.model)
        except UnavailableError as error:
            raise _perhaps(event, failure or error) from error
        written = next((found for found in journal.events if found.id == event.id), None)
        if written is None and isinstance(failure, LostError):
            raise _perhaps(event, failure) from failure  # the registry may still be at it
        if written is None:
            raise failure or IntegrityError(
                f"The journal of {event.model} lost an event that was just written."
            )
        return written, journal

    def _any(self, event: Event) -> int:
        """A version that is there: MLflow wants to know where the bytes of every row are, also of these."""
        newest = self._backend.reader.rows(event.model, limit=1)
        if not newest:
            raise NotFoundError(f"{event.model} has no version left, so nothing can be written about it.")
        return newest[0].number

    def _settle(self, name: str, alias: str | None, journal: Journal) -> None:
        """Make MLflow's alias and the anchor follow the journal, also when it goes on meanwhile."""
        for _ in range(_ATTEMPTS):
            wanted = journal.holder(alias) if alias else None
            astray = alias and self._backend.reader.aliases(name).get(alias) != wanted
            if alias and astray:
                self._backend.writer.set_alias(name, alias, wanted)
            if journal.end and journal.lag:
                self._backend.writer.set_model_tags(name, {ANCHOR_TAG: journal.end.encode()})
            elif not astray:
                return
            # A slow writer must not leave its older holder, or its shorter anchor, over a newer one.
            journal = self.journal(name)
            if not journal.lag and (alias is None or journal.holder(alias) == wanted):
                return


def _holders(journal: Journal, aliases: Mapping[str, int]) -> dict[str, int]:
    """The journal's word, and MLflow's for aliases that the journal has never seen."""
    found = {alias: number for alias, number in aliases.items() if is_alias(alias)}
    for alias in journal.aliases():
        number = journal.holder(alias)
        if number is None:
            found.pop(alias, None)
        else:
            found[alias] = number
    return dict(sorted(found.items()))


def _sentence(event: Event) -> str:
    before = event.from_version or "nobody"
    text = f"{event.kind} {event.alias}: {before} → {event.to_version or 'nobody'}"
    if transition := transition_of(event):
        text = f"rollout {transition.id}, {event.alias} {event.to_version or 'nobody'}: {transition.phrase}"
    text += f" by {event.actor}"
    return f"{text}: {event.reason}" if event.reason else text


def _perhaps(event: Event, failure: MlxError) -> MlxError:
    """The error of a write that nobody knows the outcome of."""
    if not isinstance(failure, UnavailableError):
        return failure  # the registry itself has refused it
    done = f"{event.model}@{event.alias} may have been moved to {event.to_version or 'nobody'}"
    if transition := transition_of(event):
        done = f"This step of the rollout {transition.id} may have been written"
    return UnavailableError(
        f"{failure.message} {done} all the same.",
        hint=f"See, once the registry answers: mlx history {event.model}",
    )


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
