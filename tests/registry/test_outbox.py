import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import SinkSettings
from mlx_platform.registry.journal import Event, Journal, fold, next_event
from mlx_platform.registry.outbox import (
    PARKED_CAP,
    Answer,
    Cursor,
    check_sinks,
    decode_cursor,
    first_cursor,
    merged,
    message_of,
    pending,
    trial_message,
    waiting_time,
)

NOW = datetime(2026, 3, 8, 7, tzinfo=UTC)
FAILED = Answer(delivered=False, said="503 Busy")
DONE = Answer(delivered=True, said="204 No Content")


def move(to: int = 2, *, number: int = 1, journal: Journal | None = None, **values: object) -> Event:
    arguments = {
        "model": "digits",
        "alias": "production",
        "from_version": 1,
        "digest": "d" * 64,
        "kind": "promote",
        "actor": "tester",
        "reason": "better",
        "evidence": {"evaluation": {"verdict": "pass"}},
        "time": NOW,
        "id": "0123abcd",
    }
    event = next_event(journal or Journal(), to=to, **(arguments | values))  # type: ignore[arg-type]
    return replace(event, number=number)


def after(
    cursor: Cursor, number: int, answer: Answer, *, max_attempts: int = 3, jitter: float = 0.5
) -> Cursor:
    return cursor.after(number, answer, now=NOW, max_attempts=max_attempts, jitter=jitter)


def test_a_cursor_reads_back_as_it_was_written() -> None:
    cursor = Cursor(7, (3, 5), trying=8, attempts=2, next_try=NOW, error="503 Büsy")

    assert decode_cursor(cursor.encode(), head=8) == cursor
    assert decode_cursor(Cursor().encode(), head=0) == Cursor()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[" * 100_000,
        Cursor(9).encode(),
        Cursor(5, (6,)).encode(),
        Cursor(5).encode().replace("5", "-5"),
        Cursor(5).encode().replace("5", "true"),
        Cursor(5).encode().replace("null", '"soon"'),
        Cursor(5).encode().replace("v1", "v2"),
    ],
)
def test_what_no_cursor_of_this_journal_can_be_is_none(text: str) -> None:
    assert decode_cursor(text, head=8) is None


def test_the_fullest_cursor_fits_into_a_tag() -> None:
    numbers = tuple(range(10**9, 10**9 + PARKED_CAP))
    cursor = after(
        Cursor(numbers[-1], numbers, numbers[-1] + 1, 2), numbers[-1] + 1, replace(FAILED, said="é" * 200)
    )

    assert len(cursor.parked) == PARKED_CAP
    assert cursor.parked[-1] == numbers[-1] + 1
    assert len(cursor.encode()) < 5000


def test_a_new_sink_starts_before_the_move_during_which_it_is_first_seen() -> None:
    minutes = timedelta(minutes=1)
    events = [
        move(number=number, time=NOW - age * minutes) for number, age in ((1, 600), (2, 61), (3, 2), (5, 0))
    ]

    assert first_cursor(events, "now", NOW) == Cursor(2)
    assert first_cursor(events, "beginning", NOW) == Cursor(0)
    assert first_cursor(events[:2], "now", NOW) == Cursor(2)
    assert first_cursor((), "now", NOW) == Cursor()


def test_a_failure_waits_longer_each_time_and_is_parked_in_the_end() -> None:
    first = after(Cursor(4), 5, FAILED)
    second = after(first, 5, FAILED)
    third = after(second, 5, FAILED)

    assert (first.settled, first.attempts, first.trying, first.error) == (4, 1, 5, "503 Busy")
    assert first.next_try == NOW + timedelta(seconds=5)
    assert second.next_try == NOW + timedelta(seconds=20)
    assert (third.settled, third.parked, third.attempts, third.next_try) == (5, (5,), 0, None)
    assert third.error == "503 Busy"


def test_what_was_delivered_leaves_no_trace_of_its_failures() -> None:
    assert after(after(Cursor(4), 5, FAILED), 5, DONE) == Cursor(5)


def test_attempts_at_one_event_do_not_count_against_another() -> None:
    assert after(Cursor(4, trying=5, attempts=2), 6, FAILED).attempts == 1


def test_an_answer_that_wants_no_more_parks_at_once() -> None:
    assert after(Cursor(4), 5, replace(FAILED, final=True)).parked == (5,)


def test_the_time_a_receiver_asks_for_is_never_cut_short() -> None:
    assert [waiting_time(9, seconds, 0.0) for seconds in (0.0, 30.0, 10.0**9)] == [1.0, 30.0, 86400.0]
    assert waiting_time(9, 30.0, 0.99) > 30
    assert waiting_time(50, None, 0.5) == 6 * 3600
    assert waiting_time(1, None, 0.0) < 5 < waiting_time(1, None, 0.99)


def test_a_cursor_is_due_at_its_time() -> None:
    assert Cursor().due(NOW)
    assert Cursor(next_try=NOW).due(NOW)
    assert not Cursor(next_try=NOW + timedelta(seconds=1)).due(NOW)
    assert not Cursor(next_try=NOW + timedelta(hours=26)).due(NOW)


def test_a_time_that_a_wrong_clock_has_written_is_not_waited_for() -> None:
    assert Cursor(next_try=NOW + timedelta(days=400)).due(NOW)


cursors = st.builds(
    lambda settled, parked: Cursor(settled, tuple(sorted(number for number in parked if number <= settled))),
    st.integers(0, 9),
    st.sets(st.integers(1, 9)),
)


@given(cursors, cursors)
def test_merging_forgets_nothing_and_tells_nothing_that_was_told(ours: Cursor, stored: Cursor) -> None:
    both = merged(ours, stored)

    assert both.settled == max(ours.settled, stored.settled)
    for number in range(1, both.settled + 1):
        states = [number in one.parked for one in (ours, stored) if number <= one.settled]
        assert (number in both.parked) == all(states)


def test_a_sink_is_told_only_of_what_it_asked_for() -> None:
    events = [
        move(number=1, alias="staging"),
        move(number=2),
        move(number=3, kind="rollback"),
        move(number=4, model="fraud-eu"),
    ]

    def numbers(cursor: Cursor, **values: object) -> list[int]:
        return [event.number for event in pending(SinkSettings(name="x", **values), cursor, events)]  # type: ignore[arg-type]

    assert numbers(Cursor()) == [1, 2, 3, 4]
    assert numbers(Cursor(2)) == [3, 4]
    assert numbers(Cursor(), aliases=("prod*",)) == [2, 3, 4]
    assert numbers(Cursor(), kinds=("rollback",)) == [3]
    assert numbers(Cursor(), models=("fraud-*", "other")) == [4]


def test_sinks_without_names_of_their_own_are_refused() -> None:
    check_sinks([SinkSettings(name="a"), SinkSettings(name="b")])
    with pytest.raises(UsageError, match="has no name"):
        check_sinks([SinkSettings()])
    with pytest.raises(UsageError, match="'a' like another"):
        check_sinks([SinkSettings(name="a"), SinkSettings(name="a")])


def test_a_message_says_what_happened_and_on_what_it_stood() -> None:
    message = message_of(move(number=7), {1: "digits-20260301-001", 2: "digits-20260307-002"})
    document = json.loads(message.body)

    assert message.id == "0123abcd"
    assert (document["type"], document["timestamp"]) == ("mlx.promote", "2026-03-08T07:00:00Z")
    assert document["data"] == {
        "schema": "mlx.event/v1",
        "id": "0123abcd",
        "kind": "promote",
        "time": "2026-03-08T07:00:00Z",
        "number": 7,
        "model": "digits",
        "alias": "production",
        "from_version": 1,
        "to_version": 2,
        "from_label": "digits-20260301-001",
        "to_label": "digits-20260307-002",
        "digest": "d" * 64,
        "actor": "tester",
        "reason": "better",
        "evidence": {"evaluation": {"verdict": "pass"}},
    }


@pytest.mark.parametrize(
    "text",
    [
        "</script><script>alert(1)</script>",
        "a\r\nwebhook-id: 1",
        "\x1b[2J\0",
        "\ud800",
        "x" * 10**6,
        "\u202e",
    ],
)
def test_hostile_text_stays_within_its_json_string(text: str) -> None:
    body = message_of(move(reason=text, evidence={text: [text]}), {2: text}).body

    assert body.isascii()
    assert all(byte >= 0x20 for byte in body)
    assert len(body) < 100_000
    assert json.loads(body)["data"]["reason"][:10] == text.encode("utf-8", "replace").decode()[:10]


def test_evidence_that_no_json_parser_would_take_is_cut_down() -> None:
    deep: dict[str, object] = {}
    for _ in range(500):
        deep = {"a": deep}
    evidence = {"deep": deep, "inf": float("inf"), "huge": 10**400, "many": list(range(10**5)), "b": True}

    found = json.loads(message_of(replace(move(), evidence=evidence), {}).body)["data"]["evidence"]

    assert (found["inf"], found["huge"], found["b"], len(found["many"])) == (None, None, True, 100)


@pytest.mark.parametrize("identifier", ["a.b", "a\r\nb", "", "x" * 65, "é"])
def test_an_id_that_is_no_header_is_replaced_by_the_hash(identifier: str) -> None:
    event = fold("digits", [move(id=identifier)]).events[0]

    assert message_of(event, {}).id == event.hash


def test_a_trial_has_the_keys_of_a_move() -> None:
    trial, real = trial_message("id", "tester", NOW), message_of(move(), {})

    assert trial.document.keys() == real.document.keys()
    assert trial.document["data"].keys() == real.document["data"].keys()
    assert trial.document["data"]["kind"] == "test"


def test_a_rollout_is_told_to_whoever_watches_the_alias_that_it_is_for() -> None:
    content = {"id": "r1", "channel": "production", "state": "STEP", "verdicts": [{"metrics": [{"n": 300}]}]}
    event = move(alias="canary", kind="rollout", evidence={"rollout": content})

    def told(**asked: object) -> bool:
        return bool(pending(SinkSettings(name="a", **asked), Cursor(), [event]))  # type: ignore[arg-type]

    assert told()
    assert told(aliases=("production",))
    assert told(aliases=("canary",))
    assert not told(aliases=("staging",))
    assert not told(kinds=("promote", "rollback"))
    document = message_of(event, {}).document
    assert document["type"] == "mlx.rollout"
    assert document["data"]["evidence"]["rollout"] == content
