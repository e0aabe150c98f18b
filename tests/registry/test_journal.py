from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.registry.journal import (
    Event,
    Journal,
    Kind,
    check_actor,
    check_reason,
    decode_event,
    fold,
    next_event,
    read_journal,
)

START = datetime(2026, 3, 8, 6, 59, 58, 123456, tzinfo=UTC)


class Sequencer:
    """A registry in miniature: it numbers what writers append, each knowing only what it has read."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def read(self) -> Journal:
        return fold("digits", self.events)

    def write(
        self, seen: Journal, to: int | None, *, alias: str = "production", kind: Kind = "promote"
    ) -> bool:
        number = len(self.events) + 1
        event = next_event(
            seen,
            model="digits",
            alias=alias,
            from_version=seen.holder(alias),
            to=to,
            digest=f"{to:064x}" if to else "",
            kind=kind,
            actor="ada",
            reason="",
            evidence={},
            time=START + timedelta(hours=number),
            id=f"{number:032x}",
        )
        decoded = decode_event(number, event.encode())
        assert decoded is not None
        self.events.append(decoded)
        return self.read().events[-1].valid

    def move(self, *versions: int, kind: Kind = "promote", alias: str = "production") -> Journal:
        for version in versions:
            assert self.write(self.read(), version, kind=kind, alias=alias)
        return self.read()


def test_the_last_move_holds_the_alias() -> None:
    journal = Sequencer().move(1, 2, 3)

    assert journal.holder("production") == 3
    assert journal.holder("staging") is None
    assert journal.aliases() == ("production",)
    assert journal.problems == ()


def test_of_writers_who_saw_the_same_state_the_first_wins() -> None:
    registry = Sequencer()
    seen = registry.move(1)

    won = [registry.write(seen, to) for to in (2, 3, 4)]

    assert won == [True, False, False]
    assert registry.read().holder("production") == 2


def test_a_writer_loses_although_the_alias_came_back_to_what_it_saw() -> None:
    registry = Sequencer()
    stale = registry.move(1)
    registry.move(2, 1)

    assert registry.read().holder("production") == stale.holder("production")
    assert not registry.write(stale, 3)


def test_of_two_writers_to_the_current_holder_one_wins() -> None:
    registry = Sequencer()
    seen = registry.move(1)

    assert [registry.write(seen, 1), registry.write(seen, 1)] == [True, False]


def test_a_rollback_goes_one_back_and_a_second_one_goes_further() -> None:
    registry = Sequencer()
    registry.move(1, 2, 3)

    assert registry.read().rollback_targets("production") == (2, 1)
    assert registry.move(2, kind="rollback").rollback_targets("production") == (1,)
    assert registry.move(1, kind="rollback").rollback_targets("production") == ()


def test_a_rollback_never_returns_to_what_was_rolled_back_from_until_it_is_promoted_again() -> None:
    registry = Sequencer()
    registry.move(1, 2)
    registry.move(1, kind="rollback")

    assert registry.move(4).rollback_targets("production") == (1,)
    assert registry.move(2, 5).rollback_targets("production") == (2, 4, 1)


def test_a_rollback_to_a_named_version_drops_what_lies_above_it() -> None:
    registry = Sequencer()
    registry.move(1, 2, 3, 4)

    assert registry.move(2, kind="rollback").rollback_targets("production") == (1,)
    # 9 never held the alias: it takes the place of the version that was rolled back from.
    assert registry.move(9, kind="rollback").rollback_targets("production") == (1,)


def test_whoever_held_the_alias_before_the_journal_began_can_be_gone_back_to() -> None:
    event = next_event(
        Journal(),
        model="digits",
        alias="production",
        from_version=7,
        to=8,
        digest="",
        kind="promote",
        actor="ada",
        reason="",
        evidence={},
        time=START,
        id="1",
    )

    journal = fold("digits", [replace(event, number=1)])

    assert journal.rollback_targets("production") == (7,)
    assert journal.previous_holders("production") == (7,)


def test_previous_holders_are_told_in_the_order_of_time() -> None:
    registry = Sequencer()
    registry.move(1, 2, 3)

    assert registry.move(2, kind="rollback").previous_holders("production") == (3, 2, 1)


def test_aliases_of_one_model_share_the_sequence_but_not_the_state() -> None:
    registry = Sequencer()
    registry.move(1)
    registry.move(2, alias="staging")
    registry.move(3)

    assert registry.read().holder("staging") == 2
    assert registry.read().rollback_targets("production") == (1,)


def test_an_event_reads_back_as_it_was_written() -> None:
    event = Sequencer().move(1).events[0]

    assert decode_event(event.number, event.encode()) == replace(event, valid=False)
    assert event.time == START.replace(microsecond=123000) + timedelta(hours=1)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_event_that_was_changed_breaks_the_journal(number: int) -> None:
    registry = Sequencer()
    registry.move(1, 2, 3)
    text = registry.events[number].encode().replace('"actor":"ada"', '"actor":"eve"')
    changed = decode_event(number + 1, text)
    assert changed is not None

    registry.events[number] = changed

    assert f"event {number + 1} was changed after it was written" in registry.read().problems


@pytest.mark.parametrize("number", [0, 1])
def test_an_event_that_was_taken_away_breaks_the_journal(number: int) -> None:
    registry = Sequencer()
    registry.move(1, 2, 3)

    del registry.events[number]

    assert registry.read().problems


def test_an_event_that_was_written_anew_breaks_the_chain() -> None:
    registry = Sequencer()
    registry.move(1, 2)
    forged = next_event(
        Journal(),
        model="digits",
        alias="production",
        from_version=None,
        to=9,
        digest="",
        kind="promote",
        actor="eve",
        reason="",
        evidence={},
        time=START,
        id="f",
    )

    registry.events[0] = replace(forged, number=1)

    assert registry.read().problems == ("event 2 does not follow the event before it",)


def test_events_of_another_model_break_the_journal() -> None:
    events = Sequencer().move(1).events

    assert fold("letters", events).problems == ("event 1 belongs to another model",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "0 {}",
        "0 []",
        "0 " + "[" * 100_000,
        '0 {"after": NaN}',
        f"0 {'9' * 5000}",
    ],
)
def test_what_is_no_event_is_none(text: str) -> None:
    assert decode_event(1, text) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("after", '"1"'),
        ("after", "-1"),
        ("after", "true"),
        ("to_version", '"3"'),
        ("kind", '"delete"'),
        ("time", "5"),
    ],
)
def test_fields_of_the_wrong_type_are_no_event(field: str, value: str) -> None:
    text = Sequencer().move(1).events[0].encode()
    stated, _, body = text.partition(" ")
    start = body.index(f'"{field}":') + len(field) + 3
    end = min(index for mark in ",}" if (index := body.find(mark, start)) >= 0)

    assert decode_event(1, f"{stated} {body[:start]}{value}{body[end:]}") is None


Step = tuple[int, int, str]


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from(["production", "staging", "read"])),
        max_size=30,
    )
)
def test_whatever_writers_do_each_state_has_one_successor(steps: Sequence[Step]) -> None:
    registry = Sequencer()
    views = [registry.read() for _ in range(4)]
    for writer, version, what in steps:
        if what == "read":
            views[writer] = registry.read()
        else:
            registry.write(views[writer], version, alias=what)

    journal = registry.read()
    followed = [event.after for event in journal.valid]

    assert journal.problems == ()
    assert len(followed) == len(set(followed))
    for length in range(len(registry.events)):
        # What counted once counts for ever, whatever comes after it.
        assert fold("digits", registry.events[:length]).events == journal.events[:length]


@pytest.mark.parametrize("check", [check_reason, check_actor])
@pytest.mark.parametrize("text", ["x" * 100_000, "\ud800", "ada \udcff"])
def test_a_text_that_cannot_be_kept_is_refused(check: Callable[[str], None], text: str) -> None:
    with pytest.raises(UsageError):
        check(text)

    check("Žofie 字 🚀")


def test_a_rolled_back_version_is_remembered_until_it_holds_the_alias_again() -> None:
    registry = Sequencer()
    registry.move(1, 2, 3)
    journal = registry.move(2, 1, kind="rollback")

    found = journal.rolled_back("production")

    assert {version: event.number for version, event in found.items()} == {3: 4, 2: 5}
    assert journal.rolled_back("staging") == {}
    assert set(registry.move(3, 4).rolled_back("production")) == {2}
    assert set(registry.move(2).rolled_back("production")) == set()


def test_a_version_that_a_promotion_followed_was_not_rolled_back() -> None:
    registry = Sequencer()
    registry.move(1, 2)
    registry.move(1, kind="rollback")
    journal = registry.move(2, 3)

    assert journal.rolled_back("production") == {}


# What happened outside of mlx


@pytest.mark.parametrize(
    ("to", "targets", "after_a_promotion"),
    [
        (4, (3, 2, 1), (4, 3, 2, 1)),  # to another version: a promotion
        (2, (1,), (2, 1)),  # back to one before: a rollback, so 3 is no target any more
        (None, (2, 1), (2, 1)),  # taken away: 3 is none either
    ],
)
def test_what_was_done_outside_is_a_promotion_unless_it_went_back(
    to: int | None, targets: tuple[int, ...], after_a_promotion: tuple[int, ...]
) -> None:
    registry = Sequencer()
    registry.move(1, 2, 3)

    assert registry.write(registry.read(), to, kind="adopt")
    assert registry.read().rollback_targets("production") == targets
    assert registry.read().holder("production") == to
    assert registry.move(5).rollback_targets("production") == after_a_promotion


def test_an_alias_that_came_from_outside_can_be_gone_back_to() -> None:
    registry = Sequencer()
    assert registry.write(registry.read(), 7, kind="adopt")

    assert registry.read().rollback_targets("production") == ()
    assert registry.move(8).rollback_targets("production") == (7,)
    assert registry.read().previous_holders("production") == (7,)


# Rows


def rows(registry: Sequencer) -> dict[int, str]:
    return {event.number: event.encode() for event in registry.events}


@pytest.mark.parametrize(
    ("missing", "said"),
    [({1}, "event 1 is missing"), ({2}, "event 2 is missing"), ({2, 3}, "events 2 to 3 are missing")],
)
def test_a_number_that_is_not_there_is_a_deleted_row(missing: set[int], said: str) -> None:
    registry = Sequencer()
    seen = registry.move(1)
    registry.write(seen, 2)
    registry.write(seen, 3)  # lost, and nothing follows from it
    registry.write(registry.read(), 4)

    kept = {number: text for number, text in rows(registry).items() if number not in missing}

    assert said in read_journal("digits", kept.items()).problems


def test_a_lost_event_that_was_forged_does_not_follow_what_it_says() -> None:
    registry = Sequencer()
    seen = registry.move(1)
    registry.move(2)
    registry.write(seen, 3)
    forged = replace(registry.events[2], prev_hash="0" * 64)
    registry.events[2] = decode_event(3, forged.encode()) or forged

    assert registry.read().problems == ("event 3 does not follow the event before it",)


@pytest.mark.parametrize("number", [0, -1])
def test_a_row_where_no_event_can_stand_breaks_the_journal(number: int) -> None:
    registry = Sequencer()
    registry.move(1)

    journal = read_journal("digits", {**rows(registry), number: rows(registry)[1]}.items())

    assert f"event {number} stands where no event can" in journal.problems


def test_a_row_that_came_twice_counts_once() -> None:
    registry = Sequencer()
    registry.move(1, 2)
    twice = [*rows(registry).items(), *rows(registry).items()]

    assert read_journal("digits", twice).problems == ()
    assert len(read_journal("digits", twice).events) == 2


def test_a_row_of_a_number_beyond_all_measure_costs_nothing() -> None:
    registry = Sequencer()
    registry.move(1)

    journal = read_journal("digits", {**rows(registry), 10**15: "x"}.items())

    assert journal.problems[:2] == (
        f"events 2 to {10**15 - 1} are missing",
        f"event {10**15} cannot be read",
    )


def test_what_was_in_force_is_told_with_the_time_since_when() -> None:
    journal = Sequencer().move(1, 2)
    first, second = (event.time for event in journal.valid)

    assert journal.in_force(first, second) == {"production": (journal.valid[0], first)}
    assert journal.in_force(second, second) == {"production": (journal.valid[1], second)}
    assert journal.in_force(first - timedelta(seconds=1), second) == {}
