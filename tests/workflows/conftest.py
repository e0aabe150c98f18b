"""A registry of the test's own."""

from pathlib import Path

import pytest
from colour_project import make_colours
from plain_mlflow import copy_plain, make_plain
from projects import Project, copy_project, make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.getbasetemp() / "registry-template")


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    return copy_project(template, tmp_path / "project")


@pytest.fixture(scope="session")
def plain_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plain(tmp_path_factory.getbasetemp() / "plain-template")


@pytest.fixture
def theirs(plain_template: Path, tmp_path: Path) -> Project:
    """A project whose registry was filled with MLflow alone."""
    return Project(copy_plain(plain_template, tmp_path / "theirs"))


@pytest.fixture(scope="session")
def colour_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_colours(tmp_path_factory.mktemp("colours"))
