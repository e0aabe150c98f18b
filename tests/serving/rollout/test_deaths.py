import fcntl
import os
import signal
import subprocess
import sys
import time

from mlx_platform.serving.rollout.deaths import Marks

_HOLDER = """
import sys, time
from pathlib import Path
from mlx_platform.serving.rollout.deaths import Marks
marks = Marks(Path(sys.argv[1]), sys.argv[2])
marks.set("r1", 2)
print("set", flush=True)
sys.stdin.readline()
marks.touch()
print("touched", flush=True)
sys.stdin.readline()
marks.clear()
"""


class _Holder:
    def __init__(self, folder, owner):
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(folder), owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == b"set\n"

    def touch(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"touched\n"

    def end(self, number=None):
        if number is None:
            self.process.communicate(b"\n")
        else:
            self.process.send_signal(number)
            self.process.communicate()


def test_processes_that_died_one_after_the_other_count(tmp_path):
    marks = Marks(tmp_path, "reader")
    first = _Holder(tmp_path, "a")
    assert marks.deaths("r1", 2) == 0  # it is there
    assert not marks.died("r1", 2, "a")
    first.end(signal.SIGKILL)
    assert marks.deaths("r1", 2) == 1
    assert marks.deaths("r1", 3) == 0
    assert marks.died("r1", 2, "a")
    assert not marks.died("r1", 2, "b")
    second = _Holder(tmp_path, "b")
    assert marks.deaths("r1", 2) == 1
    second.end(signal.SIGKILL)
    assert marks.deaths("r1", 2) == 2


def test_processes_that_died_beside_each_other_are_one_death(tmp_path):
    holders = [_Holder(tmp_path, name) for name in "ab"]
    for holder in holders:
        holder.touch()
        holder.end(signal.SIGKILL)
    assert Marks(tmp_path, "reader").deaths("r1", 2) == 1


def test_a_process_that_lets_go_leaves_nothing(tmp_path):
    holder = _Holder(tmp_path, "a")
    holder.touch()
    holder.end()
    assert Marks(tmp_path, "reader").deaths("r1", 2) == 0


def test_a_mark_follows_the_step(tmp_path):
    folder = tmp_path / "marks"
    marks = Marks(folder, "host-1")
    marks.set("r1", 1)
    marks.set("r1", 2)
    marks.set("r1", 2)
    held = [path for path in folder.rglob("*") if path.is_file()]
    assert [path.parent.name for path in held] == ["r1.2"]
    marks.forget("r1")
    assert not list(folder.iterdir())


def test_a_disk_that_cannot_be_written_stops_nobody(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    marks = Marks(tmp_path / "file", "a")
    marks.set("r1", 1)
    marks.touch()
    assert marks.deaths("r1", 1) == 0
    assert "Cannot mark" in caplog.text


def test_a_file_that_is_no_mark_is_a_death_at_its_time(tmp_path):
    folder = tmp_path / "r1.1"
    folder.mkdir()
    (folder / "old").write_text("nonsense")
    os.utime(folder / "old", (time.time() - 60,) * 2)
    assert Marks(tmp_path, "a").deaths("r1", 1) == 1


def test_what_is_kept_is_one_mark_and_nothing_of_what_is_over(tmp_path):
    folder = tmp_path / "marks"
    marks = Marks(folder, "host-1")
    marks.keep(("r1", 1))
    (mark,) = (folder / "r1.1").iterdir()
    os.utime(mark, (5, 5))
    marks.keep(("r1", 1))
    assert mark.stat().st_mtime > 5  # still there
    marks.keep(("r2", 0), {"r1"})
    assert [path.name for path in folder.iterdir()] == ["r2.0"]
    marks.keep(None)
    assert not list((folder / "r2.0").iterdir())


def test_two_who_look_at_once_see_the_same(tmp_path):
    holder = _Holder(tmp_path, "a")
    holder.end(signal.SIGKILL)
    other = os.open(tmp_path / "r1.2" / "a", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_SH)  # as somebody does who looks
    assert Marks(tmp_path, "reader").deaths("r1", 2) == 1
    os.close(other)
