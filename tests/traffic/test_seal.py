"""Sealing: nothing is lost, nothing torn stays, and a crash at any point can be repeated."""

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_platform.traffic import frame, seal
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.segment import OpenSegment, Partition


def read(folder: Path) -> tuple[list[Record], Any]:
    records, stats = read_log(folder)
    return list(records), stats


def test_sealed_records_are_the_ones_that_were_written(folder: Path, record: Any, write_segment: Any) -> None:
    wanted = [
        record(1),
        record(
            2, inputs={}, outputs={}, hashes={}, timings_ms={}, error="\x1b bad", truncated=True, status=422
        ),
        record(
            3,
            arm="canary",
            endpoint="infer",
            sampling=0.5,
            cache="hit",
            batch_rows=8,
            rows=3,
            runtime="mlx/1",
        ),
        record(4, stages={"tensor": {"x": {"datatype": "FP32", "shape": [1], "data": [0.5]}}}),
    ]
    path = write_segment(wanted)

    assert seal.recover(folder) == 1

    assert read(folder)[0] == wanted
    assert not path.exists()
    sealed = path.with_name("host-b1-000001.parquet")
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o600


def test_a_sealed_segment_is_plain_parquet_with_a_schema(
    folder: Path, record: Any, write_segment: Any
) -> None:
    from pyarrow import parquet

    path = write_segment([record(1), record(2)])
    seal.seal(path)

    file = parquet.ParquetFile(path.with_name("host-b1-000001.parquet"))
    table = file.read()
    assert file.metadata.metadata[b"mlx.schema"] == b"mlx.traffic/v1"
    assert str(table.schema.field("time").type) == "timestamp[ns, tz=UTC]"
    assert table.column("total_ms").to_pylist() == [1.5, 1.5]
    assert table.column("egress_ms").to_pylist() == [None, None]
    assert table.column("model").cast("string").to_pylist() == ["digits", "digits"]


def test_a_segment_of_an_earlier_release_that_lacks_columns_is_read(
    folder: Path, record: Any, write_segment: Any
) -> None:
    from pyarrow import parquet

    path = write_segment([record(1, runtime="mlx/1"), record(2)])
    seal.seal(path)
    sealed = path.with_name("host-b1-000001.parquet")
    earlier = parquet.read_table(sealed).drop_columns(["runtime", "stages"])
    parquet.write_table(earlier.replace_schema_metadata({"mlx.schema": "mlx.traffic/v1"}), sealed)

    assert [(one.runtime, one.stages) for one in read(folder)[0]] == [("", {}), ("", {})]


def test_numbers_that_no_record_has_are_gaps(folder: Path, record: Any, write_segment: Any) -> None:
    write_segment([record(number) for number in (7, 3, 4, 9, 9)])

    _records, stats = read(folder)
    assert (stats.gaps, stats.duplicates, stats.sampled) == (3, 1, False)


def test_torn_and_damaged_lines_are_cut_counted_and_remembered(
    folder: Path, record: Any, write_segment: Any
) -> None:
    line = frame.encode(record(3))
    path = write_segment([record(1)], b"garbage\n" + line.replace(b"r-3", b"r-4") + line + line[:50])

    before, open_stats = read(folder)
    seal.recover(folder)
    after, sealed_stats = read(folder)

    assert not path.exists()
    assert [each.seq for each in before] == [each.seq for each in after] == [1, 3]
    for stats in (open_stats, sealed_stats):
        assert (stats.torn, stats.unreadable) == (1, 2)
        assert stats.share_usable == pytest.approx(2 / 5)


def test_an_over_long_line_is_damaged_but_the_next_is_read(
    folder: Path, record: Any, write_segment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment([record(1)], b"x" * 5000 + b"\n" + frame.encode(record(2)) + b"y" * 5000)
    monkeypatch.setattr(frame, "LINE_CAP", 2000)

    records, stats = read(folder)

    assert [each.seq for each in records] == [1, 2]
    assert (stats.torn, stats.unreadable) == (1, 1)


def test_the_segment_of_a_living_writer_is_left_alone(folder: Path, record: Any) -> None:
    segment = OpenSegment.create(folder, Partition.of(record()), "host-b1", iter([1]))
    segment.append(frame.encode(record()))

    assert seal.recover(folder) == 0
    assert segment.path.exists()

    segment.close()
    assert seal.recover(folder) == 1


def test_sealing_again_after_a_crash_gives_each_record_once(
    folder: Path, record: Any, write_segment: Any
) -> None:
    path = write_segment([record(1), record(2)])
    content = path.read_bytes()
    seal.seal(path)
    path.write_bytes(content)  # it crashed before the open segment was removed
    path.with_name("host-b1-000001.parquet.tmp").write_bytes(b"half")

    records, stats = read(folder)
    assert [each.seq for each in records] == [1, 2]
    assert stats.duplicates == 2

    assert seal.recover(folder) == 1
    assert [file.name for file in path.parent.iterdir()] == ["host-b1-000001.parquet"]
    assert read(folder)[1].duplicates == 0


def test_an_empty_orphan_is_removed(folder: Path, record: Any, write_segment: Any) -> None:
    path = write_segment([record(1)])
    path.write_bytes(b"")

    seal.recover(folder)

    assert list(path.parent.iterdir()) == []


def test_one_segment_that_cannot_be_sealed_keeps_no_other_open(
    folder: Path, record: Any, write_segment: Any
) -> None:
    bad = write_segment([record(1)], owner="a-1")
    good = write_segment([record(2)], owner="b-1")
    blocked = bad.with_name("a-1-000001.parquet.tmp")
    blocked.mkdir()

    with pytest.raises(OSError, match="directory"):
        seal.recover(folder)

    assert bad.exists()
    assert not good.exists()


def test_the_background_process_says_by_its_exit_code_whether_it_worked(
    folder: Path, record: Any, write_segment: Any
) -> None:
    path = write_segment([record(1)])

    process = subprocess.run(
        [sys.executable, "-m", "mlx_platform.traffic.seal", str(folder)], check=False, timeout=60
    )

    assert process.returncode == 0
    assert not path.exists()
