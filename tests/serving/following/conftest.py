"""A registry of the test's own, and a server that follows an alias in it."""

from pathlib import Path

import pytest
from projects import Project, copy_project, make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.getbasetemp() / "registry-template")


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    """`digits/1` to `/3`, the first in production."""
    made = copy_project(template, tmp_path / "project")
    made.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    return made
