"""Moves through a real registry: what a writer leaves that dies at one of its writes, and outsiders."""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from projects import Project

from mlx_platform.core.errors import IntegrityError
from mlx_platform.registry.anchor import ANCHOR_TAG
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.journal import Event
from mlx_platform.registry.ref import JOURNAL_PREFIX


class DiedError(Exception):
    """The process is gone."""


def promote(catalog: Catalog, number: int, alias: str = "production") -> Event | None:
    return catalog.move("digits", alias, number, kind="promote", actor="ada")


def execute(project: Project, statement: str, *values: object) -> None:
    connection = sqlite3.connect(project.database)
    with connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def anchor(project: Project) -> str:
    return project.anew()._backend.reader.model_tags("digits").get(ANCHOR_TAG, "")


def test_each_move_is_anchored_on_the_model(project: Project) -> None:
    promote(project.catalog, 1)
    promote(project.catalog, 2)

    journal = project.anew().journal("digits")

    assert journal.lag == 0
    assert journal.end
    assert anchor(project) == journal.end.encode()
    assert anchor(project).startswith("2 ")


@pytest.mark.parametrize("write", ["create_version", "set_alias", "set_model_tags"])
@pytest.mark.parametrize("done", [False, True])
def test_whoever_dies_at_a_write_leaves_the_state_before_or_after_and_a_rerun_succeeds(
    project: Project, write: str, done: bool
) -> None:
    promote(project.catalog, 1)
    catalog = project.anew()
    writer: Any = catalog._backend.writer
    real: Callable[..., Any] = getattr(writer, write)

    def die(*arguments: Any, **named: Any) -> None:
        if done:
            real(*arguments, **named)
        raise DiedError

    setattr(writer, write, die)
    with pytest.raises(DiedError):
        promote(catalog, 2)

    appended = write != "create_version" or done
    assert project.anew().holders("digits") == {"production": 2 if appended else 1}
    promote(project.anew(), 2)
    assert project.anew().holders("digits") == {"production": 2}
    assert project.anew().journal("digits").lag == 0
    assert project.anew().differences("digits") == ()
    assert len(project.anew().history("digits")) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_a_deleted_row_is_missed_also_the_newest(project: Project, version: int) -> None:
    promote(project.catalog, 1)
    promote(project.catalog, 2)
    execute(project, "DELETE FROM model_version_tags WHERE name LIKE 'mlx.journal%' AND version = ?", version)
    execute(project, "DELETE FROM model_versions WHERE name LIKE 'mlx.journal%' AND version = ?", version)

    with pytest.raises(IntegrityError) as caught:
        project.anew().resolve("digits@production")

    assert "mlx doctor registry digits" in caught.value.hint


def test_a_deleted_journal_is_missed(project: Project) -> None:
    promote(project.catalog, 1)
    project.catalog._backend.store.delete_version(JOURNAL_PREFIX + "digits", 1)

    with pytest.raises(IntegrityError, match="there is no journal"):
        project.anew().resolve("digits@production")


def test_a_row_that_a_copy_of_another_took_the_place_of_is_missed(project: Project) -> None:
    promote(project.catalog, 1)
    promote(project.catalog, 2)
    execute(
        project,
        "UPDATE model_version_tags SET value = (SELECT value FROM model_version_tags WHERE key = 'mlx.event' "
        "AND version = 1) WHERE key = 'mlx.event' AND version = 2",
    )

    with pytest.raises(IntegrityError):
        project.anew().journal("digits")


def test_a_journal_without_an_anchor_gets_one_with_the_next_move(project: Project) -> None:
    promote(project.catalog, 1)
    execute(project, "DELETE FROM registered_model_tags WHERE key = ?", ANCHOR_TAG)
    assert project.anew().journal("digits").lag == 1

    promote(project.anew(), 1)

    assert project.anew().journal("digits").lag == 0


def test_the_order_of_moves_is_not_the_clocks(project: Project) -> None:
    noon = datetime(2026, 3, 8, 12, tzinfo=UTC)
    for number, moment in ((1, noon), (2, noon - timedelta(hours=2)), (3, noon + timedelta(hours=1))):
        promote(Catalog(project.settings, lambda moment=moment: moment), number)
    catalog = Catalog(project.settings, lambda: noon + timedelta(hours=5))

    assert [event.time for event in reversed(catalog.history("digits"))] == [
        noon,
        noon,
        noon + timedelta(hours=1),
    ]
    assert [event.to_version for event in catalog.history("digits", at=noon)] == [2]
    assert catalog.history("digits", at=noon - timedelta(hours=1)) == ()


def test_what_is_dated_ahead_is_live_now(project: Project) -> None:
    now = datetime(2026, 3, 8, 12, tzinfo=UTC)
    promote(Catalog(project.settings, lambda: now + timedelta(days=9)), 1)

    (event,) = Catalog(project.settings, lambda: now).history("digits", at=now)

    assert event.to_version == 1


def test_settling_never_touches_an_alias_that_the_journal_has_not_seen(project: Project) -> None:
    promote(project.catalog, 1)
    project.catalog._backend.writer.set_alias("digits", "canary", 3)

    project.anew().settle("digits", "canary")

    assert project.anew().holders("digits") == {"canary": 3, "production": 1}
