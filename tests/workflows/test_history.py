from datetime import UTC, datetime, timedelta

import pytest
from projects import Project, transit

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.report import Table
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.catalog import Catalog
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.history import history

START = datetime(2026, 3, 8, 7, tzinfo=UTC)


@pytest.fixture
def moved(project: Project) -> Project:
    """`digits@production` held 1 at seven, 2 at eight and 1 again at nine; `digits@staging` 3 at ten."""
    moves = [("production", 1, "promote"), ("production", 2, "promote"), ("production", 1, "rollback")]
    for hour, (alias, number, kind) in enumerate([*moves, ("staging", 3, "promote")]):
        moment = START + timedelta(hours=hour)
        catalog = Catalog(project.settings, lambda moment=moment: moment)
        catalog.move("digits", alias, number, kind=kind, actor="ada", reason=f"reason {hour}")
    project.__dict__["context"] = make_context(project.settings, clock=lambda: START + timedelta(hours=5))
    return project


def test_every_move_is_told_newest_first(moved: Project) -> None:
    result = history(moved.context, "digits")

    told = [(event["alias"], event["from_version"], event["to_version"]) for event in result.data["events"]]
    assert told == [
        ("staging", None, 3),
        ("production", 2, 1),
        ("production", 1, 2),
        ("production", None, 1),
    ]
    assert result.data["events"][1]["kind"] == "rollback"
    assert result.data["events"][1]["reason"] == "reason 2"
    assert result.data["events"][1]["time"] == "2026-03-08T09:00:00Z"


@pytest.mark.parametrize(("name", "alias"), [("digits", "staging"), ("digits@staging", None)])
def test_one_alias_alone_can_be_asked_for(moved: Project, name: str, alias: str | None) -> None:
    assert [event["to_version"] for event in history(moved.context, name, alias=alias).data["events"]] == [3]


@pytest.mark.parametrize(
    ("at", "live"),
    [
        (rfc3339(START - timedelta(seconds=1)), {"production": None, "staging": None}),
        (rfc3339(START), {"production": 1, "staging": None}),
        ("2026-03-08T09:30:00+01:00", {"production": 2, "staging": None}),
        ("1h", {"production": 1, "staging": 3}),
    ],
)
def test_what_was_live_at_a_moment_is_answered(moved: Project, at: str, live: dict[str, int | None]) -> None:
    assert history(moved.context, "digits", at=at).data["live"] == live


def test_what_was_live_is_one_line_with_version_and_label(moved: Project) -> None:
    result = history(moved.context, "digits", at=rfc3339(START + timedelta(hours=1)))

    label = moved.catalog.resolve("digits/2").label
    assert result.report.summary.endswith(f"production was digits/2 ({label}), staging was nobody.")
    assert result.data["holders"][0] == {
        "alias": "production",
        "version": 2,
        "label": label,
        "digest": moved.package(2).digest,
        "since": "2026-03-08T08:00:00Z",
    }


def test_a_version_that_is_gone_was_live_all_the_same(moved: Project) -> None:
    moved.catalog._backend.writer.delete_version("digits", 2)

    result = history(moved.context, "digits@production", at=rfc3339(START + timedelta(hours=1)))

    assert result.data["live"] == {"production": 2}
    assert "production was digits/2 (gone)" in result.report.summary


def test_the_journal_is_verified_and_counted(moved: Project) -> None:
    told, verified = history(moved.context, "digits"), history(moved.context, "digits", verify=True)

    sound = {"sound": True, "events": 4, "moves": 4, "anchor": 4, "lag": 0}
    assert told.data["journal"] == verified.data["journal"] == sound
    assert told.report.facts[0].value == "sound: 4 moves, anchor at event 4"
    assert told.verdict is None
    assert (verified.verdict, [check.name for check in verified.report.checks]) == (
        Verdict.PASS,
        ["chain", "anchor"],
    )


def test_a_model_whose_aliases_never_moved_says_so(project: Project) -> None:
    result = history(project.context, "digits")

    assert result.data["events"] == []
    assert "has moved yet" in result.report.summary


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("letters", {}, NotFoundError),
        ("digits/1", {}, UsageError),
        ("digits", {"at": "yesterday"}, UsageError),
        ("digits", {"at": "2026-03-08T09:00:00"}, UsageError),
        ("digits", {"alias": "Production"}, UsageError),
        ("digits@nope", {}, NotFoundError),
        ("digits", {"alias": "nope", "at": "1h"}, NotFoundError),
        ("digits@staging", {"alias": "production"}, UsageError),
    ],
)
def test_what_cannot_be_told_says_why(
    project: Project, name: str, options: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        history(project.context, name, **options)


def test_an_alias_that_nobody_ever_held_names_the_closest(moved: Project) -> None:
    with pytest.raises(NotFoundError, match=r"No version of digits holds the alias 'producton'") as caught:
        history(moved.context, "digits@producton")

    assert "'production'" in caught.value.hint


def test_a_rollout_stands_among_the_moves_and_its_state_above_them(project: Project) -> None:
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    transit(project, 2, "SHADOW", step=0, shadow=100)
    transit(project, 2, step=1, weight=5)

    result = history(project.context, "digits", verify=True)

    assert result.report.summary == "1 move and 2 transitions of 1 rollout of digits."
    assert result.report.checks[0].measured.startswith("1 move and 2 transitions of 1 rollout, 0 lost")
    assert ("rollout", "The rollout r1 tries digits/2 for production: step 2 (5 %).") in [
        (fact.label, fact.value) for fact in result.report.facts
    ]
    assert result.data["rollout"]["weight"] == 5
    (table,) = result.report.sections
    assert isinstance(table, Table)
    assert [(row[2], row[5], row[8]) for row in table.rows] == [
        ("canary", "rollout", "r1: step 2 (5 %)"),
        ("canary", "rollout", "r1: step 1 (100 % copied)"),
        ("production", "promote", ""),
    ]
    assert history(project.context, "digits@production").report.summary == "1 move of digits@production."


def test_the_move_that_ends_a_rollout_names_it_and_nothing_goes_on(project: Project) -> None:
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    transit(project, 2, "PROMOTING", step=1, weight=100)
    project.catalog.move(
        "digits", "production", 2, kind="promote", actor="server-1", evidence={"rollout": "r1"}
    )
    transit(project, None, "PROMOTED")

    result = history(project.context, "digits")

    (table,) = result.report.sections
    assert isinstance(table, Table)
    assert [row[8] for row in table.rows[:2]] == ["r1: promoted", "rollout r1"]
    assert result.data["rollout"] is None
    assert [fact.label for fact in result.report.facts] == ["journal"]


def test_what_a_rollout_was_doing_at_a_moment_is_answered(moved: Project) -> None:
    at = START + timedelta(hours=4)
    moved.__dict__["context"] = make_context(moved.settings, clock=lambda: at)
    transit(moved, 2, "SHADOW", step=0, shadow=100)
    moved.__dict__["context"] = make_context(moved.settings, clock=lambda: at + timedelta(hours=1))
    transit(moved, 2, step=1, weight=5)
    moved.__dict__["context"] = make_context(moved.settings, clock=lambda: at + timedelta(hours=2))
    transit(moved, None, "ABORTED")

    during = history(moved.context, "digits", at="1h")
    after = history(moved.context, "digits", at="0s")

    assert during.data["live"] == {"canary": 2, "production": 1, "staging": 3}
    assert during.data["rollout"]["state"] == "STEP"
    assert during.data["holders"][0]["since"] == rfc3339(at)
    assert [fact.value for fact in during.report.facts] == [
        "The rollout r1 tries digits/2 for production: step 2 (5 %)."
    ]
    assert after.data["live"] == {"canary": None, "production": 1, "staging": 3}
    assert after.data["rollout"] is None
