"""Versions of plain MLflow as sealed packages."""

import pytest
from projects import Project

from mlx_platform.core.errors import UsageError


@pytest.mark.parametrize("ref", ["theirs/1", "theirs/2", "theirs/3", "theirs@champion", "copied/1"])
def test_a_version_of_plain_mlflow_has_a_package(theirs: Project, ref: str) -> None:
    version = theirs.catalog.resolve(ref)

    package = theirs.catalog.fetch(version)

    assert not version.sealed
    number = 2 if ref == "copied/1" else version.number
    sent = (theirs.folder / f"model-{number}.onnx").read_bytes()
    assert (number == 1) == (package.model_path.read_bytes() != sent)  # MLflow puts weights beside the first
    assert theirs.anew().fetch(version) == package


def test_a_pickle_is_refused_by_the_name_of_its_flavor_and_never_opened(theirs: Project) -> None:
    with pytest.raises(UsageError, match="flavor sklearn") as caught:
        theirs.catalog.fetch(theirs.catalog.resolve("theirs/4"))

    assert "skops" in caught.value.hint
    assert not (theirs.folder / "canary").exists()
