from pathlib import Path

import pytest
from projects import Project

from mlx_platform.core.settings import FILE_NAME, Settings, load_settings
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.init import initialize


def test_the_settings_file_that_is_written_holds_the_defaults(project: Project) -> None:
    result = initialize(project.context)

    written = load_settings(project.folder / FILE_NAME, environment={})
    assert written == Settings(folder=project.folder, source=project.folder / FILE_NAME)
    assert (result.data["created"], result.data["wrote_settings"]) == (False, True)


def test_doing_it_again_changes_nothing(project: Project) -> None:
    (project.folder / FILE_NAME).write_text("[drift]\nwarn = 0.15\n")

    result = initialize(project.context)

    assert (result.data["created"], result.data["wrote_settings"]) == (False, False)
    assert (project.folder / FILE_NAME).read_text() == "[drift]\nwarn = 0.15\n"


def test_a_registry_is_created_where_there_is_none(tmp_path: Path) -> None:
    settings = load_settings(
        start=tmp_path, environment={}, overrides={"registry.uri": "sqlite:///sub/own.db"}
    )

    result = initialize(make_context(settings))

    assert result.data["created"]
    assert (tmp_path / "sub" / "own.db").exists()
    assert make_context(load_settings(tmp_path / FILE_NAME, environment={})).catalog.models() == ()


def test_a_password_is_not_written_down(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "postgresql://ada:secret@localhost/mlx"
    settings = load_settings(start=project.folder, environment={}, overrides={"registry.uri": uri})
    context = make_context(settings)
    monkeypatch.setattr(context.catalog, "create", lambda: False)

    result = initialize(context)

    assert "secret" not in (project.folder / FILE_NAME).read_text()
    assert "secret" not in str(result.document())
    assert result.warnings
