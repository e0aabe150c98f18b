import shutil

import pytest
from projects import Project

from mlx_platform.core.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from mlx_platform.registry.version import ARCHIVED, QUARANTINED
from mlx_platform.workflows.rollback import rollback


@pytest.fixture
def moved(project: Project) -> Project:
    """`digits@production` went from 1 to 2 to 3."""
    for number in (1, 2, 3):
        project.catalog.move("digits", "production", number, kind="promote", actor="ada")
    return project


def test_the_version_before_comes_back_without_gates(moved: Project) -> None:
    result = rollback(moved.context, "digits", reason="wrong answers")

    assert (result.data["before"], result.data["after"], result.data["changed"]) == (3, 2, True)
    assert (result.data["event"]["kind"], result.data["event"]["reason"]) == ("rollback", "wrong answers")
    assert moved.anew().resolve("digits@production").number == 2
    assert moved.anew().differences("digits") == ()


def test_a_second_rollback_goes_further_back_and_a_third_has_nowhere_to_go(moved: Project) -> None:
    rollback(moved.context, "digits")

    assert rollback(moved.context, "digits").data["after"] == 1
    with pytest.raises(ConflictError, match="No earlier holder"):
        rollback(moved.context, "digits")


@pytest.mark.parametrize("to", ["1", "digits/1", "digits@production~2"])
def test_a_named_target_can_be_repeated_safely(moved: Project, to: str) -> None:
    assert rollback(moved.context, "digits", to=to).data["changed"]

    again = rollback(moved.context, "digits", to="1")

    assert (again.data["changed"], again.data["event"], again.exit_code) == (False, None, 0)
    assert len(moved.catalog.history("digits")) == 4


@pytest.mark.parametrize("tag", [QUARANTINED, ARCHIVED])
def test_quarantined_and_archived_versions_are_passed_over(moved: Project, tag: str) -> None:
    moved.catalog.set_tags(moved.catalog.resolve("digits/2"), {tag: "true"})

    with pytest.raises(ConflictError):
        rollback(moved.context, "digits", to="2")
    result = rollback(moved.context, "digits")

    assert result.data["after"] == 1
    assert "passed over" in result.warnings[0]


def test_a_target_without_its_bytes_is_refused_and_nothing_moves(moved: Project) -> None:
    shutil.rmtree(moved.folder / "mlx-artifacts")

    with pytest.raises(IntegrityError):
        rollback(moved.context, "digits")

    assert moved.catalog.resolve("digits@production").number == 3


def test_another_alias_is_named_with_the_model(moved: Project) -> None:
    for number in (3, 1):
        moved.catalog.move("digits", "staging", number, kind="promote", actor="ada")

    assert rollback(moved.context, "digits@staging").data["after"] == 3
    assert moved.catalog.holders("digits") == {"production": 3, "staging": 3}


@pytest.mark.parametrize(
    ("name", "to", "error"),
    [
        ("letters", None, NotFoundError),
        ("digits@staging", None, NotFoundError),
        ("digits", "99", NotFoundError),
        ("digits/2", None, UsageError),
        ("digits@production~1", None, UsageError),
        ("digits", "latest!", UsageError),
        ("./digits", None, UsageError),
    ],
)
def test_what_cannot_be_rolled_back_says_why(
    moved: Project, name: str, to: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        rollback(moved.context, name, to=to)


def test_a_version_of_another_model_is_no_target(moved: Project) -> None:
    from mlx_platform.registry.version import Lineage

    moved.catalog.register("letters", moved.package(1), Lineage())

    with pytest.raises(UsageError, match="no version of digits"):
        rollback(moved.context, "digits", to="letters/1")
