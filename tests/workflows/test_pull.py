import shutil
from pathlib import Path

import pytest
from projects import Project

from mlx_platform.core.errors import IntegrityError, UsageError
from mlx_platform.inference.package import open_package
from mlx_platform.workflows.pull import pull


def test_a_package_is_pulled_into_the_cache(project: Project) -> None:
    result = pull(project.context, "digits/2")

    assert Path(result.data["path"]).is_relative_to(project.settings.path(project.settings.cache.dir))
    assert Path(result.data["model"]).read_bytes() == (project.folder / "model-2.onnx").read_bytes()
    assert result.report.summary == result.data["path"]


def test_a_folder_gets_a_package_of_its_own(project: Project, tmp_path: Path) -> None:
    result = pull(project.context, "digits/2", output=tmp_path / "out" / "digits")

    assert open_package(tmp_path / "out" / "digits").digest == result.data["digest"]


def test_a_second_pull_needs_no_registry_bytes(project: Project, tmp_path: Path) -> None:
    pull(project.context, "digits/2")
    shutil.rmtree(project.folder / "mlx-artifacts")

    pull(project.context, "digits/2", output=tmp_path / "out")

    with pytest.raises(IntegrityError):
        pull(project.context, "digits/1", output=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_folder_that_is_there_is_left_alone(project: Project, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        pull(project.context, "digits/2", output=tmp_path)
