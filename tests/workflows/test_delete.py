import pytest
from projects import Project

from mlx_platform.core.errors import ConflictError, NotFoundError
from mlx_platform.core.report import Table
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.delete import delete
from mlx_platform.workflows.history import history
from mlx_platform.workflows.listing import list_versions


def yes(question: str) -> bool:
    assert question.endswith("?")
    return True


def test_a_version_is_deleted_once_somebody_says_yes(project: Project) -> None:
    kept = delete(project.context, "digits/2", confirm=lambda _: False)
    gone = delete(project.context, "digits/2", reason="leaked data", confirm=yes)

    assert (kept.data["changed"], kept.report.summary) == (False, "digits/2 was not deleted.")
    assert (gone.data["changed"], gone.data["reason"], gone.data["actor"]) == (True, "leaked data", "tester")
    assert [entry["version"] for entry in list_versions(project.context, "digits").data["versions"]] == [3, 1]


def test_deleting_again_says_who_did_it(project: Project) -> None:
    delete(project.context, "digits/2", reason="leaked data", confirm=yes)

    again = delete(project.context, "digits/2", confirm=lambda _: pytest.fail("nothing to ask"))

    assert not again.data["changed"]
    assert again.report.summary.startswith("digits/2 was deleted by tester on ")
    assert again.report.summary.endswith(": leaked data.")
    with pytest.raises(NotFoundError, match="newest is digits/3"):
        delete(project.context, "digits/9", confirm=yes)


def test_nobody_is_asked_about_a_version_in_use(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    with pytest.raises(ConflictError, match="in use: digits@production is this version"):
        delete(project.context, "digits/2", confirm=lambda _: pytest.fail("nothing to ask"))


def test_the_history_marks_what_was_deleted(project: Project) -> None:
    for number in (1, 2, 3):
        project.catalog.move("digits", "staging", number, kind="promote", actor="ada")
    fourth, _ = project.catalog.register("digits", project.variant("4"), Lineage())
    project.catalog.move("digits", "staging", fourth.number, kind="promote", actor="ada")
    delete(project.context, "digits/1", confirm=yes)

    result = history(project.context, "digits")

    (table,) = result.report.sections
    assert isinstance(table, Table)
    assert [row[4] for row in table.rows] == ["4", "3", "2", "1 (deleted)"]
    assert [stone["version"] for stone in result.data["deleted"]] == [1]


def test_a_model_without_versions_says_so(project: Project) -> None:
    for number in (1, 2, 3):
        delete(project.context, f"digits/{number}", confirm=yes)

    with pytest.raises(NotFoundError, match="The model digits has no version left"):
        list_versions(project.context, "digits")


def test_what_holds_an_alias_is_not_told_to_be_archived(project: Project) -> None:
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    with pytest.raises(ConflictError) as alone:
        delete(project.context, "digits/1", confirm=lambda _: True)
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    with pytest.raises(ConflictError) as holder:
        delete(project.context, "digits/2", confirm=lambda _: True)
    with pytest.raises(ConflictError) as before:
        delete(project.context, "digits/1", confirm=lambda _: True)

    assert alone.value.hint == "Promote another version first."
    assert holder.value.hint == "Promote another version first, or go back: mlx rollback digits@production"
    assert "mlx archive digits/1" in before.value.hint
