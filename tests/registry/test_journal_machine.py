"""The ledger against a simple model of it: rival writers, lost answers, wrong clocks, and outsiders.

The registry is in memory and keeps what MLflow keeps. At each of its writes another writer may make a whole
move, the write or its answer may get lost, or the process may die.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlx_platform.core.errors import ConflictError, IntegrityError, UnavailableError
from mlx_platform.registry.anchor import ANCHOR_TAG
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.difference import compare
from mlx_platform.registry.journal import Event, Kind, decode_event, fold, read_journal
from mlx_platform.registry.ledger import ANYTHING, EVENT_TAG, Ledger
from mlx_platform.registry.ref import JOURNAL_PREFIX
from mlx_platform.registry.rollout import CANARY, active_rollout
from mlx_platform.registry.row import Row
from mlx_platform.registry.version import DIGEST, Version, version_of

MODEL = "digits"
ALIASES = ("production", "staging")
VERSIONS = (1, 2, 3, 4)
START = datetime(2026, 3, 8, 7, tzinfo=UTC)


class DiedError(Exception):
    """The process is gone."""


@dataclass
class Registry:
    """What MLflow keeps of one model and its journal; reader and writer in one."""

    rows_of: dict[str, dict[int, Row]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    before_write: Callable[[str], None] | None = None
    after_write: Callable[[str], None] | None = None

    @property
    def reader(self) -> "Registry":
        return self

    @property
    def writer(self) -> "Registry":
        return self

    def rows(self, name: str, *, limit: int | None = None) -> tuple[Row, ...]:
        found = sorted(self.rows_of.get(name, {}).values(), key=lambda row: -row.number)
        return tuple(found[:limit])

    def aliases(self, name: str) -> dict[str, int]:
        assert name == MODEL
        return dict(self.held)

    def model_tags(self, name: str) -> dict[str, str]:
        assert name == MODEL
        return dict(self.tags)

    def ensure_model(self, name: str, **_described: Any) -> None:
        self._write("model", lambda: self.rows_of.setdefault(name, {}))

    def create_version(self, name: str, source: str, *, tags: dict[str, str], description: str) -> int:
        def append() -> None:
            rows = self.rows_of[name]
            number = max(rows, default=0) + 1
            rows[number] = Row(name, number, 0, source, "", description, dict(tags))

        self._write("event", append)
        return max(self.rows_of[name])

    def set_alias(self, name: str, alias: str, number: int | None) -> None:
        assert name == MODEL

        def point() -> None:
            self.held.pop(alias, None)
            if number is not None:
                self.held[alias] = number

        self._write("alias", point)

    def set_model_tags(self, name: str, tags: dict[str, str]) -> None:
        assert name == MODEL
        self._write("anchor", lambda: self.tags.update(tags))

    def _write(self, what: str, act: Callable[[], object]) -> None:
        for hook, then in ((self.before_write, act), (self.after_write, lambda: None)):
            if hook:
                hook(what)
            then()

    @property
    def journal(self) -> dict[int, str]:
        return {row.number: row.tags[EVENT_TAG] for row in self.rows(JOURNAL_PREFIX + MODEL)}


def version(number: int) -> Version:
    found = version_of(Row(MODEL, number, 0, "", "", "", {DIGEST: f"{number:064x}"}), {})
    assert found is not None
    return found


@dataclass(frozen=True)
class Trouble:
    """What happens at one of the writes of a move: nothing, a rival's move, a failure, or death."""

    at: str = ""
    what: str = ""
    alias: str = ""
    to: int = 0


calm = st.just(Trouble())
trouble = st.builds(
    Trouble,
    at=st.sampled_from(["event", "alias", "anchor"]),
    what=st.sampled_from(["rival", "rival", "refused", "answer lost", "dies before", "dies after"]),
    alias=st.sampled_from(ALIASES),
    to=st.sampled_from(VERSIONS),
)


class JournalMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.registry = Registry(rows_of={MODEL: {number: _row(number) for number in VERSIONS}})
        self.now = START
        self.ledger = Ledger(cast("Backend", self.registry), lambda: self.now)
        self.holders: dict[str, int | None] = {}  # by the journal; an alias it never saw is not there
        self.moves: list[tuple[str, int | None, int | None]] = []
        self.unsettled: set[str] = (
            set()
        )  # aliases that MLflow may have wrong: a writer died, or an outsider came
        self.anchored = True

    # The model

    def holder(self, alias: str) -> int | None:
        return self.holders.get(alias, self.registry.held.get(alias))

    def note(self, event: Event, held: dict[str, int]) -> None:
        """Take a move into the model, with what MLflow said before it."""
        first = None if event.kind == "adopt" else held.get(event.alias)
        self.moves.append((event.alias, self.holders.get(event.alias, first), event.to_version))
        self.holders[event.alias] = event.to_version

    # What happens

    @rule(alias=st.sampled_from(ALIASES), to=st.sampled_from(VERSIONS), happens=calm | trouble)
    def promote(self, alias: str, to: int, happens: Trouble) -> None:
        self.move(alias, to, "promote", happens)

    @rule(alias=st.sampled_from(ALIASES), happens=calm | trouble)
    def roll_back(self, alias: str, happens: Trouble) -> None:
        targets = self.ledger.journal(MODEL).rollback_targets(alias)
        if targets and self.holder(alias) is not None:
            self.move(alias, targets[0], "rollback", happens)

    @rule(to=st.sampled_from(VERSIONS), ends=st.booleans(), happens=calm | trouble)
    def roll_out(self, to: int, ends: bool, happens: Trouble) -> None:
        """A rollout starts, goes on or ends, unless somebody moves production at the same time."""
        journal = self.ledger.journal(MODEL)
        active, after = active_rollout(journal), journal.head.number if journal.head else 0
        document = {"id": active.id if active else f"r{len(self.moves)}", "state": "STEP"}
        candidate = (active.candidate if not ends else None) if active else to

        def transit() -> Event:
            tried = None if candidate is None else version(candidate)
            return self.ledger.transition(
                MODEL, document, candidate=tried, after=after, actor="server", reason=""
            )

        self.during(transit, CANARY, candidate, {CANARY, "production"}, happens)
        if not active and self.holders.get(CANARY) is None:
            with pytest.raises(ConflictError, match="has ended"):
                self.ledger.transition(MODEL, document, candidate=None, after=None, actor="server", reason="")

    @rule(alias=st.sampled_from(ALIASES), to=st.sampled_from(VERSIONS), seen=st.sampled_from(VERSIONS))
    def promote_as_expected(self, alias: str, to: int, seen: int) -> None:
        if self.holder(alias) == seen:
            self.move(alias, to, "promote", Trouble(), expect=seen)
        else:
            with pytest.raises(ConflictError):
                self.act(alias, to, "promote", expect=seen)

    @rule(alias=st.sampled_from(ALIASES), to=st.none() | st.sampled_from(VERSIONS))
    def somebody_uses_mlflow(self, alias: str, to: int | None) -> None:
        self.registry.set_alias(MODEL, alias, to)
        if alias in self.holders:
            self.unsettled.add(alias)

    @rule(alias=st.sampled_from(ALIASES), happens=calm | trouble)
    def adopt(self, alias: str, happens: Trouble) -> None:
        found = {one.alias: one for one in compare(self.ledger.journal(MODEL), self.registry.held)}
        if alias in found:
            self.move(alias, found[alias].mlflow, "adopt", happens, expect=found[alias].journal)

    @rule(alias=st.sampled_from(ALIASES))
    def repair(self, alias: str) -> None:
        if alias in self.holders:
            self.ledger.settle(MODEL, alias)
            self.settled(alias)

    @rule(hours=st.integers(-100, 100) | st.sampled_from([-500_000, 600_000]))
    def clocks_disagree(self, hours: int) -> None:
        self.now = START + timedelta(hours=hours)

    def act(self, alias: str, to: int | None, kind: Kind, *, expect: Any = ANYTHING) -> Event | None:
        return self.ledger.move(
            MODEL,
            alias,
            None if to is None else version(to),
            expect=expect,
            kind=kind,
            actor="ada",
            reason="",
            evidence={},
        )

    def settled(self, alias: str) -> None:
        self.unsettled.discard(alias)
        self.anchored = True

    def move(
        self, alias: str, to: int | None, kind: Kind, happens: Trouble, *, expect: Any = ANYTHING
    ) -> None:
        """Make a move while something happens."""
        self.during(lambda: self.act(alias, to, kind, expect=expect), alias, to, {alias}, happens)

    def during(
        self,
        act: Callable[[], Event | None],
        alias: str,
        to: int | None,
        watched: set[str],
        happens: Trouble,
    ) -> None:
        """Write while something happens, and decide from the outcome what the model must be."""
        before, held = len(self.registry.journal), dict(self.registry.held)
        rivals: list[Event] = []
        self.registry.before_write, self.registry.after_write = self.hooks(happens, rivals)
        event, ended = None, ""
        try:
            event = act()
        except ConflictError:
            ended = "conflict"
        except UnavailableError:
            ended = "unavailable"
        except DiedError:
            ended = "died"
        self.registry.before_write = self.registry.after_write = None
        written = self.ledger.journal(MODEL)
        new = [one for one in written.valid if one.number > before]
        mine = [one for one in new if one.id not in {rival.id for rival in rivals}]
        for one in new:
            self.note(one, held)
        # At most one of my events counts, whatever happened, and the answer says which.
        assert len(mine) <= 1
        assert event is None or [one.id for one in mine] == [event.id]
        if ended == "conflict":
            assert mine == []
            assert any(rival.alias in watched for rival in rivals)
        if not ended:
            assert self.holders.get(alias, to) == to or any(one.alias == alias for one in rivals)
            self.settled(alias)
        elif ended != "conflict":
            assert happens.what in {"refused", "answer lost", "dies before", "dies after"}
            self.unsettled.add(alias)
            self.anchored = False
        if len(self.registry.journal) == before and ended != "died":
            assert new == []

    def hooks(
        self, happens: Trouble, rivals: list[Event]
    ) -> tuple[Callable[[str], None] | None, Callable[[str], None] | None]:
        pending = [happens]

        def before(what: str) -> None:
            if not pending or what != happens.at:
                return
            if happens.what == "rival":
                pending.clear()
                event = self.act(happens.alias, happens.to, "promote")
                rivals.extend([event] if event else [])
                if not event:
                    self.unsettled.discard(happens.alias)
            elif happens.what == "refused":
                pending.clear()
                raise UnavailableError("The registry is locked.")
            elif happens.what == "dies before":
                pending.clear()
                raise DiedError

        def after(what: str) -> None:
            if not pending or what != happens.at:
                return
            if happens.what == "answer lost":
                pending.clear()
                raise UnavailableError("The answer got lost.")
            if happens.what == "dies after":
                pending.clear()
                raise DiedError

        return (before, after) if happens.at else (None, None)

    # What must always be true

    @invariant()
    def the_journal_says_what_the_model_says(self) -> None:
        journal = self.ledger.journal(MODEL)

        assert [(one.alias, one.from_version, one.to_version) for one in journal.valid] == self.moves
        assert {alias: journal.holder(alias) for alias in journal.aliases()} == self.holders
        followed = [one.after for one in journal.valid]
        assert len(followed) == len(set(followed))

    @invariant()
    def mlflow_and_the_anchor_follow(self) -> None:
        for alias, holder in self.holders.items():
            if alias not in self.unsettled:
                assert self.registry.held.get(alias) == holder
        journal = self.ledger.journal(MODEL)
        assert journal.lag >= 0
        if self.anchored:
            assert journal.lag == 0

    @invariant()
    def the_order_of_arrival_does_not_matter(self) -> None:
        events = list(self.ledger.journal(MODEL).events)
        shuffled = list(events)
        random.Random(len(events)).shuffle(shuffled)  # noqa: S311 - an order, not a secret

        assert fold(MODEL, shuffled).events == tuple(events)

    @invariant()
    def what_was_live_is_a_state_that_was(self) -> None:
        journal = self.ledger.journal(MODEL)
        states: list[dict[str, int | None]] = [{}]
        for alias, _, to in self.moves:
            states.append({**states[-1], alias: to})
        position = 0
        for hours in (-600_000, -50, 0, 50, 100, 700_000):
            live = journal.in_force(START + timedelta(hours=hours), self.now)
            state = {alias: event.to_version for alias, (event, _) in live.items()}
            assert state in states[position:]
            position = states.index(state, position)
        live_now = journal.in_force(self.now, self.now)
        assert {alias: event.to_version for alias, (event, _) in live_now.items()} == self.holders

    @invariant()
    def a_rollback_goes_to_somebody_else_who_was_there(self) -> None:
        journal = self.ledger.journal(MODEL)
        for alias in self.holders:
            was = {one for moved, *pair in self.moves if moved == alias for one in pair}
            targets = journal.rollback_targets(alias)
            assert set(targets) <= was - {self.holders[alias], None}
            assert len(targets) == len(set(targets))

    @precondition(lambda self: self.anchored and self.registry.journal)
    @rule(data=st.data())
    def tampering_is_found(self, data: st.DataObject) -> None:
        rows, anchor = self.registry.journal, self.registry.tags[ANCHOR_TAG]
        assert read_journal(MODEL, rows.items(), anchor).problems == ()
        victim = data.draw(st.sampled_from(sorted(rows)))
        ways = [changed, removed, forged, renumbered, shortened, emptied]
        if len(rows) > 1:
            ways.append(swapped)
        way = data.draw(st.sampled_from(ways))

        assert read_journal(MODEL, way(rows, victim, data).items(), anchor).problems


def _row(number: int) -> Row:
    return Row(MODEL, number, 0, "", "", "", {DIGEST: f"{number:064x}"})


Rows = dict[int, str]


def changed(rows: Rows, victim: int, data: st.DataObject) -> Rows:
    text = rows[victim]
    place = data.draw(st.integers(0, len(text) - 1))
    return {**rows, victim: f"{text[:place]}{'x' if text[place] != 'x' else 'y'}{text[place + 1 :]}"}


def removed(rows: Rows, victim: int, _data: st.DataObject) -> Rows:
    return {number: text for number, text in rows.items() if number != victim}


def forged(rows: Rows, victim: int, _data: st.DataObject) -> Rows:
    event = decode_event(victim, rows[victim])
    assert event is not None
    return {**rows, victim: replace(event, actor="eve").encode()}  # with a hash that fits


def renumbered(rows: Rows, victim: int, data: st.DataObject) -> Rows:
    other = data.draw(st.integers(-2, max(rows) + 3).filter(lambda number: number not in rows))
    return {**removed(rows, victim, data), other: rows[victim]}


def shortened(rows: Rows, victim: int, _data: st.DataObject) -> Rows:
    return {number: text for number, text in rows.items() if number < victim}


def emptied(rows: Rows, victim: int, _data: st.DataObject) -> Rows:
    return {**rows, victim: ""}


def swapped(rows: Rows, victim: int, data: st.DataObject) -> Rows:
    other = data.draw(st.sampled_from([number for number in sorted(rows) if number != victim]))
    return {**rows, victim: rows[other], other: rows[victim]}


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_journal_that_was_deleted_whole_is_missed() -> None:
    machine = JournalMachine()
    machine.begin()
    machine.promote("production", 1, Trouble())

    del machine.registry.rows_of[JOURNAL_PREFIX + MODEL]

    with pytest.raises(IntegrityError, match="there is no journal"):
        machine.ledger.journal(MODEL)


def test_a_move_that_changes_nothing_anchors_what_a_dead_writer_left() -> None:
    machine = JournalMachine()
    machine.begin()
    machine.roll_out(to=1, ends=False, happens=Trouble(at="event", what="dies after"))
    assert machine.ledger.journal(MODEL).lag == 1
    machine.somebody_uses_mlflow(alias="production", to=2)
    machine.promote(alias="production", to=2, happens=Trouble())
    machine.mlflow_and_the_anchor_follow()
    assert machine.ledger.journal(MODEL).lag == 0
