"""Rollouts in the journal: one at a time, one winner, and what everybody else makes of one that goes on."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from projects import Project

from mlx_platform.core.errors import ConflictError, NotFoundError, UsageError
from mlx_platform.registry import removal
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.journal import Event, Journal, fold, next_event
from mlx_platform.registry.removal import DELETING
from mlx_platform.registry.rollout import (
    CANARY,
    active_rollout,
    counted,
    rollout_events,
    superseded,
    transition_of,
)


def document(rollout: str = "r1", state: str = "SHADOW", **more: Any) -> dict[str, Any]:
    return {"id": rollout, "channel": "production", "stable": 1, "candidate": 2, "state": state, **more}


def write(
    catalog: Catalog,
    to: int | None = 2,
    after: int | None = None,
    rollout: str = "r1",
    state: str = "SHADOW",
    **more: Any,
) -> Event:
    return catalog.transition(
        "digits",
        document(rollout, state, **more),
        candidate=None if to is None else catalog.resolve(f"digits/{to}"),
        after=after,
        actor="server-1",
        reason="a test",
    )


def promote(catalog: Catalog, number: int, alias: str = "production", **more: Any) -> Event | None:
    return catalog.move("digits", alias, number, kind="promote", actor="ada", **more)


@pytest.fixture
def live(project: Project) -> Catalog:
    """Version 1 is in production, by event 1."""
    promote(project.catalog, 1)
    return project.catalog


def test_a_rollout_is_a_sequence_of_events_of_the_alias_canary(live: Catalog, project: Project) -> None:
    first = write(live, after=1)
    second = write(live, after=first.number, state="STEP", step=1, weight=5)
    assert live.holders("digits") == {"canary": 2, "production": 1}
    assert live.resolve("digits@canary").number == 2
    last = write(live, None, after=second.number, state="ABORTED")

    ((*found,),) = project.anew().rollouts("digits")

    assert [(event.number, event.kind, event.alias) for event in found] == [
        (number, "rollout", "canary") for number in (2, 3, 4)
    ]
    assert [event.to_version for event in found] == [2, 2, None]
    assert found[1].evidence["rollout"] == document(state="STEP", step=1, weight=5)
    assert (found[0].digest, last.digest) == (live.resolve("digits/2").digest, "")
    assert project.anew().holders("digits") == {"production": 1}
    assert project.anew().differences("digits") == ()
    assert project.anew().journal("digits").lag == 0


def test_the_second_of_two_that_saw_the_same_is_refused_and_told_who_was_faster(live: Catalog) -> None:
    write(live, after=1)
    write(live, after=2, state="STEP", step=1, weight=5)

    with pytest.raises(
        ConflictError, match=r"server-1 was faster. The rollout r1 of digits is at: step 2 \(5 %\)"
    ):
        write(live, None, after=2, state="ABORTED")

    assert live.sight("digits").head == 3


def test_a_move_of_the_channel_is_in_the_way_and_a_move_of_another_alias_is_not(live: Catalog) -> None:
    write(live, after=1)
    promote(live, 3, "staging")
    write(live, after=2, state="STEP")
    promote(live, 3)

    with pytest.raises(ConflictError, match="ada moved digits@production to 3 meanwhile"):
        write(live, after=4, state="STEP", step=2)

    assert write(live, None, after=5, state="SUPERSEDED").valid


def test_a_production_move_that_was_decided_before_an_abort_does_not_count(live: Catalog) -> None:
    write(live, after=1)
    seen = live.sight("digits").head
    write(live, None, after=seen, state="ABORTED")

    with pytest.raises(ConflictError, match="The rollout r1 of digits is at: aborted"):
        promote(live, 2, expect=1, after=seen)

    assert live.holders("digits") == {"production": 1}


def test_one_rollout_goes_on_at_a_time_and_one_that_has_ended_stays_so(live: Catalog) -> None:
    write(live, after=1)

    with pytest.raises(
        ConflictError, match=r"Another rollout of digits goes on.*r1 tries digits/2"
    ) as caught:
        write(live, 3, rollout="r2")
    assert caught.value.details["rollout"]["id"] == "r1"
    with pytest.raises(ConflictError, match="tries digits/2, and no other version"):
        write(live, 3)
    write(live, None, state="ABORTED")
    for to in (2, None):
        with pytest.raises(ConflictError, match="The rollout r1 of digits has ended"):
            write(live, to)
    with pytest.raises(ConflictError, match="The rollout r9 of digits has ended"):
        write(live, None, rollout="r9")

    assert write(live, 3, rollout="r2").to_version == 3
    assert [len(events) for events in live.rollouts("digits")] == [2, 1]


@pytest.mark.parametrize("rollout", ["", "a b", "x" * 65, "../x", None])
def test_a_rollout_needs_an_id(live: Catalog, rollout: Any) -> None:
    with pytest.raises(UsageError, match="id has 1 to 64"):
        write(live, rollout=rollout)


def test_a_document_that_no_tag_holds_is_refused_before_it_is_written(live: Catalog) -> None:
    with pytest.raises(UsageError, match="more than 100,000 characters"):
        write(live, verdicts=["x" * 1000] * 100)

    assert live.sight("digits").journal_end == 1


def test_the_alias_that_a_rollout_has_taken_does_not_move_otherwise(live: Catalog) -> None:
    promote(live, 3, "canary")
    assert write(live, after=2).from_version == 3

    for kind in ("promote", "rollback", "adopt"):
        with pytest.raises(ConflictError, match="digits@canary belongs to a rollout"):
            live.move("digits", "canary", 1, kind=kind, actor="ada")  # type: ignore[arg-type]
    write(live, None, state="ABORTED")

    assert promote(live, 1, "canary")


def test_mlflow_s_alias_follows_and_a_writer_that_died_before_is_caught_up_with(
    live: Catalog, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live._backend.writer, "set_alias", die)
    with pytest.raises(KeyboardInterrupt):
        write(live, after=1)

    catalog = project.anew()
    assert catalog.sight("digits").holders == {"canary": 2, "production": 1}
    assert [one.alias for one in catalog.outside("digits")] == ["canary"]
    write(catalog, after=2, state="STEP")
    assert project.anew().outside("digits") == ()


def test_nothing_can_be_rolled_back_to_what_was_only_tried(live: Catalog) -> None:
    write(live, 2)
    write(live, 2, state="STEP")
    write(live, None, state="ABORTED")
    write(live, 3, rollout="r2")
    journal = live.journal("digits")

    assert journal.previous_holders("canary") == (2,)
    assert journal.rollback_targets("canary") == ()
    assert journal.rolled_back("canary") == {}
    assert live.removal.uses(live.resolve("digits/2")) == ()


def test_both_versions_of_a_rollout_are_in_use_until_it_ends(live: Catalog) -> None:
    write(live)
    promote(live, 3, evidence={"rollout": "r1"})
    promote(live, 2)
    promote(live, 3)  # 1 is no target of the next two rollbacks any more
    live.quarantine(live.resolve("digits/1"), "")

    for number, use in ((2, "digits@canary is this version"), (1, "goes back to it if digits/2 fails")):
        with pytest.raises(ConflictError, match=use) as caught:
            live.removal.delete(live.resolve(f"digits/{number}"), actor="ada", reason="")
        with pytest.raises(ConflictError, match="cannot be archived"):
            live.removal.archive(live.resolve(f"digits/{number}"), actor="ada", reason="")
        assert caught.value.hint == "Wait for the rollout, or end it: mlx rollout abort digits"
    write(live, None, state="SUPERSEDED")

    live.removal.archive(live.resolve("digits/2"), actor="ada", reason="")
    live.removal.delete(live.resolve("digits/1"), actor="ada", reason="")


@pytest.mark.parametrize("tag", [DELETING, "mlx.archived"])
def test_a_version_that_goes_is_not_tried(live: Catalog, tag: str) -> None:
    live.set_tags(live.resolve("digits/2"), {tag: "true"})

    with pytest.raises(ConflictError, match=r"is (archived|being deleted)"):
        write(live)

    assert live.rollouts("digits") == ()


def test_a_candidate_that_is_archived_at_the_same_moment_is_not_tried(
    live: Catalog, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "_WAIT_SECONDS", 0.0)
    ledger, real = live._ledger, live._ledger.transition

    def archive_first(*arguments: Any, **named: Any) -> Event:
        monkeypatch.setattr(ledger, "transition", real)
        other = project.anew()
        other.set_tags(other.resolve("digits/2"), {"mlx.archived": "true"})
        return real(*arguments, **named)

    monkeypatch.setattr(ledger, "transition", archive_first)
    with pytest.raises(ConflictError, match="digits/2 was archived while a rollout of it started"):
        write(live, state="SHADOW")

    ((first, last),) = live.rollouts("digits")
    assert (first.to_version, last.to_version) == (2, None)
    assert (last.evidence["rollout"]["state"], last.evidence["rollout"]["cause"]) == ("ABORTED", "archived")
    assert live.holders("digits") == {"production": 1}


def test_a_candidate_that_is_not_there_is_not_found(live: Catalog) -> None:
    version = live.resolve("digits/2")
    live.removal.delete(version, actor="ada", reason="")

    with pytest.raises(NotFoundError, match="digits/2 was deleted"):
        live.transition("digits", document(), candidate=version, after=None, actor="ada")


def test_of_threads_that_saw_the_same_state_one_wins_each_round(live: Catalog, project: Project) -> None:
    write(live, after=1)
    for step in range(1, 4):
        seen = live.sight("digits").head
        won: list[int] = []
        start = threading.Barrier(4)

        def run(
            racer: int, seen: int = seen, step: int = step, won: list[int] = won, start: Any = start
        ) -> None:
            catalog = project.anew()
            version = catalog.resolve("digits/2")
            start.wait()
            try:
                content = document(state="STEP", step=step, racer=racer)
                catalog.transition("digits", content, candidate=version, after=seen, actor=f"racer-{racer}")
            except ConflictError:
                return
            won.append(racer)

        threads = [threading.Thread(target=run, args=(racer,)) for racer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1
        ((*_, last),) = live.rollouts("digits")
        assert last.evidence["rollout"]["racer"] == won[0]


# A sight


def test_a_sight_reads_the_journal_only_where_it_has_grown(
    live: Catalog, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    reader: Any = live._backend.reader
    rows = reader.rows

    def counting(name: str, **named: Any) -> Any:
        read.append(name)
        return rows(name, **named)

    monkeypatch.setattr(reader, "rows", counting)
    first = live.sight("digits")
    assert (first.head, first.journal_end, first.holders) == (1, 1, {"production": 1})
    assert live.sight("digits") == first
    assert read == ["mlx.journal.digits"]

    promote(project.anew(), 2)
    live.set_model_tags("digits", {"mlx.rollout.lease": "me"})
    found = live.sight("digits")

    assert (found.head, found.holders, found.tags["mlx.rollout.lease"]) == (2, {"production": 2}, "me")
    assert read == ["mlx.journal.digits"] * 2


def test_a_sight_tells_the_head_apart_from_rows_that_lost(live: Catalog) -> None:
    event = live.history("digits")[0]
    late = next_event(
        Journal(), model="digits", alias="production", from_version=None, to=2, digest="", kind="promote",
        actor="bob", reason="", evidence={}, time=event.time, id="late",
    )  # fmt: skip
    live._backend.writer.create_version(
        "mlx.journal.digits", "models:/digits/2", tags={"mlx.event": late.encode()}
    )

    sight = live.sight("digits")

    assert (sight.head, sight.journal_end) == (1, 2)


def test_a_model_that_is_not_there_has_nothing_to_see(project: Project) -> None:
    sight = project.catalog.sight("nothing")

    assert (sight.holders, sight.tags, sight.head, sight.journal_end) == ({}, {}, 0, 0)


def test_tags_of_a_model_come_and_go(live: Catalog) -> None:
    live.set_model_tags("digits", {"mlx.rollout.a": "1", "mlx.rollout.b": "2"})
    live.set_model_tags("digits", {"mlx.rollout.a": "3"})
    live.delete_model_tags("digits", ["mlx.rollout.b", "mlx.rollout.never"])

    tags = live.sight("digits").tags
    assert {key: value for key, value in tags.items() if "rollout" in key} == {"mlx.rollout.a": "3"}
    with pytest.raises(UsageError, match="more than 5,000 characters"):
        live.set_model_tags("digits", {"mlx.rollout.a": "x" * 5001})
    with pytest.raises(NotFoundError):
        live.delete_model_tags("nothing", ["a"])


def test_a_quarantine_has_a_reason(live: Catalog) -> None:
    live.quarantine(live.resolve("digits/2"), " 4 % errors ")
    live.quarantine(live.resolve("digits/3"), "")

    assert live.resolve("digits/2").quarantined == "4 % errors"
    assert live.resolve("digits/3").quarantined == "no reason given"


# What is read of a document


def event_of(number: int, content: Any, to: int | None = 2, kind: str = "rollout") -> Event:
    return Event(
        number=number, id=str(number), model="digits", alias=CANARY, from_version=None, to_version=to,
        digest="", after=0, kind=kind, actor="ada", reason="", evidence={"rollout": content},  # type: ignore[arg-type]
        time=datetime(2026, 3, 8, tzinfo=UTC), prev_hash="", hash="x", valid=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "phrase"),
    [
        ({"state": "SHADOW", "shadow": 100}, "a step (100 % copied)"),
        ({"state": "STEP", "step": 2, "weight": 5.0}, "step 3 (5 %)"),
        ({"state": "STEP", "step": 0, "weight": 0.5}, "step 1 (0.5 %)"),
        ({"state": "PAUSED", "step": 2, "weight": 5, "cause": "no_data"}, "paused in step 3 (5 %): no data"),
        ({"state": "BAKING", "step": 5, "weight": 100}, "baking"),
        ({"state": "ROLLED_BACK", "cause": "metric_failed"}, "rolled back: metric failed"),
        ({"state": ""}, "in a state that cannot be read"),
        ({"state": 5, "step": True, "weight": "x", "shadow": -1}, "in a state that cannot be read"),
        ({"state": "A\x1b[2J\n", "cause": "\u202eb"}, None),
    ],
)
def test_a_state_is_told_in_a_few_printable_words(more: dict[str, Any], phrase: str | None) -> None:
    found = transition_of(event_of(2, {"id": "r1", **more}))

    assert found
    assert found.phrase.isprintable()
    if phrase is not None:
        assert found.phrase == phrase


@pytest.mark.parametrize("content", [None, "r1", 5, [], {}, {"id": 5, "stable": 10**30, "channel": None}])
def test_whatever_a_document_is_a_transition_can_be_read(content: Any) -> None:
    found = transition_of(event_of(2, content))

    assert found
    assert (found.id, found.channel, found.stable, found.candidate) == (
        "without an id", "production", None, 2,
    )  # fmt: skip
    assert found.document()["state"] == ""


def test_a_move_is_no_transition_and_both_are_counted() -> None:
    move, one, two = event_of(1, "r1", kind="promote"), event_of(2, {"id": "a"}), event_of(3, {"id": "b"})

    assert transition_of(move) is None
    assert counted([move]) == "1 move"
    assert counted([move, one, two, two]) == "1 move and 3 transitions of 2 rollouts"
    assert rollout_events([move, one, two, one]) == ((one, one), (two,))


def test_only_a_move_of_its_channel_supersedes_a_rollout(live: Catalog) -> None:
    write(live, state="STEP", step=1, weight=5)
    journal = live.journal("digits")

    (warning,) = superseded("digits", journal, "production")

    assert warning.startswith("The rollout r1 tries digits/2 for production: step 2 (5 %).")
    assert superseded("digits", journal, "staging") == ()
    assert active_rollout(fold("digits", [])) is None
