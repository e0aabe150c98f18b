import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from projects import Project
from support import clean_environment

from mlx_platform.core.errors import NotFoundError, UnavailableError, UsageError
from mlx_platform.registry import sqlite_write
from mlx_platform.registry.address import parse_address
from mlx_platform.registry.sqlite_write import SqliteWriter, sqlite_writer
from mlx_platform.registry.store import Store
from mlx_platform.registry.writer import Writer

TABLES = (
    "registered_models",
    "registered_model_tags",
    "registered_model_aliases",
    "model_versions",
    "model_version_tags",
)
NOW = 1_900_000_000_000


@pytest.fixture
def writer(project: Project) -> SqliteWriter:
    found = sqlite_writer(project.database, timeout=5)
    assert found is not None
    return found


def contents(database: Path) -> dict[str, set[tuple[Any, ...]]]:
    """Every row of the registry with the types that SQLite keeps, in the columns' order of that file."""
    connection = sqlite3.connect(database)
    found = {}
    for table in TABLES:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        typed = ", ".join(f"{column}, typeof({column})" for column in columns)
        found[table] = set(connection.execute(f"SELECT {typed} FROM {table}"))  # noqa: S608 - constants
    connection.close()
    return found


def edit(database: Path, script: str) -> None:
    connection = sqlite3.connect(database)
    connection.executescript(script)
    connection.close()


STEPS: dict[str, Callable[[Writer], object]] = {
    "a model": lambda writer: writer.ensure_model("new", tags={"a": "1", "b": ""}, description="what it is"),
    "a model without words": lambda writer: writer.ensure_model("new", tags={}, description=""),
    "a model that is there": lambda writer: writer.ensure_model("digits", tags={"a": "1"}, description="no"),
    "a version": lambda writer: writer.create_version(
        "digits", "models:/digits/2", tags={"mlx.event": "{}", "with space": "\u00e9\u2192\U0001f600"}
    ),
    "a version with words": lambda writer: writer.create_version(
        "digits", "s3://bucket/x", tags={}, description="why\nit is"
    ),
    "an alias": lambda writer: writer.set_alias("digits", "production", 2),
    "an alias that moves": lambda writer: writer.set_alias("digits", "held", 3),
    "an alias that stays": lambda writer: writer.set_alias("digits", "held", 1),
    "an alias that goes": lambda writer: writer.set_alias("digits", "held", None),
    "an alias that is not there and goes": lambda writer: writer.set_alias("digits", "nobody", None),
    "tags": lambda writer: writer.set_tags("digits", 1, {"mlx.label": "other", "new": ""}),
    "tags of a model": lambda writer: writer.set_model_tags("digits", {"mlx.journal.head": "1 ab", "n": "2"}),
    "a deletion": lambda writer: writer.delete_version("digits", 1),
    "a deletion of the newest": lambda writer: writer.delete_version("digits", 3),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_every_row_is_what_mlflow_would_have_written(
    step: Callable[[Writer], object], project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(
        project.database,
        "INSERT INTO registered_model_aliases (name, alias, version) VALUES ('digits', 'held', 1);"
        "UPDATE model_versions SET storage_location = NULL WHERE version = 2;",
    )
    theirs = shutil.copy(project.database, tmp_path / "theirs.db")
    ours = sqlite_writer(project.database, timeout=5)
    address = parse_address(f"sqlite:///{theirs}", tmp_path)
    monkeypatch.setattr(sqlite_write, "_now", lambda: NOW)
    monkeypatch.setattr("mlflow.store.model_registry.sqlalchemy_store.get_current_time_millis", lambda: NOW)
    before = contents(project.database)

    assert ours is not None
    assert step(ours) == step(Store(address, timeout=5, artifacts=str(tmp_path)))

    assert contents(project.database) == contents(theirs)
    assert (contents(project.database) == before) == (step in {STEPS[name] for name in UNCHANGED})


UNCHANGED = ("a model that is there", "an alias that stays", "an alias that is not there and goes")


def test_mlflow_goes_on_where_the_writer_stopped(project: Project, writer: SqliteWriter) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project.database}")
    numbers = []
    for _ in range(2):
        numbers.append(writer.create_version("digits", "models:/digits/1", tags={"by": "us"}))
        numbers.append(int(client.create_model_version("digits", "models:/digits/1").version))
    writer.delete_version("digits", numbers[-1])

    assert numbers == [4, 5, 6, 7]
    assert int(client.create_model_version("digits", "models:/digits/1").version) == 8
    assert writer.create_version("digits", "models:/digits/1", tags={}) == 9
    assert client.get_model_version("digits", "6").tags == {"by": "us"}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE model_versions ADD COLUMN approved INTEGER",
        "ALTER TABLE registered_models ADD COLUMN owner VARCHAR(10) NOT NULL DEFAULT 'x'",
        "ALTER TABLE model_versions DROP COLUMN storage_location",
        "DROP TABLE registered_model_aliases",
        "ALTER TABLE model_version_tags DROP COLUMN workspace",
        "DROP TABLE registered_model_tags; CREATE TABLE registered_model_tags (name, key, value, workspace)",
    ],
)
def test_tables_of_another_shape_are_left_to_mlflow(project: Project, change: str) -> None:
    edit(project.database, f"PRAGMA foreign_keys = OFF; {_loosened(project.database, change)}")

    assert sqlite_writer(project.database, timeout=5) is None


def _loosened(database: Path, change: str) -> str:
    # SQLite drops no column of a key: such a table is made again without it.
    if "DROP COLUMN workspace" not in change:
        return change
    return (
        "DROP TABLE model_version_tags; CREATE TABLE model_version_tags "
        "(name, version, key, value, PRIMARY KEY (key, name, version))"
    )


def test_a_registry_from_before_workspaces_can_be_written(tmp_path: Path) -> None:
    database = tmp_path / "old.db"
    edit(
        database,
        """
        CREATE TABLE registered_models (name, creation_time, last_updated_time, description,
            PRIMARY KEY (name));
        CREATE TABLE registered_model_tags (key, value, name, PRIMARY KEY (key, name));
        CREATE TABLE registered_model_aliases (alias, version, name, PRIMARY KEY (name, alias));
        CREATE TABLE model_versions (name, version, creation_time, last_updated_time, description, user_id,
            current_stage, source, run_id, status, status_message, run_link, storage_location,
            PRIMARY KEY (name, version));
        CREATE TABLE model_version_tags (key, value, name, version, PRIMARY KEY (key, name, version));
        """,
    )
    writer = sqlite_writer(database, timeout=5)
    assert writer is not None

    writer.ensure_model("m", tags={"t": "1"}, description="")
    number = writer.create_version("m", "s3://bucket/m", tags={"k": "v"})
    writer.set_alias("m", "production", number)

    found = contents(database)
    assert found["registered_model_aliases"] == {("production", "text", 1, "integer", "m", "text")}
    assert len(found["model_version_tags"]) == len(found["registered_model_tags"]) == 1


def test_what_is_not_there_is_not_found_and_nothing_is_written(
    project: Project, writer: SqliteWriter
) -> None:
    edit(project.database, "UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 3")
    before = contents(project.database)

    for act in (
        lambda: writer.create_version("nothing", "models:/digits/1", tags={}),
        lambda: writer.create_version("digits", "models:/digits/3", tags={}),
        lambda: writer.create_version("digits", "models:/digits/9", tags={}),
        lambda: writer.set_alias("digits", "production", 3),
        lambda: writer.set_alias("nothing", "production", None),
        lambda: writer.set_tags("digits", 9, {"a": "b"}),
        lambda: writer.set_model_tags("nothing", {"a": "b"}),
        lambda: writer.delete_version("digits", 3),
    ):
        with pytest.raises(NotFoundError):
            act()

    assert contents(project.database) == before


def test_a_prompt_is_no_model(project: Project, writer: SqliteWriter) -> None:
    writer.set_model_tags("digits", {"mlflow.prompt.is_prompt": "true"})

    for act in (
        lambda: writer.set_alias("digits", "production", 1),
        lambda: writer.create_version("digits", "models:/digits/1", tags={}),
        lambda: writer.set_tags("digits", 1, {"a": "b"}),
    ):
        with pytest.raises(NotFoundError):
            act()


@pytest.mark.parametrize(
    ("tags", "source"),
    [
        ({"": "v"}, "s3://b/x"),
        ({"k" * 251: "v"}, "s3://b/x"),
        ({"a\nb": "v"}, "s3://b/x"),
        ({"k;DROP": "v"}, "s3://b/x"),
        ({"k": "v" * 100_001}, "s3://b/x"),
        ({}, "s3://b/" + "x" * 500),
        ({}, "models:/digits@production"),
        ({}, "models:/m-" + "0" * 32),
    ],
)
def test_what_mlflow_would_not_keep_is_refused(
    project: Project, writer: SqliteWriter, tags: dict[str, str], source: str
) -> None:
    before = contents(project.database)

    with pytest.raises(UsageError):
        writer.create_version("digits", source, tags=tags)

    assert contents(project.database) == before


def test_hostile_text_stays_text(project: Project, writer: SqliteWriter) -> None:
    text = "'); DROP TABLE model_versions; --\x00\u202e"

    writer.set_tags("digits", 1, {"note": text})

    (row,) = project.anew().versions("digits", limit=3)[2:]
    assert row.tags["note"] == text


def test_a_locked_registry_is_unavailable_after_the_timeout(project: Project) -> None:
    writer = sqlite_writer(project.database, timeout=0.1)
    assert writer is not None
    other = sqlite3.connect(project.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(UnavailableError, match="locked"):
        writer.set_tags("digits", 1, {"a": "b"})

    other.close()
    writer.set_tags("digits", 1, {"a": "b"})


def test_a_reader_that_does_not_let_go_makes_a_write_fail_whole(project: Project) -> None:
    writer = sqlite_writer(project.database, timeout=0.1)
    assert writer is not None
    other = sqlite3.connect(project.database, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM model_versions").fetchall()

    with pytest.raises(UnavailableError, match="locked"):
        writer.create_version("digits", "models:/digits/1", tags={"a": "b"})
    other.close()

    assert writer.create_version("digits", "models:/digits/1", tags={"a": "b"}) == 4


def test_moves_on_the_command_line_do_without_mlflow(project: Project) -> None:
    script = (
        "import sys; from mlx_platform.cli.main import main\n"
        "reason = ('--reason', 'a test')\n"
        "for to in ('1', '2'):\n"
        "    assert main(['promote', f'digits/{to}', '--to', 'staging', '--override', 'all', *reason]) == 0\n"
        "assert main(['rollback', 'digits@staging', *reason]) == 0\n"
        "assert not {'mlflow', 'sqlalchemy', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert project.anew().holders("digits") == {"staging": 1}
