"""What the Tab key offers, asked in this process, as a process, and in real shells."""

import os
import pty
import re
import select
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from projects import Project
from support import LIGHT, clean_environment, packages_in

from mlx_platform.cli.completion import complete
from mlx_platform.cli.main import command_names, create_app
from mlx_platform.cli.shells import SHELLS, script

INSERT_ALIAS = "INSERT INTO registered_model_aliases (name, alias, version) VALUES"
MLX = Path(sys.executable).with_name("mlx")


@pytest.fixture
def registry(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project.catalog.move("digits", "production", 2, kind="promote", actor="x")
    project.catalog.move("digits", "staging", 3, kind="promote", actor="x")
    monkeypatch.chdir(project.folder)
    return project


def offered(*words: str) -> list[str]:
    return [word for word, _ in complete(words[:-1], words[-1]).proposals]


def meaning(*words: str) -> str:
    return dict(complete(words[:-1], words[-1]).proposals)[words[-1]]


def test_commands_come_with_what_they_do() -> None:
    tops = {name.partition(" ")[0] for name in command_names(create_app())}

    assert set(offered("")) >= tops
    assert offered("res") == ["resolve"]
    assert meaning("resolve") == "Say which version a reference means."
    assert set(offered("doctor", "")) == {"registry", "package", "--help"}
    assert offered("nonsense", "") == offered("doctor", "nonsense", "") == []
    assert offered("--show-completion", "b") == ["bash"]


@pytest.mark.parametrize("name", command_names(create_app()))
def test_every_option_of_every_command_is_offered_with_its_help(name: str) -> None:
    answer = dict(complete(name.split(), "--").proposals)

    assert {"--json", "--registry", "--help"} <= answer.keys()
    assert all(answer.values())


def test_an_option_is_offered_once_unless_it_repeats() -> None:
    assert "--json" not in offered("show", "digits/1", "--json", "--")
    assert "--reason" not in offered("promote", "digits/1", "--reason", "x", "--")
    assert "--override" in offered("promote", "digits/1", "--override", "all", "--")


def test_references_are_aliases_numbers_and_labels(registry: Project) -> None:
    label = registry.catalog.resolve("digits/2").label

    assert offered("show", "dig") == [
        "digits@production",
        "digits@staging",
        "digits/3",
        "digits/2",
        "digits/1",
    ]
    assert offered("show", "digits@p") == ["digits@production"]
    assert meaning("show", "digits@production") == "version 2"
    assert offered("show", "digits/") == ["digits/3", "digits/2", "digits/1"]
    assert re.fullmatch(r"production, \d{4}-\d\d-\d\d", meaning("show", "digits/2"))
    assert offered("show", label) == [label]
    assert offered("show", "--json", "digits@s") == ["digits@staging"]
    assert offered("diff", "digits/1", "digits@s") == ["digits@staging"]


def test_of_several_models_the_name_is_chosen_first(registry: Project) -> None:
    registry.catalog.register("digits-small", registry.variant("small"), _lineage())

    answer = complete(["show"], "dig")

    assert [word for word, _ in answer.proposals] == [
        "digits@",
        "digits/",
        "digits-small@",
        "digits-small/",
    ]
    assert answer.partial
    assert offered("show", "digits-small") == ["digits-small/1"]
    assert offered("history", "dig") == ["digits", "digits-small"]


def _lineage():
    from mlx_platform.registry.version import Lineage

    return Lineage()


def test_values_fit_the_option_and_the_model_that_was_named(registry: Project) -> None:
    assert offered("promote", "digits/1", "--to", "") == ["staging", "production"]
    assert meaning("promote", "digits/1", "--to", "production") == "now version 2"
    assert offered("promote", "digits/1", "--to=st") == ["--to=staging"]
    assert offered("diff", "digits/1", "digits/2", "--only", "m") == ["metrics"]
    assert offered("promote", "digits/1", "--expect", "") == ["none", "3", "2", "1"]
    assert "evaluation" in offered("promote", "digits/1", "--to", "production", "--override", "")
    assert "evaluation" not in offered("promote", "digits/1", "--to", "staging", "--override", "")
    assert offered("register", "x", "m.onnx", "--if-exists", "") == ["reuse", "fail"]
    assert offered("drift", "--fail-on", "w") == ["warn"]


@pytest.mark.parametrize(
    "words",
    [
        ("register", "digits", ""),
        ("eval", "digits/1", "--data", ""),
        ("drift", "--traffic", ""),
        ("list", "--config=", ""),
        ("eval", "models/fir"),
    ],
)
def test_files_are_left_to_the_shell(words: tuple[str, ...], registry: Project) -> None:
    if words[-1] == "" and words[-2].endswith("="):
        words = (*words[:-2], words[-2])

    assert complete(words[:-1], words[-1]).files


def test_the_registry_of_the_line_counts(registry: Project, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'none.db'}"

    assert offered("show", "--registry", elsewhere, "dig") == []
    assert offered("show", f"--registry=sqlite:///{registry.database}", "dig") != []


def run(*words: str, cwd: Path, of: str = "zsh", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [MLX, *words],
        cwd=cwd,
        env=clean_environment(_MLX_COMPLETE=of, **environment),
        capture_output=True,
        check=False,
        timeout=30,
    )


def assert_silent(done: subprocess.CompletedProcess[bytes]) -> None:
    assert (done.returncode, done.stderr) == (0, b"")


def test_hostile_names_never_reach_the_shell(registry: Project) -> None:
    with closing(sqlite3.connect(registry.database)) as connection, connection:
        for name in (
            "digits$(touch pwned)",
            "digits`x`",
            "digits;rm",
            "digits\x1b[2J",
            "../digits",
            "di gits",
        ):
            connection.execute("INSERT INTO registered_models (name) VALUES (?)", (name,))
        for alias in ("$(touch pwned)", "a b", "x\ny"):
            connection.execute(
                "INSERT INTO registered_model_aliases (name, alias, version) VALUES ('digits', ?, 1)",
                (alias,),
            )
        connection.execute("UPDATE model_versions SET description = '$(touch pwned)' WHERE name = 'digits'")
    done = [run("show", current, cwd=registry.folder) for current in ("", "digits@", "digits/", "dig")]

    for each in done:
        assert_silent(each)
        assert re.fullmatch(rb"(word\t[\w@/.-]+\t[\w ,-]*\n)+(partial\t-\t\n)?", each.stdout)
    assert not (registry.folder / "pwned").exists()


def test_a_missing_broken_or_locked_registry_has_nothing_to_say(registry: Project, tmp_path: Path) -> None:
    missing = run("show", "", cwd=tmp_path)
    (tmp_path / "mlx.toml").write_text("[registry]\nuri = 'sqlite:///broken.db'\n")
    (tmp_path / "broken.db").write_bytes(b"nothing of the kind" * 100)
    broken = run("show", "", cwd=tmp_path)
    (tmp_path / "mlx.toml").write_text("[registri]\n")
    wrong = run("show", "", cwd=tmp_path)
    with closing(sqlite3.connect(registry.database)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        locked = run("show", "", cwd=registry.folder)
        took = time.monotonic() - began

    for done in (missing, broken, wrong, locked):
        assert_silent(done)
        assert done.stdout == b""
    assert took < 10  # the command itself would wait as long as the settings say


def test_a_server_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = run("promote", "digits/1", "--registry", uri, "--to", "", cwd=tmp_path)
        options = run("promote", "digits/1", "--registry", uri, "--dry", cwd=tmp_path)

    assert_silent(done)
    assert done.stdout == b""
    assert options.stdout.startswith(b"word\t--dry-run\t")


def test_a_database_is_not_asked_because_mlflow_takes_seconds(tmp_path: Path) -> None:
    done = run("show", "--registry", "postgresql://u:p@127.0.0.1:1/x", "", cwd=tmp_path)

    assert_silent(done)
    assert done.stdout == b""


@pytest.mark.parametrize("line", ["", " ", "mlx", "mlx 'a", 'mlx "', "mlx \\", "mlx show \x00", "mlx \udcff"])
def test_a_line_that_makes_no_sense_is_answered_with_silence(line: str, tmp_path: Path) -> None:
    environment = {"_MLX_LINE": line.replace("\x00", ""), "_MLX_WORD": ""}

    assert_silent(run(cwd=tmp_path, of="bash", **environment))


def test_an_answer_loads_nothing_beside_typer(registry: Project) -> None:
    script_text = (
        "import sys; from mlx_platform.cli.completion import complete;"
        "answer = complete(['show'], 'digits@'); print(len(answer.proposals), *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script_text], capture_output=True, text=True, check=True)
    found, *modules = done.stdout.split()

    assert found == "2"
    assert packages_in(modules) <= LIGHT


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        environment = clean_environment(
            PATH=f"{MLX.parent}:{os.environ['PATH']}", TERM="xterm", HOME=str(folder), PS1="", FISH_HISTORY=""
        )
        self._process, self._handle = pty.fork()
        if self._process == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)  # noqa: S606 - the shell itself is the test

    def send(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def until(self, pattern: str, seconds: float = 30) -> str:
        """What it printed up to this pattern."""
        text, end = "", time.monotonic() + seconds
        while not re.search(pattern, text):
            assert time.monotonic() < end, text
            if select.select([self._handle], [], [], 0.2)[0]:
                text += os.read(self._handle, 65536).decode(errors="replace")
        return text

    def close(self) -> None:
        os.kill(self._process, 9)
        os.waitpid(self._process, 0)
        os.close(self._handle)


START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}


@contextmanager
def shell_with_completion(shell: str, folder: Path) -> Iterator[Terminal]:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (folder / "completion").write_text(script(shell))
    terminal = Terminal(START[shell], folder)
    try:
        terminal.send("source ./completion && echo REA''DY\n")
        terminal.until("READY")
        yield terminal
    finally:
        terminal.close()


COMPLETED = {
    "mlx resol": "[mlx][resolve]",
    "mlx resolve digits@pro": "[mlx][resolve][digits@production]",
    "mlx resolve 'digits@pro": "[mlx][resolve][digits@production]",
    "mlx resolve digits/": "[mlx][resolve][digits/1]",
    "mlx promote digits/1 --to=pro": "[mlx][promote][digits/1][--to=production]",
    "mlx promote digits/1 --to pro": "[mlx][promote][digits/1][--to][production]",
    "mlx list --no-c": "[mlx][list][--no-color]",
    "mlx register digits model-o": "[mlx][register][digits][model-only.onnx]",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_a_real_shell(shell: str, project: Project) -> None:
    with closing(sqlite3.connect(project.database)) as connection, connection:
        connection.execute("DELETE FROM model_version_tags WHERE version > 1")
        connection.execute("DELETE FROM model_versions WHERE version > 1")
        connection.execute(f"{INSERT_ALIAS} ('digits', 'production', 1)")
    (project.folder / "model-only.onnx").touch()

    with shell_with_completion(shell, project.folder) as terminal:
        for number, typed in enumerate(COMPLETED):
            # Keys wait until the completion is done. What the line has become is printed word by word then.
            terminal.send(f"{typed}\t\x01printf '[%s]' \x05; echo EN''D{number}\n")
            shown = terminal.until(rf"\]END{number}")
            plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
            assert f"{COMPLETED[typed]}END{number}" in plain


def test_only_what_a_rollback_may_go_to_is_offered_best_first(registry: Project) -> None:
    registry.catalog.move("digits", "production", 1, kind="promote", actor="x")
    registry.catalog.move("digits", "production", 3, kind="promote", actor="x")

    assert offered("rollback", "digits", "--to", "") == ["1", "2"]
    assert offered("rollback", "digits@staging", "--to", "") == []
    assert "digits@staging" in offered("rollback", "digits@")


def test_every_form_of_a_reference_is_offered(registry: Project) -> None:
    assert offered("show", "digits:") == ["digits:3", "digits:2", "digits:1"]
    assert offered("show", "models:/digits/") == ["models:/digits/3", "models:/digits/2", "models:/digits/1"]
    assert offered("diff", "digits/1", "digits@p") == ["digits@production"]
    assert offered("register", "x", "models:/digits@s") == ["models:/digits@staging"]


def test_fields_are_offered_one_by_one(registry: Project) -> None:
    assert offered("show", "digits/2", "--fields", "dig") == ["digest"]
    assert offered("show", "digits@production", "--fields", "digest,params.") == ["digest,params.lr"]
