"""Reading: what is asked for, each record once, and an account of what was lost."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mlx_platform.core.errors import NotFoundError
from mlx_platform.traffic import seal
from mlx_platform.traffic.log import LogStats, Selection, _Seen, has_segments, read_log
from mlx_platform.traffic.record import Record

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)


def read(folder: Path, **selection: Any) -> tuple[list[int], LogStats]:
    records, stats = read_log(folder, **selection)
    return [each.seq for each in records], stats


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, [1, 2, 3, 4]),
        ({"model": "digits"}, [1, 2, 3]),
        ({"version": "4"}, [3]),
        ({"model": "nobody"}, []),
        ({"since": NOON + timedelta(seconds=2)}, [2, 3, 4]),
        ({"until": NOON + timedelta(seconds=2)}, [1]),
        ({"since": NOON + timedelta(seconds=2), "until": NOON + timedelta(seconds=3)}, [2]),
        ({"since": NOON + timedelta(hours=5)}, []),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_only_what_was_asked_for_is_read(
    folder: Path,
    record: Any,
    write_segment: Any,
    selection: dict[str, Any],
    expected: list[int],
    sealed: bool,
) -> None:
    write_segment([record(1), record(2)])
    write_segment([record(3, version="4")])
    write_segment([record(4, model="other")])
    if sealed:
        seal.recover(folder)

    seqs, stats = read(folder, **selection)

    assert sorted(seqs) == expected
    assert stats.records == len(expected)
    assert stats.share_usable == 1.0


def test_segments_that_cannot_hold_the_window_are_not_opened(
    folder: Path, record: Any, write_segment: Any
) -> None:
    for hours in range(5):
        write_segment([record(hours + 1, time=NOON + timedelta(hours=hours))])

    _, stats = read(folder, since=NOON + timedelta(hours=3))

    assert stats.segments == 2


@given(st.integers(-7200, 7200), st.integers(-7200, 7200), st.integers(1, 7200))
def test_no_wanted_record_lies_in_a_segment_that_is_skipped(moment: int, start: int, length: int) -> None:
    hour = NOON
    late = hour - timedelta(hours=1) <= hour + timedelta(seconds=moment) < hour + timedelta(hours=1)
    time = hour + timedelta(seconds=moment)
    since = hour + timedelta(seconds=start)
    selection = Selection(since=since, until=since + timedelta(seconds=length))
    path = Path("model=m/version=1/date=2026-03-08/hour=12/a.parquet")

    assert selection.may_hold(path) or not (late and since <= time < since + timedelta(seconds=length))


def test_a_part_of_the_log_can_be_read_alone(folder: Path, record: Any, write_segment: Any) -> None:
    path = write_segment([record(1)])
    write_segment([record(2, version="4")])

    assert read(path.parent)[0] == [1]
    assert read(path.parent, version="4")[0] == []
    assert has_segments(path.parent)
    assert not has_segments(folder.parent / "nothing")


def test_a_missing_folder_is_not_found(folder: Path) -> None:
    with pytest.raises(NotFoundError):
        read_log(folder)


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    match kind:
        case "zero":
            path.write_bytes(b"")
        case "half":
            path.write_bytes(content[: len(content) // 2])
        case "no footer":
            path.write_bytes(content[:-8])
        case "flipped":
            column = parquet.read_metadata(path).row_group(0).column(0)
            place = column.data_page_offset + column.total_compressed_size - 3
            path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])


@pytest.mark.parametrize("kind", ["zero", "half", "no footer", "flipped"])
def test_a_damaged_file_is_set_aside_and_counted_and_the_others_are_read(
    folder: Path, record: Any, write_segment: Any, kind: str
) -> None:
    write_segment([record(seq) for seq in range(1, 101)], owner="a-1")
    write_segment([record(seq) for seq in range(101, 201)], owner="b-1")
    seal.recover(folder)
    first = next(folder.rglob("a-1-*.parquet"))
    damage(first, kind)

    seqs, stats = read(folder)

    assert seqs == list(range(101, 201))
    assert stats.quarantined == 1
    assert not first.exists()
    assert first.with_name(first.name + ".corrupt").exists()
    assert stats.share_usable < 1
    if kind == "flipped":
        assert stats.share_usable == pytest.approx(0.5)
    assert read(folder)[1].quarantined == 0


def test_parquet_of_somebody_else_is_left_alone(folder: Path, record: Any, write_segment: Any) -> None:
    path = write_segment([record(1)])
    foreign = path.with_name("mine.parquet")
    parquet.write_table(pa.table({"x": [1, 2]}), foreign)

    seqs, stats = read(folder)

    assert seqs == [1]
    assert stats.quarantined == 0
    assert stats.unreadable == 2
    assert foreign.exists()


def test_a_segment_that_is_sealed_while_it_is_read_is_read_to_the_end(
    folder: Path, record: Any, write_segment: Any
) -> None:
    write_segment([record(seq) for seq in range(1, 6)], owner="a-1")
    write_segment([record(seq) for seq in range(6, 11)], owner="b-1")
    records, stats = read_log(folder)

    first = next(records)
    seal.recover(folder)
    rest = list(records)

    assert [each.seq for each in (first, *rest)] == list(range(1, 11))
    assert stats.segments == 2


def test_a_segment_that_was_deleted_meanwhile_is_no_error(
    folder: Path, record: Any, write_segment: Any
) -> None:
    write_segment([record(1)], owner="a-1")
    path = write_segment([record(2)], owner="b-1")
    records, _ = read_log(folder)

    first = next(records)
    path.unlink()

    assert [first.seq, *(each.seq for each in records)] == [1]


def test_records_that_were_written_twice_are_read_once(folder: Path, record: Any, write_segment: Any) -> None:
    write_segment([record(1), record(2), record(2)])
    write_segment([record(2), record(3), record(2, boot_id="b2")], owner="host-b2")

    records, stats = read_log(folder)

    assert sorted((each.server_id, each.boot_id, each.seq) for each in records) == [
        ("host", "b1", 1),
        ("host", "b1", 2),
        ("host", "b1", 3),
        ("host", "b2", 2),
    ]
    assert stats.duplicates == 2


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3000)), max_size=60))
def test_duplicates_are_those_a_set_would_find(keys: list[tuple[str, int]]) -> None:
    seen = _Seen()
    blank = {"request_id": "", "time": NOON, "model": "", "version": "", "digest": "", "boot_id": ""}

    fresh = [seen.add(Record(server_id=server, seq=seq, **blank)) for server, seq in keys]  # type: ignore[arg-type]

    assert fresh == [key not in keys[:index] for index, key in enumerate(keys)]


def test_nothing_is_read_before_it_is_asked_for(folder: Path, record: Any, write_segment: Any) -> None:
    for owner in ("a-1", "b-1", "c-1"):
        write_segment([record(1)], owner=owner)

    records, stats = read_log(folder)
    list(itertools.islice(records, 1))

    assert stats.segments == 1
