import subprocess
import sys
from pathlib import Path

import pytest

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.core.files import file_lock, recover_folders, staged, staged_folder, write_atomic


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomic(path, "first")
    write_atomic(path, b"second")

    assert path.read_bytes() == b"second"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_a_target_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(UsageError, match="Cannot write"):
        write_atomic(tmp_path / "folder", "text")

    assert list((tmp_path / "folder").iterdir()) == []
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".folder")] == []


def test_a_staged_file_takes_its_place_only_when_the_body_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail() -> None:
        with staged(path, "new"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    with staged(path, "new"):
        assert path.read_text() == "old"

    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir() if "file" in entry.name] == ["file.txt"]


_HOLD_AND_DIE = """
import os, sys
from pathlib import Path
from mlx_platform.core.files import file_lock, recover_folders, staged, staged_folder, write_atomic

with file_lock(Path(sys.argv[1]), timeout=10, purpose="testing"):
    print("held", flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_lock_is_exclusive(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        file_lock(path, timeout=1, purpose="testing"),
        pytest.raises(UnavailableError, match="still migrating"),
        file_lock(path, timeout=0.05, purpose="migrating"),
    ):
        pass


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    done = subprocess.run([sys.executable, "-c", _HOLD_AND_DIE, path], capture_output=True, check=False)

    assert (done.stdout, done.returncode) == (b"held\n", -9)
    with file_lock(path, timeout=1, purpose="testing"):
        pass


def test_a_staged_folder_takes_the_place_of_another_as_a_whole(tmp_path):
    target = tmp_path / "nights" / "one"
    for text in ("first", "second"):
        with staged_folder(target) as folder:
            (folder / "report").write_text(text)
            assert not target.exists() or (target / "report").read_text() == "first"

    assert (target / "report").read_text() == "second"
    assert list(target.parent.iterdir()) == [target]


def test_a_folder_that_was_not_finished_leaves_the_one_before_as_it_was(tmp_path):
    target = tmp_path / "nights" / "one"
    with staged_folder(target) as folder:
        (folder / "report").write_text("whole")
    with pytest.raises(OSError, match="directory"), staged_folder(target) as folder:
        (folder / "report" / "half").write_text("half")

    assert (target / "report").read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_what_killed_writers_left_is_taken_away_and_what_they_moved_aside_put_back(tmp_path):
    nights = tmp_path / "nights"
    (nights / ".a.x1" / "old").mkdir(parents=True)
    (nights / ".a.x1" / "old" / "report").write_text("whole")
    (nights / ".b.x2" / "new").mkdir(parents=True)

    recover_folders(nights)

    assert [path.name for path in nights.iterdir()] == ["a"]
    assert (nights / "a" / "report").read_text() == "whole"


def test_who_is_refused_a_lock_is_told_who_holds_it_and_the_next_holder_says_its_own_name(tmp_path):
    path = tmp_path / "lock"
    for holder in ("a very long name of somebody", "short"):
        with (
            file_lock(path, timeout=0, purpose="working", holder=holder),
            pytest.raises(UnavailableError, match=f"still working: {holder}[.]"),
            file_lock(path, timeout=0, purpose="working"),
        ):
            pass
