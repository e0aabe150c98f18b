"""A registry of the test's own."""

from pathlib import Path

import pytest
from projects import Project, copy_project, make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.getbasetemp() / "registry-template")


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    return copy_project(template, tmp_path / "project")
