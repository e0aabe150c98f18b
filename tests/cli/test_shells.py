import subprocess
import sys
from pathlib import Path

import pytest
from support import RunCommand

from mlx_platform.cli.shells import (
    SHELLS,
    Answer,
    current_shell,
    install,
    script,
    show,
    split_line,
    typed_words,
)
from mlx_platform.core.errors import UsageError

MLX = Path(sys.executable).with_name("mlx")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [""]),
        ("mlx", ["mlx"]),
        ("mlx ", ["mlx", ""]),
        ("  mlx   show digits@pro", ["mlx", "show", "digits@pro"]),
        ("mlx --reason 'two words", ["mlx", "--reason", "two words"]),
        ("mlx --reason 'two words' ", ["mlx", "--reason", "two words", ""]),
        ('mlx "a \\" b"c', ["mlx", 'a " bc']),
        ("mlx a\\ b '' ", ["mlx", "a b", "", ""]),
        ("mlx 'a\\", ["mlx", "a\\"]),
    ],
)
def test_a_line_is_split_as_a_shell_splits_it(line: str, words: list[str]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize(
    ("line", "word", "kept"),
    [
        ("mlx show digits@pro", "pro", 7),
        ("mlx show digits@", "", 7),
        ("mlx show 'digits@pro", "'digits@pro", 0),
        ("mlx show digits", "digits", 0),
        ("mlx promote x --to=pro", "pro", 5),
        ("mlx show digits@pro", "something else", 0),
    ],
)
def test_bash_replaces_only_what_is_behind_its_own_word_breaks(line: str, word: str, kept: int) -> None:
    words, current, cut = typed_words("bash", {"_MLX_LINE": line, "_MLX_WORD": word}, [])

    assert cut == kept
    assert [*words, current] == split_line(line)[1:]


def test_a_choice_is_explained_and_a_single_word_is_inserted_as_it_is() -> None:
    two = Answer((("digits@a", "version 1"), ("digits@bc", "")))
    one = Answer((("digits@a", "version 1"),))

    assert show("bash", two, 7, {}) == "word\ta   (version 1)\nword\tbc\n"
    assert show("bash", two, 7, {"_MLX_TYPE": "37"}) == "word\ta\nword\tbc\n"
    assert show("bash", one, 7, {}) == "word\ta\n"
    assert show("zsh", two, 0, {}) == "word\tdigits@a\tversion 1\nword\tdigits@bc\t\n"
    assert show("fish", Answer((), files=True, partial=True), 0, {}) == "partial\t-\t\nfiles\t-\t\n"


@pytest.mark.parametrize(
    "word", ["$(x)", "`x`", "a b", "a;b", "a\nb", "a\tb", "\x1b", "'", '"', "", "x" * 301, "é"]
)
def test_a_word_that_means_something_to_a_shell_is_never_shown(word: str) -> None:
    assert show("zsh", Answer(((word, "meaning"),)), 0, {}) == ""
    assert show("bash", Answer(((word, "meaning"), ("fine", ""))), 0, {}) == "word\tfine\n"


def test_a_meaning_stays_on_its_line_and_holds_nothing_that_a_shell_would_run() -> None:
    shown = show("fish", Answer((("a", "x\ty\nz $(rm) `rm` \x1b[2J" + "w" * 200),)), 0, {})

    assert shown.count("\n") == 1
    assert shown.count("\t") == 2
    assert not set("`$\x1b") & set(shown)
    assert len(shown) < 100


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_evaluates_nothing(shell: str) -> None:
    assert "eval" not in script(shell).split()
    assert "2>/dev/null" in script(shell)


def test_the_bash_script_is_one_that_bash_reads() -> None:
    subprocess.run(["bash", "-n"], input=script("bash"), text=True, check=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_installing_twice_changes_nothing_the_second_time(shell: str, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    (tmp_path / ".bashrc").write_bytes(b"alias x=y\xff")
    (tmp_path / ".bashrc").chmod(0o600)
    written = install(shell, home)

    assert any(path.read_text(errors="replace") == script(shell) for path in written)
    assert install(shell, home) == []
    if shell == "bash":
        start_up = (tmp_path / ".bashrc").read_bytes().splitlines()
        assert start_up[0] == b"alias x=y\xff"
        assert len(start_up) == 2
        assert (tmp_path / ".bashrc").stat().st_mode & 0o777 == 0o600


def test_a_start_up_file_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "zshrc").write_text("")
    (tmp_path / ".zshrc").symlink_to("dotfiles/zshrc")

    install("zsh", {"HOME": str(tmp_path)})

    assert (tmp_path / ".zshrc").is_symlink()
    assert "completion.zsh" in (tmp_path / "dotfiles" / "zshrc").read_text()


def test_the_options_print_or_install_the_script_of_the_shell_that_is_named(
    mlx: RunCommand, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)

    assert mlx("--show-completion", "fish").out == script("fish")
    assert mlx("--install-completion", "fish").code == 0
    assert (own_home / ".config" / "fish" / "completions" / "mlx.fish").read_text() == script("fish")
    assert "was there already" in mlx("--install-completion", "fish").out
    refused = mlx("--show-completion", "tcsh")
    assert refused.code == 2
    assert "bash, zsh, fish" in refused.err


def test_the_shell_that_called_is_found_and_else_the_users_own(tmp_path: Path) -> None:
    found = subprocess.run(
        ["bash", "-c", f"{MLX} --show-completion; true"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert found.stdout == script("bash")
    assert current_shell({"SHELL": "/bin/zsh"}) in SHELLS
    with pytest.raises(UsageError, match="not clear"):
        script("")
