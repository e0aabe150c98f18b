from dataclasses import replace
from datetime import UTC, datetime

from mlx_platform.registry.difference import Difference, compare
from mlx_platform.registry.journal import Journal, fold, next_event


def journal(alias: str, to: int | None) -> Journal:
    event = next_event(
        Journal(),
        model="digits",
        alias=alias,
        from_version=None,
        to=to,
        digest="",
        kind="promote",
        actor="ada",
        reason="",
        evidence={},
        time=datetime(2026, 3, 8, tzinfo=UTC),
        id="1",
    )
    return fold("digits", [replace(event, number=1)])


def test_aliases_that_are_as_the_journal_says_are_no_difference() -> None:
    assert compare(journal("production", 2), {"production": 2}) == ()
    assert compare(journal("production", None), {}) == ()


def test_an_alias_that_was_moved_or_taken_away_outside_is_one() -> None:
    (moved,) = compare(journal("production", 2), {"production": 1})
    (gone,) = compare(journal("production", 2), {})

    assert moved == Difference("production", 2, 1, seen=True)
    assert gone == Difference("production", 2, None, seen=True)
    assert "digits@production is nobody, the journal says 2" in gone.sentence("digits")
    assert "mlx doctor registry digits" in gone.sentence("digits")


def test_an_alias_that_the_journal_never_saw_is_one() -> None:
    (found,) = compare(journal("production", 2), {"production": 2, "canary": 3})

    assert found == Difference("canary", None, 3, seen=False)
    assert "--adopt digits@canary" in found.sentence("digits")


def test_words_that_only_mlflow_takes_for_an_alias_are_left_out() -> None:
    assert compare(Journal(), {"Production": 1, "12": 2, "\x1b[2J": 3}) == ()
