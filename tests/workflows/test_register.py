import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from projects import Project, write_network

from mlx_platform.core.errors import ConflictError, MlxError, NotFoundError, UsageError
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows import register as module
from mlx_platform.workflows.drift import measure_drift
from mlx_platform.workflows.register import register


@pytest.fixture
def source(project: Project) -> Path:
    return write_network(project.folder / "model-9.onnx", 9.0)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    random = np.random.default_rng(20260308)
    columns = {f"p{index}": random.normal(size=200).astype(np.float32) for index in range(4)}
    pq.write_table(pa.table(columns | {"label": random.integers(0, 3, 200)}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_a_version_is_registered_with_its_lineage(project: Project, source: Path) -> None:
    result = register(
        project.context,
        "digits",
        source,
        dataset_version="2026-11",
        params={"lr": "0.01"},
        metrics={"f1": 0.93},
        git_commit="0123456789abcdef",
        parent="digits/2",
        description="wider",
    )

    version = project.anew().resolve("digits/4")
    assert (result.data["name"], result.data["version"], result.data["created"]) == ("digits", 4, True)
    assert (result.data["label"], result.data["digest"]) == (version.label, version.digest)
    assert (version.dataset_version, version.git_commit) == ("2026-11", "0123456789abcdef")
    assert (version.params, version.metrics) == ({"lr": "0.01"}, {"f1": 0.93})
    assert (version.parent, version.description) == ("digits/2", "wider")
    assert version.tags["mlx.actor"] == "tester"
    assert version.tags["mlx.inputs"] == "x FP32 [?, 4]"
    assert version.candidate


def test_the_network_is_stored_byte_for_byte(project: Project, source: Path) -> None:
    register(project.context, "digits", source)

    package = project.catalog.fetch(project.catalog.resolve("digits/4"))
    assert package.model_path.read_bytes() == source.read_bytes()


def test_the_same_content_is_reused_and_says_so(project: Project) -> None:
    result = register(project.context, "digits", project.folder / "model-2.onnx", params={"lr": "7"})

    assert (result.data["version"], result.data["created"]) == (2, False)
    assert "already" in result.warnings[0]
    assert result.exit_code == 0
    with pytest.raises(ConflictError):
        register(project.context, "digits", project.folder / "model-2.onnx", if_exists="fail")


def test_a_column_that_the_model_takes_is_an_input_whatever_it_is_called(project: Project) -> None:
    names = ["id", "weight", "height", "age"]
    folder = project.folder / "source"
    folder.mkdir()
    write_network(folder / "model.onnx", 9.0)
    (folder / "model.toml").write_text(
        f'format = 1\ntask = "classification"\n[[pre]]\nstep = "columns"\nnames = {json.dumps(names)}\n'
    )
    random = np.random.default_rng(20260308)
    columns = {name: random.normal(size=200) for name in (*names, "label")}
    pq.write_table(pa.table(columns), project.folder / "rows.parquet")

    register(project.context, "people", folder, baseline=project.folder / "rows.parquet")

    drift = measure_drift(project.context, "people/1", traffic=project.folder / "rows.parquet")
    assert {feature["name"] for feature in drift.data["features"]} == set(names)
    assert drift.verdict is Verdict.PASS


def test_the_profile_of_a_baseline_travels_with_the_package(
    project: Project, source: Path, rows: Path
) -> None:
    register(project.context, "digits", source, baseline=rows)

    version = project.catalog.resolve("digits/4")
    package = project.catalog.fetch(version)
    assert package.baseline_path is not None
    profile = json.loads(package.baseline_path.read_text())
    names = {feature["name"] for feature in profile["features"]}
    assert {"p0", "p1", "p2", "p3", "label", "confidence", "entropy", "margin"} == names
    assert profile["rows"] == 200
    assert version.tags["mlx.dataset_fingerprint"]
    # Rows may be personal: only their profile leaves the machine.
    assert str(pq.read_table(rows)["p0"][0].as_py()) not in (package.root / "golden.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "a/b"}, UsageError),
        ({"name": "model.onnx"}, UsageError),
        ({"source": Path("missing.onnx")}, NotFoundError),
        ({"golden": Path("missing.jsonl")}, NotFoundError),
        ({"baseline": Path("missing.parquet")}, NotFoundError),
        ({"if_exists": "replace"}, UsageError),
        ({"git_commit": "main"}, UsageError),
        ({"params": {"a\n": "1"}}, UsageError),
        ({"metrics": {"f1": float("nan")}}, UsageError),
        ({"parent": "digits/99"}, NotFoundError),
    ],
)
def test_flags_that_cannot_be_used_are_refused_before_anything_is_built(
    project: Project,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    error: type[MlxError],
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "_build", never)
    arguments: dict[str, object] = {"name": "digits", "source": source} | options

    with pytest.raises(error):
        register(project.context, **arguments)  # type: ignore[arg-type]

    assert len(project.catalog.versions("digits")) == 3


def test_a_source_that_is_no_model_registers_nothing_and_leaves_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "broken.onnx").write_bytes(b"this is no network")

    with pytest.raises(MlxError):
        register(project.context, "digits", tmp_path / "broken.onnx")

    assert len(project.catalog.versions("digits")) == 3
    assert list((tmp_path / "temporary").iterdir()) == []
