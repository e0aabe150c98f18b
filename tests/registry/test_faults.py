"""A registry that is locked, full, read-only, damaged, or another MLflow's: one sentence, and no harm."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from disks import small_disk
from projects import Project, copy_project
from support import Outcome, RunCommand, clean_environment

PROMOTE = ("promote", "digits/2", "--to", "staging", "--override", "all", "--reason", "a test")
READING = [
    ("list",),
    ("list", "digits"),
    ("show", "digits/1"),
    ("history", "digits"),
    ("resolve", "digits/1"),
]


def said(outcome: Outcome, code: int) -> str:
    """What a failure says, which has to be one sentence and perhaps a hint."""
    assert outcome.code == code, (outcome.out, outcome.err)
    assert outcome.out == ""
    sentence, *hints = outcome.err.splitlines()
    assert sentence.startswith("error: ")
    assert "Traceback" not in outcome.err
    assert "unexpected" not in outcome.err
    assert len(hints) <= 2
    return sentence


@contextmanager
def held(database: Path, mode: str) -> Iterator[None]:
    """A lock of another program on a database."""
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('BEGIN ' + sys.argv[2]); print('locked', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(database), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    try:
        yield
    finally:
        process.communicate()


def edit(project: Project, script: str) -> None:
    connection = sqlite3.connect(project.database)
    connection.executescript(script)
    connection.close()


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project, with the working folder in it and little patience."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("MLX_REGISTRY_TIMEOUT", "0.2")
    return project


@pytest.mark.parametrize("command", [*READING, PROMOTE, ("register", "digits", "model-1.onnx")])
def test_a_locked_registry_is_waited_for_only_so_long(
    here: Project, mlx: RunCommand, command: tuple[str, ...]
) -> None:
    before = here.database.read_bytes()

    with held(here.database, "EXCLUSIVE"):
        assert "locked by another program" in said(mlx(*command), 9)

    assert here.database.read_bytes() == before


def test_whoever_only_writes_does_not_keep_readers_out(here: Project, mlx: RunCommand) -> None:
    with held(here.database, "IMMEDIATE"):
        assert mlx("list", "digits").code == 0
        assert "locked" in said(mlx(*PROMOTE), 9)

    assert mlx(*PROMOTE).code == 0


@pytest.mark.parametrize("command", [*READING, PROMOTE, ("register", "digits", "model-1.onnx")])
@pytest.mark.parametrize(
    ("damage", "code"),
    [("folder", 2), ("garbage", 9), ("cut short", 10), ("zeros inside", 10)],
)
def test_a_file_that_is_no_registry_is_named_and_left_alone(
    here: Project, mlx: RunCommand, command: tuple[str, ...], damage: str, code: int
) -> None:
    content = here.database.read_bytes()
    here.database.unlink()
    if damage == "folder":
        here.database.mkdir()
    elif damage == "garbage":
        here.database.write_bytes(b"this is no database, whatever its name says " * 100)
    elif damage == "cut short":
        here.database.write_bytes(content[: len(content) // 3])
    else:
        here.database.write_bytes(content[:4096] + bytes(len(content) - 4096))
    before = None if here.database.is_dir() else here.database.read_bytes()

    assert str(here.database) in said(mlx(*command), code)

    assert (None if here.database.is_dir() else here.database.read_bytes()) == before


def unprivileged(*command: str, cwd: Path, limit: int | None = None) -> Outcome:
    """Run a command that permissions apply to, also for root; with `limit` no file grows beyond it."""
    root = os.geteuid() == 0
    powers = "-dac_override,-dac_read_search"
    prefix = ["setpriv", "--bounding-set", powers, "--inh-caps", powers] if root else []
    if limit is not None:
        prefix += ["prlimit", f"--fsize={limit}"]
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "mlx_platform.cli", *command],
        cwd=cwd,
        env=clean_environment(MLX_CACHE_DIR=str(cwd.parent / "cache")),
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_a_read_only_folder_can_be_read_and_refuses_writes(project: Project) -> None:
    before = project.database.read_bytes()
    project.database.chmod(0o400)
    project.folder.chmod(0o500)
    try:
        assert unprivileged("list", "digits", "--json", cwd=project.folder).code == 0
        assert unprivileged("resolve", "digits/1", cwd=project.folder).code == 0
        refused = said(unprivileged(*PROMOTE, cwd=project.folder), 9)
    finally:
        project.folder.chmod(0o700)

    assert "cannot be written" in refused
    assert project.database.read_bytes() == before


@pytest.mark.parametrize(
    "command", [PROMOTE, ("register", "digits", "new.onnx")], ids=["promote", "register"]
)
def test_a_full_disk_changes_nothing_and_room_helps(
    template: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    size = sum(path.stat().st_size for path in template.rglob("*") if path.is_file())
    with small_disk(tmp_path / "disk", size + (2 << 20)) as mounted:
        project = copy_project(template, tmp_path / "disk" / "project")
        shutil.copy(Path(__file__).parents[1] / "projects.py", project.folder / "new.onnx")
        _write_other_model(project.folder / "new.onnx")
        before = [version.number for version in project.catalog.versions("digits")]
        # Where no file system can be made, no file may grow: what SQLite must write first is its journal.
        filler = project.folder / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while mounted:
                file.write(bytes(512))

        refused = said(unprivileged(*command, cwd=project.folder, limit=None if mounted else 0), 9)

        filler.unlink()
        assert "disk" in refused or "space" in refused or "large" in refused
        assert project.anew().holders("digits") == {}
        assert [version.number for version in project.anew().versions("digits")] == before
        assert project.anew().journal("digits").events == ()
        assert unprivileged(*command, cwd=project.folder).code == 0


def _write_other_model(path: Path) -> None:
    from projects import write_network

    path.unlink()
    write_network(path, 7.0)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE alembic_version SET version_num = 'ffffffffffff'",
        "UPDATE alembic_version SET version_num = 'f';ALTER TABLE model_versions ADD COLUMN approved INTEGER",
        "UPDATE alembic_version SET version_num = '0584bdc529eb'",
    ],
    ids=["newer", "newer with a column", "older"],
)
def test_a_registry_of_another_mlflow_is_read_and_what_needs_mlflow_says_so(
    here: Project, mlx: RunCommand, change: str
) -> None:
    edit(here, change)
    before = here.database.read_bytes()

    assert mlx("list", "digits", "--json").code == 0
    outcome = mlx("register", "digits", "model-1.onnx", "--if-exists", "fail")

    assert "another version of MLflow" in said(outcome, 9)
    assert "mlflow db upgrade" in outcome.err
    assert here.database.read_bytes() == before
    if "approved" in change:
        assert "another version of MLflow" in said(mlx(*PROMOTE), 9)
    else:
        assert mlx(*PROMOTE).code == 0  # the tables are those that are known


def test_tables_that_are_not_there_are_an_error_in_one_sentence(here: Project, mlx: RunCommand) -> None:
    edit(here, "DROP TABLE registered_model_aliases")

    said(mlx(*PROMOTE), 9)
