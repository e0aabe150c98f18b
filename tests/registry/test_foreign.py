"""Versions of plain MLflow as sealed packages."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import LOCATIONS
from plain_mlflow import Plain
from projects import Project
from pullers import pull_at_once
from support import sha256_of

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.settings import load_settings
from mlx_platform.inference import build
from mlx_platform.inference.package import Package
from mlx_platform.registry.catalog import Catalog

_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")


sys.addaudithook(_audit)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Every path that is opened in this process until the test ends."""
    global _opened  # noqa: PLW0603 - an audit hook cannot be taken away, only silenced
    _opened = []
    yield _opened
    _opened = None


def edit(theirs: Project, statement: str, *values: object) -> None:
    connection = sqlite3.connect(theirs.database)
    with connection:
        connection.execute(statement, values)
    connection.close()


def point(theirs: Project, number: int, place: str) -> None:
    """Let the registry say that a version of `theirs` is somewhere."""
    edit(
        theirs,
        "UPDATE model_versions SET source = ?, storage_location = ? WHERE name = 'theirs' AND version = ?",
        place,
        place,
        number,
    )


def fetch(theirs: Project, ref: str) -> Package:
    catalog = theirs.anew()
    return catalog.fetch(catalog.resolve(ref))


def place_of(theirs: Project, number: int) -> Path:
    """The folder of a version in this copy of the registry."""
    plain = Plain.read(theirs.folder)
    if number in {1, 3}:
        return theirs.folder / "mlruns" / "1" / "models" / plain.models[str(number)] / "artifacts"
    return theirs.folder / "mlruns" / "1" / plain.runs[str(number)] / "artifacts" / "model"


@pytest.mark.parametrize("ref", ["theirs/1", "theirs/2", "theirs/3", "theirs@champion", "copied/1"])
def test_a_version_of_plain_mlflow_has_a_package(theirs: Project, ref: str) -> None:
    version = theirs.catalog.resolve(ref)

    package = theirs.catalog.fetch(version)

    number = 2 if ref == "copied/1" else version.number
    assert not version.sealed
    assert sha256_of(package.model_path) == sha256_of(place_of(theirs, number) / "model.onnx")
    assert len(package.golden()) == 2


def test_weights_beside_the_network_come_along(theirs: Project) -> None:
    package = fetch(theirs, "theirs/1")

    (weights,) = [entry.path for entry in package.manifest.files if entry.path.endswith(".data")]
    assert sha256_of(package.root / weights) == sha256_of(place_of(theirs, 1) / weights)


def test_nothing_is_written_into_the_store(theirs: Project) -> None:
    store = theirs.folder / "mlruns"
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in store.rglob("*"))

    for number in (1, 2, 3):
        fetch(theirs, f"theirs/{number}")

    assert sorted((str(path), path.lstat().st_mtime_ns) for path in store.rglob("*")) == before


def test_the_second_time_nothing_is_built(theirs: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch(theirs, "theirs/1")

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(build, "build_package", refuse)
    assert fetch(theirs, "theirs/1") == first


def test_bytes_that_changed_in_the_store_make_another_package(theirs: Project) -> None:
    first = fetch(theirs, "theirs/2")

    shutil.copyfile(theirs.folder / "model-3.onnx", place_of(theirs, 2) / "model.onnx")

    second = fetch(theirs, "theirs/2")
    assert second.digest != first.digest
    assert sha256_of(second.model_path) == sha256_of(theirs.folder / "model-3.onnx")


def test_weights_that_changed_in_the_store_make_another_package(theirs: Project) -> None:
    first = fetch(theirs, "theirs/1")
    (weights,) = place_of(theirs, 1).glob("*.data")

    content = bytearray(weights.read_bytes())
    content[3] ^= 1
    weights.write_bytes(content)

    assert fetch(theirs, "theirs/1").digest != first.digest


def test_a_cache_that_lost_the_package_builds_it_again(theirs: Project) -> None:
    first = fetch(theirs, "theirs/2")
    shutil.rmtree(first.root)

    assert fetch(theirs, "theirs/2") == first


def test_a_note_that_cannot_be_read_is_as_good_as_none(theirs: Project, own_home: Path) -> None:
    first = fetch(theirs, "theirs/2")
    (note,) = (own_home / ".cache" / "mlx" / "foreign").glob("*.json")

    note.write_bytes(b'{"files": {"MLmodel": 3}, "digest": "../x"}')

    assert fetch(theirs, "theirs/2") == first


def test_a_pickle_is_refused_by_the_name_of_its_flavor_and_never_opened(
    theirs: Project, opened: list[str]
) -> None:
    with pytest.raises(UsageError, match="flavor sklearn") as caught:
        fetch(theirs, "theirs/4")

    assert "skops" in caught.value.hint
    assert "MLmodel" in opened
    assert not any(path.endswith(".pkl") for path in opened)
    assert not (theirs.folder / "canary").exists()


def test_a_version_that_is_a_file_itself_is_taken(theirs: Project) -> None:
    plain = Plain.read(theirs.folder)
    point(theirs, 2, str(theirs.folder / "mlruns" / "1" / plain.runs["2"] / "artifacts/bare/model-2.onnx"))

    assert sha256_of(fetch(theirs, "theirs/2").model_path) == sha256_of(theirs.folder / "model-2.onnx")


@pytest.mark.parametrize("path", ["network", "model", "bare/model-2.onnx"])
def test_a_version_whose_source_is_a_run_is_found(theirs: Project, path: str) -> None:
    plain, number = Plain.read(theirs.folder), 3 if path == "network" else 2
    point(theirs, 1, f"runs:/{plain.runs[str(number)]}/{path}")

    assert sha256_of(fetch(theirs, "theirs/1").model_path) == sha256_of(
        theirs.folder / f"model-{number}.onnx"
    )


def test_a_run_that_is_gone_is_said_to_be(theirs: Project) -> None:
    point(theirs, 1, f"runs:/{'0' * 32}/model")

    with pytest.raises(NotFoundError, match="no run 0000"):
        fetch(theirs, "theirs/1")


def test_bytes_that_are_gone_are_said_to_be(theirs: Project) -> None:
    shutil.rmtree(place_of(theirs, 2))

    with pytest.raises(IntegrityError, match="no model where the registry says") as caught:
        fetch(theirs, "theirs/2")

    assert "its run" in caught.value.hint


def test_a_sealed_version_without_its_digest_is_no_foreign_one(theirs: Project) -> None:
    edit(theirs, "INSERT INTO model_version_tags VALUES ('mlx.content', 'x', 'theirs', 2, 'default')")

    with pytest.raises(IntegrityError, match="carries no digest"):
        fetch(theirs, "theirs/2")


# Hostile sources


def test_only_what_the_settings_allow_is_read(theirs: Project, tmp_path: Path, opened: list[str]) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(place_of(theirs, 2), elsewhere)
    point(theirs, 2, str(elsewhere))
    opened.clear()

    with pytest.raises(IntegrityError, match="where none may be read") as caught:
        fetch(theirs, "theirs/2")
    assert "`[registry] sources`" in caught.value.hint
    assert not [path for path in opened if path.startswith(str(elsewhere)) or path == "MLmodel"]

    (theirs.folder / "mlx.toml").write_text(f'[registry]\nsources = ["{tmp_path}"]\n')
    catalog = Catalog(load_settings(start=theirs.folder, environment=os.environ))
    assert catalog.fetch(catalog.resolve("theirs/2")).size


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_hostile_source_is_refused_before_anything_is_opened(
    theirs: Project, location: str, opened: list[str]
) -> None:
    point(theirs, 2, location)

    with pytest.raises(IntegrityError) as caught:
        fetch(theirs, "theirs/2")

    assert caught.value.message.isprintable()
    # Resolving a run needs the registry itself; of files only the lock of the build may have been made.
    assert "MLmodel" not in opened
    assert not [path for path in opened if path.startswith("/etc")]


@pytest.mark.parametrize("way", ["../../canary", "%2e%2e/%2e%2e/canary", "link", "link/inner"])
def test_a_way_out_of_the_store_is_refused_before_anything_is_opened(
    theirs: Project, way: str, opened: list[str]
) -> None:
    canary = theirs.folder.parent / "canary"
    (canary / "inner").mkdir(parents=True)
    for folder in (canary, canary / "inner"):
        shutil.copytree(place_of(theirs, 2), folder, dirs_exist_ok=True)
    (theirs.folder / "mlruns" / "link").symlink_to(canary)
    point(theirs, 2, f"{theirs.folder}/mlruns/{way}")
    opened.clear()

    with pytest.raises(IntegrityError, match="where n"):
        fetch(theirs, "theirs/2")

    assert "MLmodel" not in opened


@pytest.mark.parametrize("name", ["MLmodel", "model.onnx", "weights"])
@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "folder", "missing"])
def test_a_file_that_is_no_file_of_its_own_is_refused(theirs: Project, name: str, kind: str) -> None:
    place = place_of(theirs, 1)
    path = next(place.glob("*.data")) if name == "weights" else place / name
    outside = theirs.folder / "outside"
    shutil.copyfile(path, outside)
    path.unlink()
    match kind:
        case "link":
            path.symlink_to(outside)
        case "hard link":
            path.hardlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()

    with pytest.raises(IntegrityError):
        fetch(theirs, "theirs/1")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside", "MLmodel/../../outside"])
def test_weights_outside_of_the_folder_are_refused(theirs: Project, name: str, opened: list[str]) -> None:
    import onnx

    path = place_of(theirs, 1) / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = name
    path.write_bytes(model.SerializeToString())
    opened.clear()

    with pytest.raises(UsageError, match="no file inside its folder"):
        fetch(theirs, "theirs/1")

    assert not [found for found in opened if found.endswith(("outside", "passwd"))]


# Many at once


def test_eight_processes_build_one_package(theirs: Project) -> None:
    assert {*pull_at_once(theirs.folder, "theirs/2")} == {fetch(theirs, "theirs/2").digest}


def test_eight_processes_pull_one_package(project: Project) -> None:
    assert {*pull_at_once(project.folder, "digits/1")} == {project.package(1).digest}
