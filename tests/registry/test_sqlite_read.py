import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from projects import Project

from mlx_platform.core.errors import IntegrityError, NotFoundError, UnavailableError
from mlx_platform.registry.sqlite_read import SqliteReader


@pytest.fixture
def reader(project: Project) -> SqliteReader:
    return SqliteReader(project.database, timeout=5)


def edit(project: Project, statement: str) -> None:
    connection = sqlite3.connect(project.database)
    with connection:
        connection.execute(statement)
    connection.close()


def test_what_a_killed_writer_left_is_rolled_back_by_the_next_reader(
    project: Project, reader: SqliteReader
) -> None:
    script = (
        "import os, signal, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size = 1')\n"
        "connection.execute('BEGIN')\n"
        "connection.execute('UPDATE model_version_tags SET value = hex(zeroblob(5000))')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(project.database)], check=False)
    assert project.database.with_name("mlx.db-journal").stat().st_size > 0

    (row,) = reader.rows("digits", numbers=(1,))

    assert row.tags["mlx.digest"] == project.package(1).digest


def test_a_reader_writes_nothing(project: Project, reader: SqliteReader) -> None:
    before = project.database.read_bytes()

    reader.names(), reader.rows("digits"), reader.aliases("digits"), reader.location("digits", 1)

    assert project.database.read_bytes() == before
    with reader._connect() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM model_versions")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_file_that_cannot_be_written_can_be_read(project: Project, reader: SqliteReader) -> None:
    project.database.chmod(0o400)

    assert reader.names() == ("digits",)


def test_deleted_and_unfinished_versions_are_not_there(project: Project, reader: SqliteReader) -> None:
    edit(project, "UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 1")
    edit(project, "UPDATE model_versions SET status = 'PENDING_REGISTRATION' WHERE version = 2")

    assert [row.number for row in reader.rows("digits")] == [3]
    assert reader.count("digits") == 1
    assert reader.location("digits", 1) == ""


def test_other_workspaces_are_not_looked_into(project: Project, reader: SqliteReader) -> None:
    edit(project, "UPDATE model_versions SET workspace = 'theirs' WHERE version = 1")

    assert [row.number for row in reader.rows("digits")] == [3, 2]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE model_versions SET creation_time = 'noon'",
        "UPDATE model_versions SET creation_time = 9e999",
    ],
)
def test_values_of_the_wrong_type_are_an_integrity_error(
    project: Project, reader: SqliteReader, statement: str
) -> None:
    edit(project, statement)

    with pytest.raises(IntegrityError):
        reader.rows("digits")


def test_bytes_that_are_no_text_are_read_as_text(project: Project, reader: SqliteReader) -> None:
    edit(project, "UPDATE model_version_tags SET value = CAST(x'ff41' AS TEXT) WHERE key = 'mlx.task'")

    assert reader.rows("digits")[0].tags["mlx.task"] == "\ufffdA"


def test_an_empty_file_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "mlx.db").touch()

    with pytest.raises(NotFoundError):
        SqliteReader(tmp_path / "mlx.db", timeout=1).understands()


def test_a_registry_without_workspaces_is_understood(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "mlx.db")
    connection.executescript(
        """
        CREATE TABLE registered_models (name, creation_time);
        CREATE TABLE registered_model_tags (name, key, value);
        CREATE TABLE registered_model_aliases (name, alias, version);
        CREATE TABLE model_versions (name, version, creation_time, current_stage, source, storage_location,
            run_id, status, description);
        CREATE TABLE model_version_tags (name, version, key, value);
        INSERT INTO registered_models VALUES ('old', 0);
        INSERT INTO model_versions VALUES ('old', 1, 0, 'None', 's', NULL, 'r', 'READY', NULL);
        INSERT INTO model_version_tags VALUES ('old', 1, 'k', 'v');
        INSERT INTO registered_model_aliases VALUES ('old', 'champion', 1);
        """
    )
    connection.close()
    reader = SqliteReader(tmp_path / "mlx.db", timeout=1)

    assert reader.understands()
    assert reader.names() == ("old",)
    assert reader.rows("old")[0].tags == {"k": "v"}
    assert reader.aliases("old") == {"champion": 1}
    assert reader.location("old", 1) == "s"


def test_a_locked_file_is_unavailable_after_the_timeout(project: Project) -> None:
    connection = sqlite3.connect(project.database, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")

    with pytest.raises(UnavailableError, match="locked"):
        SqliteReader(project.database, timeout=0.1).names()

    connection.close()
