import pytest
from projects import Project

from mlx_platform.core.clock import system_clock
from mlx_platform.core.errors import IntegrityError, NotFoundError
from mlx_platform.registry import selection
from mlx_platform.registry.fields import parse_field
from mlx_platform.registry.selection import Asked
from mlx_platform.registry.version import ARCHIVED, Lineage
from mlx_platform.registry.where import parse_where


def found(project: Project, name: str | None, asked: Asked) -> list[str]:
    return [version.ref for version in project.catalog.select(name, asked).versions]


def test_the_newest_are_read_from_as_few_rows_as_are_needed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_SLACK", 0)
    reader = project.catalog._backend.reader
    rows, windows = reader.rows, []

    def watch(name: str, **options: object) -> object:
        if name == "digits":
            windows.append(options.get("limit"))
        return rows(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "rows", watch)
    assert found(project, "digits", Asked(limit=1)) == ["digits/3"]
    assert windows == [1]

    project.catalog.set_tags(project.catalog.resolve("digits/3"), {ARCHIVED: "true"})
    windows.clear()
    assert found(project, "digits", Asked(limit=1)) == ["digits/2"]
    assert windows == [1, 4]


def test_versions_that_were_chosen_are_whole(project: Project) -> None:
    asked = Asked(where=parse_where("metrics.f1 > 0.91", now=system_clock()), limit=1)

    chosen = project.catalog.select("digits", asked)

    assert chosen.versions == (project.catalog.resolve("digits/3"),)
    assert chosen.total == 2


def test_versions_of_several_models_come_newest_first_or_in_one_order(project: Project) -> None:
    project.catalog.register("letters", project.package(1), Lineage(metrics={"f1": 0.915}))

    assert found(project, None, Asked(archived=True)) == ["letters/1", "digits/3", "digits/2", "digits/1"]
    by_f1 = Asked(sort=(parse_field("metrics.f1"), False))
    assert found(project, None, by_f1) == ["digits/1", "letters/1", "digits/2", "digits/3"]


def test_a_holder_is_shown_although_somebody_archived_it(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    project.catalog.set_tags(project.catalog.resolve("digits/2"), {ARCHIVED: "true"})

    assert found(project, "digits", Asked()) == ["digits/3", "digits/2", "digits/1"]
    assert found(project, "digits", Asked(alias="production")) == ["digits/2"]


def test_a_broken_journal_stops_only_who_asks_for_its_aliases(project: Project) -> None:
    project.catalog.register("letters", project.package(1), Lineage())
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    project.catalog._backend.writer.set_tags("mlx.journal.digits", 1, {"mlx.event": "x"})

    chosen = project.catalog.select(None, Asked(alias="production"))

    assert chosen.versions == ()
    assert "journal of digits is broken" in chosen.warnings[0]
    assert found(project, "digits", Asked()) == ["digits/3", "digits/2", "digits/1"]
    with pytest.raises(IntegrityError):
        project.catalog.select("digits", Asked(alias="production"))
    with pytest.raises(NotFoundError):
        project.catalog.select("words", Asked())
