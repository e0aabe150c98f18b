"""The doctor in front of a live MLflow server, with and without the journal's say."""

from dataclasses import replace

import pytest
from projects import Project

from mlx_platform.core.errors import ConflictError, NotFoundError
from mlx_platform.registry.anchor import ANCHOR_TAG
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage


@pytest.fixture
def served(project: Project, mlflow_server: str) -> Catalog:
    """A catalog of a server, where `doctored` has two versions and `doctored@production` is 1."""
    catalog = Catalog(
        replace(project.settings, registry=replace(project.settings.registry, uri=mlflow_server))
    )
    for number in (1, 2):
        catalog.register("doctored", project.package(number), Lineage())
    catalog.move("doctored", "production", 1, kind="promote", actor="ada")
    return catalog


def test_a_server_is_examined_repaired_and_adopted_from_over_rest(served: Catalog) -> None:
    doctor, store = served.doctor, served._backend.store
    examined = doctor.examine("doctored")
    assert (examined.journal.lag, examined.journal.problems) == (0, ())
    assert [doctor.check_bytes(version, deep=True) for version in examined.versions] == [None, None]

    store.set_alias("doctored", "production", 2)
    assert doctor.difference("doctored", "production") is not None
    doctor.settle("doctored", "production")
    assert store.aliases("doctored") == {"production": 1}

    store.set_alias("doctored", "production", None)
    event = doctor.adopt("doctored", "production", actor="ada", reason="retired", evidence={})
    assert event is not None
    assert (event.from_version, event.to_version) == (1, None)
    assert served.holders("doctored") == {}
    assert doctor.adopt("doctored", "production", actor="ada", reason="", evidence={}) is None

    store.set_model_tags("doctored", {ANCHOR_TAG: f"9 {'0' * 64}"})
    assert "names event 9" in doctor.examine("doctored").journal.problems[0]


def test_an_alias_of_a_version_that_is_gone_cannot_be_put_back(project: Project) -> None:
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    writer, doctor = project.catalog._backend.writer, project.catalog.doctor
    writer.set_alias("digits", "production", 3)
    project.catalog._backend.store.delete_version("digits", 1)

    with pytest.raises(ConflictError, match="cannot follow the journal"):
        doctor.settle("digits", "production")
    with pytest.raises(NotFoundError):
        doctor.examine("letters")
