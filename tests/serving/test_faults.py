"""What happens around a server goes wrong: disks, descriptors, clocks, load, and its own death."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import orjson
import pytest
from services import debian_program

from mlx_platform.traffic.log import read_log

ROWS = {"rows": [{"a": 1, "b": 2, "c": 3, "d": 4}]}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")


def number(server, name, **labels):
    for line in server.get("/metrics").body.decode().splitlines():
        named, _, value = line.rpartition(" ")
        if named.partition("{")[0] == name and all(f'{k}="{v}"' in named for k, v in labels.items()):
            return float(value)
    raise AssertionError(name)


def until(true):
    """Wait for something that another process does."""
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("It did not happen within a minute.")


def slow(trips):
    return {"n": {"datatype": "INT64", "shape": [1, 1], "data": [trips]}}


def read_all(log):
    records, stats = read_log(log)
    return list(records), stats


def fill(path):
    """Write until there is no room for another byte."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass


@contextmanager
def small_disk(folder, size="512k"):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_server_killed_at_any_time_loses_nothing_that_it_had_logged(serve, tmp_path):
    log = tmp_path / "log"
    logged = 0
    for asked in (1, 7, 30):
        server = serve("table", traffic=log)
        statuses = [server.post("/predict", ROWS).status for _ in range(asked)]
        assert statuses == [200] * asked
        until(partial(number, server, "mlx_traffic_logged_total"))
        logged += number(server, "mlx_traffic_logged_total")
        server.process.kill()
        server.process.wait()
    server = serve("table", traffic=log)
    assert server.post("/predict", ROWS).status == 200
    assert server.stop() == 0
    records, stats = read_all(log)
    assert logged + 1 <= len(records) <= 1 + 7 + 30 + 1
    assert len({(record.boot_id, record.seq) for record in records}) == len(records)
    assert stats.torn <= 3
    assert not list(log.rglob("*.tmp"))


@needs_root
def test_a_full_disk_costs_records_that_are_counted_and_no_prediction(serve, tmp_path):
    log = tmp_path / "log"
    with small_disk(log):
        server = serve("table", traffic=log)
        assert server.post("/predict", ROWS).status == 200
        until(lambda: number(server, "mlx_traffic_logged_total") == 1)
        filler = log / "filler"
        fill(filler)
        rows = {"rows": ROWS["rows"] * 100}
        until(
            lambda: (
                server.post("/predict", rows).status == 200
                and number(server, "mlx_traffic_dropped_total", reason="enospc") > 0
            )
        )
        filler.unlink()
        before = number(server, "mlx_traffic_logged_total")
        until(
            lambda: (
                server.post("/predict", ROWS).status == 200
                and number(server, "mlx_traffic_logged_total") > before
            )
        )
        served = number(server, "mlx_traffic_served_total")
        assert server.stop() == 0
        _, stats = read_all(log)
        assert 2 <= stats.records < served
        assert stats.quarantined == 0


@needs_root
def test_a_disk_that_is_read_only_costs_no_prediction_and_is_used_once_it_is_not(serve, tmp_path):
    log = tmp_path / "log"
    with small_disk(log):
        subprocess.run(["mount", "-o", "remount,ro", str(log)], check=True)
        server = serve("table", traffic=log)
        assert [server.post("/predict", ROWS).status for _ in range(20)] == [200] * 20
        until(lambda: number(server, "mlx_traffic_pending") == 0)
        assert number(server, "mlx_traffic_dropped_total", reason="error") == 20
        assert server.get("/readyz").status == 200
        subprocess.run(["mount", "-o", "remount,rw", str(log)], check=True)
        until(
            lambda: (
                server.post("/predict", ROWS).status == 200 and number(server, "mlx_traffic_logged_total") > 0
            )
        )
        assert server.stop() == 0


def test_without_descriptors_nobody_new_gets_in_and_the_server_recovers(serve):
    server = serve("table")
    pid = server.process.pid
    kept = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    body = orjson.dumps(ROWS)
    request = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    def ask():
        kept.sendall(request)
        return kept.recv(65536).split(b"\r\n")[0]

    assert ask() == b"HTTP/1.1 200 OK"
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    open_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files + 2, limits[1]))
    others = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(10)]
    assert [ask() for _ in range(5)] == [b"HTTP/1.1 200 OK"] * 5
    for other in others:
        other.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: server.post("/predict", ROWS).status == 200)
    kept.close()
    assert server.stop() == 0


def test_a_failing_sync_loses_no_record_and_is_counted(serve, tmp_path):
    strace = debian_program("strace", "strace")
    server = serve("table", traffic=tmp_path / "log")
    fault = "inject=fsync,fdatasync:error=EIO:when=1"
    command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", fault, "-p", str(server.process.pid)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as tracer:
        status = Path(f"/proc/{server.process.pid}/status")
        until(lambda: f"TracerPid:\t{tracer.pid}" in status.read_text())
        until(
            lambda: (
                server.post("/predict", ROWS).status == 200
                and number(server, "mlx_traffic_sync_errors_total") > 0
            )
        )
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
    served = number(server, "mlx_traffic_served_total")
    dropped = number(server, "mlx_traffic_dropped_total", reason="error")
    assert server.stop() == 0
    records, stats = read_all(tmp_path / "log")
    assert len(records) + dropped == served
    assert len({record.seq for record in records}) == len(records)
    assert stats.torn == 0


def test_more_load_than_it_can_take_is_turned_away_and_passes(serve):
    server = serve("countdown", max_queue_rows=4, max_batch_size=1, request_timeout_ms=20_000)
    trips = 10_000
    while True:
        began = time.monotonic()
        assert server.infer(slow(trips)).status == 200
        if time.monotonic() - began > 0.1:
            break
        trips *= 4
    replies = []
    callers = [threading.Thread(target=lambda: replies.append(server.infer(slow(trips)))) for _ in range(40)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    counts = Counter(reply.status for reply in replies)
    assert set(counts) <= {200, 429}
    assert counts[200] >= 5
    assert counts[429] >= 1
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status == 429)
    assert server.infer(slow(10)).status == 200
    assert number(server, "mlx_queue_rows") == 0


def test_many_clients_with_the_same_bad_input_disturb_nobody(serve):
    server = serve("lookup")
    bad = {"i": {"datatype": "INT64", "shape": [1, 1], "data": [99]}}
    good = {"i": {"datatype": "INT64", "shape": [1, 1], "data": [2]}}
    statuses = Counter()

    def call(tensor, kind):
        for _ in range(20):
            statuses[kind, server.infer(tensor).status] += 1

    callers = [threading.Thread(target=call, args=(bad, "bad")) for _ in range(3)]
    callers.append(threading.Thread(target=call, args=(good, "good")))
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert statuses == {("bad", 400): 60, ("good", 200): 20}
    assert server.get("/readyz").status == 200


def test_a_clock_that_jumps_moves_no_deadline_and_loses_no_record(serve, tmp_path, monkeypatch):
    program = Path(debian_program("faketime", "faketime")).resolve()
    library = next(program.parents[1].glob("lib/*/faketime/libfaketimeMT.so.1"))
    clock = tmp_path / "clock"

    def jump(days):
        draft = clock.with_suffix(".new")
        draft.write_text(f"{days:+d}d")
        draft.replace(clock)

    jump(0)
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "preloaded_clock"))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
        for name in ("FAKETIME_NO_CACHE", "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"):
            patch.setenv(name, "1")
        server = serve("countdown", traffic=tmp_path / "log", request_timeout_ms=3000)
    for days in (0, 1, -1, 0):
        jump(days)
        assert server.infer(slow(5)).status == 200
        replies = []
        caller = threading.Thread(target=lambda: replies.append(server.infer(slow(2**40))))  # noqa: B023
        caller.start()
        until(lambda: number(server, "mlx_in_flight") == 1)
        jump(days + 1)
        caller.join(20)
        assert [reply.status for reply in replies] == [504]
    assert server.get("/readyz").status == 200
    assert server.stop() == 0
    records, stats = read_all(tmp_path / "log")
    assert (len(records), stats.torn, stats.unreadable, stats.duplicates) == (8, 0, 0, 0)
    by_seq = sorted(records, key=lambda record: record.seq)
    assert [record.seq for record in by_seq] == [*range(by_seq[0].seq, by_seq[0].seq + 8)]
    assert len({record.time.date() for record in records}) == 3  # as the clock said when they came
    for record in records:
        assert record.status == 200 or 2900 < record.timings_ms["total"] < 60_000  # whatever the clock said


def test_files_that_are_replaced_under_a_server_change_no_answer(start_server, packages, tmp_path):
    folder = tmp_path / "package"
    shutil.copytree(packages["table"], folder)
    server = start_server(folder)
    before = server.post("/predict", ROWS).json
    shutil.copy(packages["identity"] / "model.onnx", folder / "model.onnx")
    (folder / "manifest.json").write_bytes(b"{}")
    assert server.post("/predict", ROWS).json == before
    assert server.stop() == 0
