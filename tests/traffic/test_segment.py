"""Segments: private files, one writer each, whole lines or none."""

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mlx_platform.traffic import seal
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.segment import (
    OpenSegment,
    Partition,
    find_segments,
    folder_name,
    hour_of,
    make_private,
)
from mlx_platform.traffic.sink import Sink

HOUR = datetime(2026, 3, 8, 12, tzinfo=UTC)


def open_segment(folder: Path, owner: str = "host-b1") -> OpenSegment:
    return OpenSegment.create(folder, Partition("digits", "3", HOUR), owner, count(1))


def test_a_segment_lies_under_its_model_version_and_hour(folder: Path) -> None:
    segment = open_segment(folder)

    where = segment.path.relative_to(folder).as_posix()
    assert where == "model=digits/version=3/date=2026-03-08/hour=12/host-b1-000001.jsonl.open"
    assert hour_of(segment.path) == HOUR
    segment.close()


def test_only_their_owner_can_read_the_files(folder: Path) -> None:
    segment = open_segment(folder)

    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert modes.pop(segment.path) == 0o600
    assert set(modes.values()) == {0o700}
    segment.close()


def test_a_folder_that_was_there_keeps_its_mode(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)

    make_private(folder / "new")

    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_the_next_segment_of_an_owner_has_another_name(folder: Path) -> None:
    numbers = count(1)
    partition = Partition("digits", "3", HOUR)
    one, other = (OpenSegment.create(folder, partition, "host-b1", numbers) for _ in range(2))

    assert one.path != other.path
    one.close()
    other.close()


def test_an_empty_segment_leaves_nothing_behind(folder: Path) -> None:
    open_segment(folder).close()

    assert find_segments(folder) == []


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_leaves_no_part_of_itself(folder: Path) -> None:
    segment = open_segment(folder)
    segment.append(b"first\n")

    with file_size_limit(10), pytest.raises(OSError, match="No space left"):
        segment.append(b"second line\n")
    segment.append(b"third\n")

    assert segment.path.read_bytes() == b"first\nthird\n"
    assert (segment.size, segment.records) == (12, 2)
    segment.close()


@pytest.mark.parametrize(
    ("shift", "taken"),
    [(0, True), (-1, True), (-2, False), (1, False)],
)
def test_a_segment_takes_its_hour_and_what_comes_an_hour_late(shift: int, taken: bool) -> None:
    partition = Partition("digits", "3", HOUR)

    assert partition.takes(Partition("digits", "3", HOUR + timedelta(hours=shift))) is taken
    assert not partition.takes(Partition("digits", "4", HOUR))


def test_the_hour_is_that_of_the_event_in_utc(record: Any) -> None:
    from datetime import timezone

    moment = datetime(2026, 3, 8, 23, 30, tzinfo=timezone(timedelta(hours=-5)))

    assert Partition.of(record(time=moment)).hour == datetime(2026, 3, 9, 4, tzinfo=UTC)


@pytest.mark.parametrize("name", ["a/b", "..", "é" * 100, "x" * 500, "a b=c", "%2F"])
def test_any_name_makes_one_folder(name: str, tmp_path: Path) -> None:
    part = folder_name("model", name)

    (tmp_path / part).mkdir()

    assert (tmp_path / part).parent == tmp_path
    assert "/" not in part
    assert folder_name("model", name + "!") != part


def test_files_that_are_no_segments_are_not_found(folder: Path, tmp_path: Path) -> None:
    segment = open_segment(folder)
    segment.append(b"line\n")
    (folder / "mine.parquet").write_bytes(b"")
    (segment.path.parent / "host.parquet.tmp").write_bytes(b"")
    (segment.path.parent / "old.parquet.corrupt").write_bytes(b"")

    assert find_segments(folder) == [segment.path]
    assert find_segments(segment.path.parent) == [segment.path]
    segment.close()


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_plain_file_is_no_segment_whatever_its_name(
    folder: Path, tmp_path: Path, record: Any, write_segment: Any, kind: str
) -> None:
    segment = write_segment([record(1)])
    outside = tmp_path / "outside"
    outside.write_bytes(segment.read_bytes())
    strange = [segment.with_name("x-000001.parquet"), segment.with_name("x-000002.jsonl.open")]
    for path in strange:
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "link":
                path.symlink_to(outside)

    assert find_segments(folder) == [segment]
    assert [each.seq for each in read_log(folder)[0]] == [1]
    assert seal.recover(folder) == 1
    assert not Sink(folder, owner="host-b2", disk_bytes=1 << 30, clock=lambda: HOUR).has_orphans()
    assert sorted(path.name for path in segment.parent.iterdir()) == [
        "host-b1-000001.parquet",
        *(path.name for path in strange),
    ]
    assert outside.exists()
