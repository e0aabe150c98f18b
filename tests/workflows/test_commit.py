import subprocess
from pathlib import Path

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.workflows.commit import commit_of


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text("1\n")
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "Train"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def test_the_commit_that_is_checked_out_is_found_from_any_folder_in_it(repository: Path) -> None:
    (repository / "sub").mkdir()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True
    )

    assert commit_of("auto", repository) == head.stdout.strip()
    assert commit_of("auto", repository / "sub") == head.stdout.strip()


def test_files_that_differ_from_the_commit_are_marked(repository: Path) -> None:
    (repository / "train.py").write_text("2\n")

    assert commit_of("auto", repository).endswith("+dirty")


def test_a_hash_is_taken_as_it_is() -> None:
    assert commit_of("ABCDEF1", Path()) == "abcdef1"
    assert commit_of("", Path()) == ""


@pytest.mark.parametrize("text", ["main", "abc", "abcdef1\n", "--upload-pack=x", "g" * 40])
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        commit_of(text, Path())


def test_without_a_repository_auto_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    with pytest.raises(UsageError) as caught:
        commit_of("auto", tmp_path)

    assert "--git-commit" in caught.value.hint
