"""Rotation, durability and the disk bound."""

import errno
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mlx_platform.traffic import frame, segment
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.segment import Partition, find_segments, hour_of
from mlx_platform.traffic.sink import Sink

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def sinks(folder: Path, clock: Hands, sealed_at_once: None) -> Iterator[Any]:
    made = []

    def make(**options: Any) -> Sink:
        made.append(Sink(folder, owner="host-b1", clock=clock, **({"disk_bytes": 1 << 30} | options)))
        return made[-1]

    yield make
    for sink in made:
        sink.close(time.monotonic() + 30)


def put(sink: Sink, *records: Record) -> None:
    for each in records:
        sink.write(Partition.of(each), [frame.encode(each)])


def read(folder: Path) -> list[int]:
    return [each.seq for each in read_log(folder)[0]]


def test_an_hour_of_event_time_has_segments_of_its_own(folder: Path, sinks: Any, record: Any) -> None:
    sink = sinks()

    put(sink, record(1, time=NOON), record(2, time=NOON + timedelta(hours=1)))
    put(sink, record(3, time=NOON + timedelta(minutes=59, seconds=59)))  # late: no segment for each straggler

    assert [hour_of(path) for path in find_segments(folder)] == [NOON, NOON + timedelta(hours=1)]
    assert sorted(read(folder)) == [1, 2, 3]


def test_a_clock_that_jumped_back_does_not_hide_records_from_readers(
    folder: Path, sinks: Any, record: Any
) -> None:
    sink = sinks()
    put(sink, record(1, time=NOON), record(2, time=NOON - timedelta(days=1)))

    records, _ = read_log(folder, until=NOON - timedelta(hours=20))

    assert [each.seq for each in records] == [2]


@pytest.mark.parametrize("options", [{"segment_bytes": 1500}, {"segment_records": 3}])
def test_a_segment_is_closed_when_it_is_full(
    folder: Path, sinks: Any, record: Any, options: dict[str, int]
) -> None:
    sink = sinks(**options)

    put(sink, *(record(seq) for seq in range(1, 11)))

    assert len(find_segments(folder)) >= 4
    assert sorted(read(folder)) == list(range(1, 11))


def test_each_version_has_its_own_segment(folder: Path, sinks: Any, record: Any) -> None:
    sink = sinks()

    put(sink, record(1), record(2, version="4"), record(3), record(4, version="4"))

    assert len(find_segments(folder)) == 2
    assert [each.seq for each in read_log(folder, version="4")[0]] == [2, 4]


def test_a_segment_whose_hour_is_over_is_sealed_without_new_traffic(
    folder: Path, sinks: Any, record: Any, clock: Hands
) -> None:
    sink = sinks()
    put(sink, record(1))

    sink.tick()
    assert [path.suffix for path in find_segments(folder)] == [".open"]

    clock.now += timedelta(hours=1, minutes=2)
    sink.tick()
    assert [path.suffix for path in find_segments(folder)] == [".parquet"]
    assert read(folder) == [1]


def test_a_process_of_its_own_seals(folder: Path, record: Any) -> None:
    sink = Sink(folder, owner="host-b1", clock=lambda: NOON, disk_bytes=1 << 30)
    put(sink, record(1))

    sink.close(time.monotonic() + 60)

    assert [path.suffix for path in find_segments(folder)] == [".parquet"]
    assert read(folder) == [1]


def test_the_oldest_segments_make_room(folder: Path, sinks: Any, record: Any) -> None:
    bound = 200_000
    sink = sinks(disk_bytes=bound)

    for seq in range(1, 301):
        put(sink, record(seq, time=NOON + timedelta(minutes=seq), error=os.urandom(1500).hex()))
        assert sum(path.stat().st_size for path in find_segments(folder)) <= bound

    kept = read(folder)
    assert sink.deleted_segments > 0
    assert 300 in kept
    assert 1 not in kept


def test_a_failed_sync_leaves_its_file_and_writes_the_records_again(
    folder: Path, sinks: Any, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks()
    put(sink, record(1))
    sink.sync()
    put(sink, record(2), record(3))
    synced: list[int] = []

    def fail_once(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(segment, "_flush_data", fail_once)
    sink.sync()
    put(sink, record(4))
    sink.sync()

    records, stats = read_log(folder)
    assert [each.seq for each in records] == [1, 2, 3, 4]
    assert sink.sync_errors == 1
    assert stats.segments == 2
    assert stats.duplicates == 2  # written before the failure, and again after it


def test_a_failing_write_gives_the_file_up_and_the_next_record_a_new_one(
    folder: Path, sinks: Any, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks()
    put(sink, record(1))

    with monkeypatch.context() as patch:
        patch.setattr(segment.OpenSegment, "append", _fail)
        with pytest.raises(OSError, match="Input/output"):
            put(sink, record(2))
    put(sink, record(3))

    assert read(folder) == [1, 3]
    assert len(find_segments(folder)) == 2


def _fail(_segment: object, *_lines: bytes) -> None:
    raise OSError(errno.EIO, "Input/output error")
