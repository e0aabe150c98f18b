"""What is told of requests later: read back as told, whatever happened to the files meanwhile."""

import os
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.traffic.feedback import (
    LONGEST_ID,
    LONGEST_TEXT,
    MOST_OUTCOMES,
    Feedback,
    FeedbackStats,
    FeedbackWriter,
    gather,
    read_feedback,
)
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.segment import find_segments

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)


def told(request_id="r-1", *, seconds=0, **outcomes):
    return Feedback(
        request_id=request_id,
        outcomes=outcomes or {"bought": True},
        time=NOON + timedelta(seconds=seconds),
        source="till",
    )


@pytest.fixture
def log(folder):
    folder.mkdir()
    return folder


@pytest.fixture
def make(log):
    made = []

    def make_writer(**options):
        made.append(FeedbackWriter(log, **({"clock": lambda: NOON} | options)))
        return made[-1]

    yield make_writer
    for writer in made:
        writer.close()


def everything(folder, **options):
    entries, stats = read_feedback(folder, **options)
    return list(entries), stats


def files(folder):
    return sorted((folder / "feedback").rglob("*.jsonl"))


def test_what_is_told_reads_back_as_it_was_told(log, make):
    entries = [told(bought=True, price=12.5, species="setosa"), told("\u00fc/2", seconds=1, clicks=3)]
    make().append(entries)
    found, stats = everything(log)
    assert found == entries
    assert (stats.entries, stats.files, stats.torn, stats.unreadable) == (2, 1, 0, 0)


def test_an_entry_lasts_before_append_returns_and_its_file_is_private(log, make):
    make().append([told()])
    (path,) = files(log)
    assert path.parent.name == "date=2026-03-08"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().count(b"\n") == 1


def test_nothing_told_leaves_no_file(log, make):
    make().append([])
    assert files(log) == []
    assert everything(log) == ([], everything(log)[1])


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "r-1",
        {},
        {"id": "r"},
        {"outcomes": {"a": 1}},
        {"id": "", "outcomes": {"a": 1}},
        {"id": 5, "outcomes": {"a": 1}},
        {"id": "r\n", "outcomes": {"a": 1}},
        {"id": "r" * (LONGEST_ID + 1), "outcomes": {"a": 1}},
        {"id": "r", "outcomes": {}},
        {"id": "r", "outcomes": [1]},
        {"id": "r", "outcomes": {f"n{n}": 1 for n in range(MOST_OUTCOMES + 1)}},
        {"id": "r", "outcomes": {"": 1}},
        {"id": "r", "outcomes": {"a b": 1}},
        {"id": "r", "outcomes": {"a" * 65: 1}},
        {"id": "r", "outcomes": {"a": None}},
        {"id": "r", "outcomes": {"a": [1]}},
        {"id": "r", "outcomes": {"a": 2e15}},
        {"id": "r", "outcomes": {"a": float("nan")}},
        {"id": "r", "outcomes": {"a": "x" * (LONGEST_TEXT + 1)}},
        {"id": "r", "outcomes": {"a": 1}, "time": "2026-03-08T06:59:58"},
        {"id": "r", "outcomes": {"a": 1}, "time": "0001-01-01T00:00:00+14:00"},
        {"id": "r", "outcomes": {"a": 1}, "time": 5},
        {"id": "r", "outcomes": {"a": 1}, "source": ""},
        {"id": "r", "outcomes": {"a": 1}, "version": 3},
        {"id": "r", "outcomes": {"a": 1}, "arm": "canary"},
    ],
)
def test_what_is_no_entry_is_refused_without_repeating_it(document):
    with pytest.raises(UsageError) as caught:
        Feedback.of(document, now=NOON)
    assert "rrr" not in caught.value.message
    assert "xxx" not in caught.value.message


def test_an_entry_at_the_limits_is_taken():
    outcomes = {f"n{n}": "x" * LONGEST_TEXT for n in range(MOST_OUTCOMES - 2)} | {"a" * 64: -1e15, "b": False}
    entry = Feedback.of({"id": "r" * LONGEST_ID, "outcomes": outcomes}, now=NOON, source="here")
    assert (entry.outcomes, entry.time, entry.source) == (outcomes, NOON, "here")


def test_a_time_with_another_zone_is_the_same_moment():
    document = {"id": "r", "outcomes": {"a": 1}, "time": "2026-03-08T14:00:00+02:00"}
    assert Feedback.of(document, now=NOON + timedelta(days=1)).time == NOON


def test_a_file_ends_with_its_day_or_its_size(log, make):
    now = [NOON]
    writer = make(clock=lambda: now[0], file_bytes=200)
    for number in range(4):
        writer.append([told(f"r-{number}")])
    now[0] += timedelta(days=1)
    writer.append([told("r-4")])
    assert len(files(log)) == 3
    assert len({path.parent for path in files(log)}) == 2
    assert [entry.request_id for entry in everything(log)[0]] == [f"r-{n}" for n in range(5)]


def test_the_oldest_files_make_room(log, make):
    writer = make(file_bytes=100, disk_bytes=800)
    for number in range(20):
        writer.append([told(f"r-{number}")])
    kept = [entry.request_id for entry in everything(log)[0]]
    assert writer.deleted_files == 20 - len(kept)
    assert kept == [f"r-{n}" for n in range(20 - len(kept), 20)]
    assert sum(path.stat().st_size for path in files(log)) <= 800


def test_a_torn_tail_and_a_damaged_line_are_counted_and_cost_nothing_else(log, make):
    make(owner="a").append([told("r-1"), told("r-2"), told("r-3")])
    (path,) = files(log)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"r-2", b"r-9") + lines[2] + lines[0][:20])
    make(owner="b").append([told("r-4")])
    found, stats = everything(log)
    assert [entry.request_id for entry in found] == ["r-1", "r-3", "r-4"]
    assert (stats.unreadable, stats.torn, stats.files) == (1, 1, 2)


def test_a_failed_write_leaves_no_half_line_and_the_next_one_goes_through(log, make, monkeypatch):
    writer = make()
    writer.append([told("r-1")])
    write, fails = os.write, [True]

    def half(handle, data):
        return write(handle, data[: len(data) // 2] if fails else data)

    monkeypatch.setattr("mlx_platform.traffic.feedback.os.write", half)
    with pytest.raises(OSError, match="No space left"):
        writer.append([told("r-2")])
    fails.clear()
    writer.append([told("r-3")])
    found, stats = everything(log)
    assert [entry.request_id for entry in found] == ["r-1", "r-3"]
    assert not stats.torn


def test_feedback_is_no_segment_of_the_traffic_log(log, make, record, write_segment):
    make().append([told()])
    segment = write_segment([record(1)])
    assert find_segments(log) == [segment]
    records, stats = read_log(log)
    assert [entry.request_id for entry in records] == ["r-1"]
    assert (stats.torn, stats.unreadable) == (0, 0)
    assert len(everything(log)[0]) == 1


def test_entries_are_chosen_by_their_own_time_and_not_by_when_they_were_told(log, make):
    make(clock=lambda: NOON + timedelta(days=30)).append([told("late", seconds=-5), told("r-2", seconds=5)])
    make(clock=lambda: NOON - timedelta(days=3)).append([told("r-3", seconds=-300_000)])
    found, stats = everything(log, since=NOON - timedelta(seconds=10), until=NOON)
    assert [entry.request_id for entry in found] == ["late"]
    assert stats.files == 1  # that of three days ago cannot hold any


def test_the_latest_word_counts_and_what_came_before_is_counted():
    stats = FeedbackStats()
    entries = [told(a=1, b=True), told(a=2, seconds=5), told(a=3, seconds=2), told(b=True), told("r-2", a=1)]
    assert gather(entries, stats) == {"r-1": {"a": 2, "b": True}, "r-2": {"a": 1}}
    assert (stats.duplicates, stats.contradictions) == (1, 2)


def test_true_is_not_the_number_one():
    stats = FeedbackStats()
    assert gather([told(a=1), told(a=True, seconds=1)], stats) == {"r-1": {"a": True}}
    assert stats.contradictions == 1


def test_two_threads_never_mix_their_lines(log, make):
    writer = make(file_bytes=4000)

    def tell(name):
        for number in range(50):
            writer.append([told(f"{name}-{number}"), told(f"{name}-{number}-b")])

    threads = [threading.Thread(target=tell, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, stats = everything(log)
    assert len(found) == len({entry.request_id for entry in found}) == 200
    assert not stats.unreadable


def test_a_folder_that_is_none_is_not_found_and_one_without_feedback_is_empty(log):
    with pytest.raises(NotFoundError):
        read_feedback(log / "nothing")
    assert everything(log)[0] == []


def test_links_and_other_names_are_not_read(log, make, tmp_path):
    make().append([told()])
    (path,) = files(log)
    (path.parent / "link.jsonl").symlink_to(path)
    strange = log / "feedback" / "date=somewhen"
    strange.mkdir()
    (strange / "x.jsonl").write_bytes(path.read_bytes())
    assert len(everything(log)[0]) == 1


def test_the_json_form_is_what_an_entry_is_read_from():
    entry = replace(told(bought=False), version="3")
    assert Feedback.of(orjson.loads(orjson.dumps(entry.document())), now=NOON) == entry
