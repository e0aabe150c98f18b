import os
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from projects import Project

from mlx_platform.core.errors import UnavailableError
from mlx_platform.registry.leftovers import remove_folder, stale_folders, unfinished
from mlx_platform.registry.sqlite_file import open_database

NOW = datetime.now(UTC)
TOMORROW = NOW + timedelta(days=2)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def old(folder: Path) -> Path:
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(mode=0o700)
    (folder / "model.onnx").write_bytes(b"x")
    moment = (NOW - timedelta(days=3)).timestamp()
    os.utime(folder, (moment, moment))
    return folder


def test_old_private_folders_are_found_and_removed(place: Path, tmp_path: Path) -> None:
    mine = [old(place / "mlx-abc_1234"), old(tmp_path / "packages" / ".new-1")]
    old(place / "other")
    (place / "mlx-new").mkdir()

    found = stale_folders([tmp_path / "packages"], NOW)

    assert list(found) == mine
    for folder in found:
        remove_folder(folder)
        remove_folder(folder)
    assert stale_folders([tmp_path / "packages"], NOW) == ()
    assert {path.name for path in place.iterdir()} == {"other", "mlx-new"}


def test_the_work_of_somebody_is_no_leftover(place: Path) -> None:
    old(place / "mlx-my-models")
    old(place / "mlx-datasets").chmod(0o755)

    assert stale_folders([], NOW) == ()


def test_a_folder_that_cannot_be_removed_is_said(place: Path) -> None:
    folder = old(place / "mlx-abc_1234")
    (folder / "model.onnx").unlink()
    folder.rmdir()
    folder.write_bytes(b"")

    with pytest.raises(UnavailableError, match="mlx-abc_1234 cannot be removed: Not a directory"):
        remove_folder(folder)


def test_a_folder_in_which_a_process_works_is_left_alone(place: Path) -> None:
    folder = old(place / "mlx-abc_1234")

    with (folder / "model.onnx").open("rb"):
        assert stale_folders([], NOW) == ()

    assert stale_folders([], NOW) == (folder,)


def test_a_link_is_never_followed(place: Path, tmp_path: Path) -> None:
    old(tmp_path / "precious")
    (place / "mlx-link").symlink_to(tmp_path / "precious")

    assert stale_folders([tmp_path / "missing"], TOMORROW) == ()


def test_an_upload_that_became_no_version_is_found_once_it_is_old(project: Project) -> None:
    with open_database(project.database, timeout=10) as connection:
        (model,) = connection.execute(
            "SELECT substr(source, 9) FROM model_versions WHERE version = 2"
        ).fetchone()
        connection.execute("DELETE FROM model_version_tags WHERE version = 2")
        connection.execute("DELETE FROM model_versions WHERE version = 2")

    assert unfinished(project.database, timeout=10, now=NOW) == ()
    assert unfinished(project.database, timeout=10, now=TOMORROW) == (model,)

    project.catalog.doctor.discard(model)

    assert unfinished(project.database, timeout=10, now=TOMORROW) == ()
    assert not (project.folder / "mlx-artifacts" / "models" / model).exists()
    assert len(list((project.folder / "mlx-artifacts" / "models").iterdir())) == 2


def test_the_bytes_of_a_deleted_version_are_no_leftover(project: Project) -> None:
    project.catalog._backend.writer.delete_version("digits", 2)

    assert unfinished(project.database, timeout=10, now=TOMORROW) == ()


def test_a_file_without_these_tables_has_no_leftovers(tmp_path: Path) -> None:
    database = tmp_path / "old.db"
    sqlite3.connect(database).execute("CREATE TABLE alembic_version (version_num TEXT)")

    assert unfinished(database, timeout=1, now=NOW) == ()
