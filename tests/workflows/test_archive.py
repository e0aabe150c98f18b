import pytest
from projects import Project

from mlx_platform.core.errors import ConflictError, GateFailedError
from mlx_platform.workflows.archive import archive
from mlx_platform.workflows.listing import list_versions
from mlx_platform.workflows.promote import promote


def test_an_archived_version_is_hidden_and_not_promoted_until_it_comes_back(project: Project) -> None:
    result = archive(project.context, "digits/2", reason="too slow")

    assert (result.data["changed"], result.data["before"], result.data["after"]) == (
        True,
        "staging candidate",
        "archived",
    )
    listed = [entry["version"] for entry in list_versions(project.context, "digits").data["versions"]]
    assert listed == [3, 1]
    with pytest.raises((ConflictError, GateFailedError), match="archived"):
        promote(project.context, "digits/2", to="staging")

    archive(project.context, "digits/2", undo=True)
    assert promote(project.context, "digits/2", to="staging").data["changed"]


def test_archiving_twice_changes_nothing(project: Project) -> None:
    archive(project.context, "digits/2")

    again = archive(project.context, "digits/2")

    assert not again.data["changed"]
    assert again.report.summary == "digits/2 is archived already; nothing changed."
    assert not archive(project.context, "digits/3", undo=True).data["changed"]


def test_what_a_rollback_would_go_back_to_is_archived_with_a_warning(project: Project) -> None:
    for number in (2, 3):
        project.catalog.move("digits", "production", number, kind="promote", actor="ada")

    (warning,) = archive(project.context, "digits/2").warnings

    assert warning == (
        "digits@production can be rolled back to it; while it is archived, a rollback passes over it."
    )
    with pytest.raises(ConflictError, match="cannot be archived"):
        archive(project.context, "digits@production")
