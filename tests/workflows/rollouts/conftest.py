"""A model with a version in production and others that may follow it."""

from pathlib import Path

import pytest
from projects import Project

PLAN = """\
[promotion.production]
needs = []

[rollout]
steps = [{shadow = 100}, {weight = 5}, {pause = "manual"}, {weight = 50}, {weight = 100, bake = "1h"}]
"""


@pytest.fixture
def live(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project with `digits/1` in production, as the working folder."""
    (project.folder / "mlx.toml").write_text(PLAN)
    project.catalog.move("digits", "production", 1, kind="promote", actor="ana")
    monkeypatch.chdir(project.folder)
    return project


@pytest.fixture
def careful(tmp_path: Path) -> Path:
    """A plan file."""
    path = tmp_path / "careful.toml"
    path.write_text('steps = [{shadow = 50}, {weight = 2}, {weight = 100}]\nbake = "5m"\n')
    return path
