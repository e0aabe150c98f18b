import pytest
from projects import Project

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.report import Table
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.listing import list_versions


def test_models_are_listed_with_their_aliases(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    result = list_versions(project.context)

    (model,) = result.data["models"]
    assert (model["name"], model["versions"], model["aliases"]) == ("digits", 3, {"production": 2})
    assert model["newest"]["version"] == 3
    table = result.report.sections[0]
    assert isinstance(table, Table)
    assert table.rows[0][-1] == "production 2"
    assert list_versions(project.context, alias="staging").data["models"] == []


def test_versions_are_listed_newest_first_with_their_state(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    result = list_versions(project.context, "digits")

    assert [version["version"] for version in result.data["versions"]] == [3, 2, 1]
    assert [version["state"] for version in result.data["versions"]] == [
        "staging candidate",
        "production",
        "staging candidate",
    ]
    assert [
        entry["version"] for entry in list_versions(project.context, "digits", limit=1).data["versions"]
    ] == [3]


def test_only_the_holder_of_an_alias_is_listed_when_asked(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    held = list_versions(project.context, "digits", alias="production").data["versions"]

    assert [version["version"] for version in held] == [2]
    assert list_versions(project.context, "digits", alias="staging").data["versions"] == []
    with pytest.raises(UsageError):
        list_versions(project.context, "digits", alias="latest")


def test_a_model_that_is_not_there_names_the_closest(project: Project) -> None:
    with pytest.raises(NotFoundError) as caught:
        list_versions(project.context, "digit")

    assert "'digits'" in caught.value.hint


def test_a_broken_journal_hides_no_model(project: Project) -> None:
    project.catalog.register("letters", project.package(1), Lineage())
    for name in ("digits", "letters"):
        project.catalog.move(name, "production", 1, kind="promote", actor="ada")
    project.catalog._backend.store.set_tags("mlx.journal.digits", 1, {"mlx.event": "x"})

    result = list_versions(project.context)

    broken, sound = result.data["models"]
    assert (broken["name"], broken["aliases"], sound["aliases"]) == ("digits", {}, {"production": 1})
    assert "broken" in broken["problem"]
    assert sound["problem"] == ""
    (warning,) = result.warnings
    assert "journal of digits is broken" in warning
    table = result.report.sections[0]
    assert isinstance(table, Table)
    assert [row[-1] for row in table.rows] == ["unknown", "production 1"]
    held = list_versions(project.context, alias="production")
    assert [model["name"] for model in held.data["models"]] == ["letters"]
    assert held.warnings == result.warnings
