"""The writer: a prediction never waits for it, and every record is accounted for."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mlx_platform.traffic import seal
from mlx_platform.traffic import writer as module
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.segment import find_segments
from mlx_platform.traffic.writer import TrafficWriter


def total(writer: TrafficWriter) -> int:
    counters = writer.counters
    return counters.logged + sum(counters.dropped.values()) + counters.sampled_out + counters.pending


def read(folder: Path) -> list[int]:
    return [each.seq for each in read_log(folder)[0]]


def test_records_are_readable_once_flushed_and_sealed_when_closed(
    folder: Path, writer: Any, record: Any
) -> None:
    log = writer()
    wanted = [record(log.next_seq(), server_id=log.server_id, boot_id=log.boot_id) for _ in range(50)]
    for each in wanted:
        log.log(each)
    log.flush()

    assert list(read_log(folder)[0]) == wanted
    assert (log.counters.served, log.counters.logged, log.counters.pending) == (50, 50, 0)

    log.close(timeout=30)
    assert [path.suffix for path in find_segments(folder)] == [".parquet"]
    assert list(read_log(folder)[0]) == wanted


def test_when_the_queue_is_full_the_newest_records_are_dropped_and_counted(
    folder: Path, writer: Any, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(queue_bytes=20_000)
    gate = threading.Event()
    write = log._sink.write
    monkeypatch.setattr(log._sink, "write", lambda *parts: (gate.wait(30), write(*parts)))

    for seq in range(1, 101):
        log.log(record(seq))
    assert total(log) == log.counters.served == 100
    dropped = log.counters.dropped["queue"]
    gate.set()
    log.flush()

    assert 50 < dropped < 100
    assert read(folder) == list(range(1, 101 - dropped))
    assert total(log) == 100
    assert log.counters.pending == 0


def test_records_that_a_loss_of_power_would_take_are_told(
    writer: Any, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer()
    gate = threading.Event()
    sync = log._sink.sync
    monkeypatch.setattr(log._sink, "sync", lambda: (gate.wait(30), sync()))
    for seq in range(1, 11):
        log.log(record(seq))
    while log.counters.logged < 10:
        time.sleep(0.001)
    assert log.counters.unsynced == 10
    gate.set()
    log.flush()
    assert log.counters.unsynced == 0


def test_many_threads_lose_no_count(folder: Path, writer: Any, record: Any) -> None:
    log = writer(queue_bytes=100_000, sample=0.7)

    def serve(first: int) -> None:
        for seq in range(first, first + 300):
            log.log(record(seq))

    threads = [threading.Thread(target=serve, args=(start,)) for start in (0, 1000, 2000, 3000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.flush()

    counters = log.counters
    assert counters.served == 1200 == total(log)
    assert 240 < counters.sampled_out < 480
    assert len(read(folder)) == counters.logged


def test_a_record_that_is_too_large_keeps_its_identity_without_its_arrays(
    folder: Path, writer: Any, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORD_BYTES", 10_000)
    log = writer()

    log.log(record(1, inputs={"x": {"datatype": "FP64", "shape": [1000], "data": [0.5] * 1000}}))
    log.log(record(2, error="e" * 20_000))
    log.log(record(3))
    log.flush()

    kept = {each.seq: each for each in read_log(folder)[0]}
    assert set(kept) == {1, 3}
    assert kept[1].truncated
    assert kept[1].inputs == {}
    assert not kept[3].truncated
    assert log.counters.dropped == {"oversize": 1}


def test_a_record_that_cannot_be_written_down_is_counted_and_stops_no_other(
    folder: Path, writer: Any, record: Any
) -> None:
    log = writer()

    log.log(record(1, request_id="\ud800"))
    log.log(record(2, inputs={"x": None}))
    log.log(None)
    log.log(record(3))
    log.flush()

    assert read(folder) == [3]
    assert log.counters.dropped == {"error": 3}
    assert total(log) == 4


def test_an_unusable_folder_drops_every_record_until_it_can_be_used(
    folder: Path, writer: Any, record: Any
) -> None:
    folder.write_text("in the way")
    log = writer()
    log.log(record(1))
    log.flush()
    assert log.counters.dropped == {"error": 1}
    assert "Not a directory" in log.trouble

    folder.unlink()
    log.log(record(2))
    log.flush()

    assert read(folder) == [2]
    assert log.trouble == ""


def test_a_full_disk_is_counted_and_writing_resumes_by_itself(folder: Path, writer: Any, record: Any) -> None:
    import resource

    log = writer()
    log.log(record(1))
    log.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        for seq in (2, 3):
            log.log(record(seq, error="x" * 700))
        log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.log(record(4))
    log.flush()

    assert log.counters.dropped == {"enospc": 2}
    records, stats = read_log(folder)
    assert [each.seq for each in records] == [1, 4]
    assert (stats.torn, stats.unreadable) == (0, 0)


def test_of_records_that_wait_for_a_disk_that_fills_up_as_many_are_kept_as_fit(
    folder: Path, writer: Any, record: Any
) -> None:
    import resource

    log = writer()
    log.log(record(1))
    log.flush()
    line = find_segments(folder)[0].stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * line + line // 2, hard))
    try:
        for seq in range(2, 8):
            log.log(record(seq))
        log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert read(folder) == [1, 2, 3]
    assert log.counters.dropped == {"enospc": 4}
    assert total(log) == 7


def test_records_that_are_written_together_go_to_the_versions_and_hours_they_belong_to(
    folder: Path, writer: Any, record: Any
) -> None:
    log = writer()
    noon = datetime(2026, 3, 8, 12, 59, 59, 999_999, tzinfo=UTC)
    one = timedelta(microseconds=1)
    for seq, (time_, version) in enumerate([(noon, "3"), (noon + one, "3"), (noon, "4"), (noon + one, "3")]):
        log.log(record(seq, time=time_, version=version))
    log.flush()

    places = {each.seq: each.version for each in read_log(folder)[0]}
    assert places == {0: "3", 1: "3", 2: "4", 3: "3"}
    assert sorted(path.parts[-4:-1] for path in find_segments(folder)) == [
        ("version=3", "date=2026-03-08", "hour=12"),
        ("version=3", "date=2026-03-08", "hour=13"),
        ("version=4", "date=2026-03-08", "hour=12"),
    ]


def test_after_closing_records_are_counted_as_dropped(writer: Any, record: Any) -> None:
    log = writer()
    log.close()
    log.close()
    log.flush()

    log.log(record(1))

    assert log.counters.dropped == {"closed": 1}


SERVER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.writer import TrafficWriter
log = TrafficWriter(Path(sys.argv[1]), model="m", version="1", queue_bytes=1 << 26, disk_bytes=1 << 30)
while True:
    seq = log.next_seq()
    log.log(Record(request_id=f"r{seq}", time=datetime.now(UTC), seq=seq, server_id=log.server_id,
                   boot_id=log.boot_id, model="m", version="1", digest="d", rows=1,
                   inputs={"x": {"datatype": "FP64", "shape": [1], "data": [seq]}}))
    if seq % 7 == 0:
        log.flush()
        print(seq, flush=True)
"""


def test_what_was_flushed_survives_the_death_of_the_process(folder: Path, writer: Any, record: Any) -> None:
    acknowledged: list[int] = []
    for round_ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5 + 3 * round_)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        acknowledged.append(max(int(line) for line in lines if line.endswith("\n")))

    found, stats = read_log(folder)
    records = list(found)
    by_boot: dict[str, list[int]] = {}
    for each in records:
        by_boot.setdefault(each.boot_id, []).append(each.seq)
    assert len(by_boot) == 3
    for seqs in by_boot.values():
        assert seqs == list(range(1, len(seqs) + 1))
    kept = sorted(map(len, by_boot.values()))
    assert all(have >= wanted for have, wanted in zip(kept, sorted(acknowledged), strict=True))
    assert stats.torn <= 3

    # The next server seals what the dead ones left.
    log = writer(model="m", version="1")
    log.log(record(1))
    log.close(timeout=30)
    deadline = time.monotonic() + 60
    while any(path.suffix == ".open" for path in find_segments(folder)):
        # A process that a dead server had started may still be at it, and hold the file.
        assert time.monotonic() < deadline
        time.sleep(0.1)
        seal.recover(folder)
    assert len(list(read_log(folder)[0])) == len(records) + 1
