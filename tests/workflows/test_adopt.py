import json
from pathlib import Path

import pytest
from plain_mlflow import Plain
from projects import Project

from mlx_platform.core.files import sha256_of
from mlx_platform.workflows.adopt import adopt
from mlx_platform.workflows.register import register


def test_a_version_is_adopted_with_what_its_run_knows(theirs: Project) -> None:
    result = adopt(theirs.context, "theirs/2")

    version = theirs.anew().resolve("theirs/5")
    assert result.data["ref"] == "theirs/5"
    assert version.sealed
    assert version.params == {"lr": "0.1", "layers": "2"}
    assert version.metrics == {"f1": 0.93}
    assert version.dataset_version == "writers (77aa)"
    assert version.git_commit == "0123456789abcdef0123456789abcdef01234567"
    assert version.tags["team"] == "vision"
    assert version.tags["mlx.adopted_from"] == "theirs/2"
    assert version.tags["mlx.adopted_held"] == "stage Production"
    assert version.tags["mlx.actor"] == "tester"
    assert theirs.catalog.holders("theirs") == {"champion": 3}
    assert result.report.next_steps == (
        "mlx eval theirs/5 --data TEST.parquet",
        "mlx promote theirs/5 --to production --expect none",
    )
    assert any("loss" in warning for warning in result.warnings)


def test_the_network_is_the_one_that_was_logged_byte_for_byte(theirs: Project) -> None:
    adopt(theirs.context, "theirs/2")

    package = theirs.catalog.fetch(theirs.catalog.resolve("theirs/5"))
    assert sha256_of(package.model_path) == sha256_of(theirs.folder / "model-2.onnx")
