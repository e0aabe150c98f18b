import pytest
from projects import Project, evidence_of

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.report import Table
from mlx_platform.registry.version import ARCHIVED, Lineage
from mlx_platform.workflows.listing import list_versions
from mlx_platform.workflows.suggestions import Suggestions


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


def test_a_broken_journal_hides_no_version_unless_it_is_asked_who_holds_an_alias(project: Project) -> None:
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    project.catalog._backend.store.set_tags("mlx.journal.digits", 1, {"mlx.event": "x"})

    result = list_versions(project.context, "digits")

    assert [version["version"] for version in result.data["versions"]] == [3, 2, 1]
    assert result.exit_code == 0
    assert any("journal of digits is broken" in warning for warning in result.warnings)
    assert {version["state"] for version in result.data["versions"]} == {"unknown"}
    assert [version["candidate"] for version in result.data["versions"]] == [None] * 3
    assert list_versions(project.context, alias="production").exit_code == 10
    project.catalog.register("letters", project.package(1), Lineage())
    conditions = ("alias = production", "candidate", "candidate = yes", "not alias", "rolled_back")
    for condition in conditions:
        everywhere = list_versions(project.context, where=condition)
        assert everywhere.exit_code == 10
        assert "digits" not in {version["name"] for version in everywhere.data["versions"]}
    for asked in ({"alias": "production"}, *({"where": condition} for condition in conditions)):
        with pytest.raises(IntegrityError):
            list_versions(project.context, "digits", **asked)


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


def test_versions_are_found_by_what_is_known_of_them(project: Project) -> None:
    version = project.catalog.resolve("digits/2")
    project.catalog.record(version, evidence_of(version))
    project.catalog.register("letters", project.package(1), Lineage(params={"lr": "0.3"}))

    def found(where: str, name: str | None = None, **asked: object) -> list[str]:
        result = list_versions(project.context, name, where=where, **asked)  # type: ignore[arg-type]
        return [entry["ref"] for entry in result.data["versions"]]

    assert found("metrics.f1 >= 0.92 and params.lr < 0.3") == ["digits/2"]
    assert found("params.lr = 0.30") == ["letters/1", "digits/3"]
    assert found("evaluation.accuracy > 0.9 and evidence.evaluation = pass", "digits") == ["digits/2"]
    assert found("metrics.f1", sort="-metrics.f1", limit=2) == ["digits/3", "digits/2"]
    assert found("metrics.f1", sort="metrics.f1", name="digits") == ["digits/1", "digits/2", "digits/3"]
    assert found("version > 0", since="1h", name="digits") == ["digits/3", "digits/2", "digits/1"]
    assert found("version > 0", since="0s") == []


def test_a_page_shows_the_fields_that_were_asked_about_and_how_many_there_are(project: Project) -> None:
    result = list_versions(project.context, "digits", where="params.lr > 0", sort="-metrics.f1", limit=2)

    (table,) = result.report.sections
    assert isinstance(table, Table)
    assert table.columns[-2:] == ("params.lr", "metrics.f1")
    assert [row[-2:] for row in table.rows] == [("0.3", "0.93"), ("0.2", "0.92")]
    assert result.data["total"] == 3
    assert result.report.summary == (
        "3 versions of digits where params.lr > 0, the first 2 shown; more with --limit or --all."
    )


def test_a_field_that_nothing_has_is_a_warning_with_the_closest(project: Project) -> None:
    result = list_versions(project.context, where="metrics.f2 > 0")

    assert result.data["versions"] == []
    assert result.warnings == ("No version has metrics.f2. Did you mean 'metrics.f1'?",)
    with pytest.raises(UsageError, match="no field"):
        list_versions(project.context, sort="-metric.f1")


def test_archived_versions_are_shown_when_asked_for(project: Project) -> None:
    for number in (2, 3):
        project.catalog.set_tags(project.catalog.resolve(f"digits/{number}"), {ARCHIVED: "true"})

    def found(**asked: object) -> list[int]:
        result = list_versions(project.context, "digits", **asked)  # type: ignore[arg-type]
        return [entry["version"] for entry in result.data["versions"]]

    assert found() == found(limit=1) == found(where="version > 0") == [1]
    assert found(everything=True) == [3, 2, 1]
    assert found(everything=True, limit=2) == [3, 2]
    assert found(where="archived") == found(where="state = archived") == [3, 2]


def test_a_version_that_was_rolled_back_is_no_candidate(project: Project) -> None:
    for number, kind in ((1, "promote"), (2, "promote"), (1, "rollback")):
        project.catalog.move("digits", "production", number, kind=kind, actor="ada")  # type: ignore[arg-type]

    entries = list_versions(project.context, "digits").data["versions"]

    assert [(entry["state"], entry["candidate"]) for entry in entries] == [
        ("staging candidate", True),
        ("rolled back from production", False),
        ("production", False),
    ]

    def found(where: str) -> list[int]:
        return [one["version"] for one in list_versions(project.context, where=where).data["versions"]]

    assert found("candidate") == found("state = candidate") == found("not rolled_back and not alias") == [3]
    assert found("state = rolled-back") == found("rolled_back = production") == [2]
    meanings = dict(Suggestions(project.settings).numbers("digits"))
    assert [meanings[number].split(", ")[0] for number in "321"] == [entry["state"] for entry in entries]


def test_versions_of_the_same_bytes_are_named_together(project: Project) -> None:
    project.catalog.register("letters", project.package(2), Lineage())

    result = list_versions(project.context, where="version > 0")

    assert result.data["same_bytes"] == [["letters/1", "digits/2"]]
    assert [fact.value for fact in result.report.facts] == ["letters/1, digits/2"]
