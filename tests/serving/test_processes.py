"""Several processes behind one address: crashes, poison, and how it all ends."""

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import orjson
import pytest
from simulated_gpu import VARIABLE, Gpus

from mlx_platform.inference.package import seal
from mlx_platform.serving.feeding.flight_recorder import FlightRecorder
from mlx_platform.serving.feeding.guard import Guard, digest_of
from mlx_platform.serving.processes.quarantine import Quarantine
from mlx_platform.serving.refusal import Refusal
from mlx_platform.traffic.log import read_log

ROWS = {"rows": [{"a": 1, "b": 2, "c": 3, "d": 4}]}
POISON = {"rows": [{"a": 7, "b": 2, "c": 3, "d": 4}]}
_PRELOADED = Path(__file__).parents[1] / "preloaded_gpu"


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    gpus = Gpus(tmp_path / "gpus")
    monkeypatch.setenv(VARIABLE, str(gpus.path))
    monkeypatch.setenv("PYTHONPATH", str(_PRELOADED))
    return gpus


def workers(server):
    return server.get("/readyz").json["workers"]


def metrics(server):
    return server.get("/metrics").body.decode()


def until(true):
    """Wait for something that another process does."""
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("It did not happen within a minute.")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def slow(trips):
    return {"n": {"datatype": "INT64", "shape": [1, 1], "data": [trips]}}


def test_workers_share_the_connections_and_everything_is_added_up_in_the_end(serve, tmp_path):
    server = serve("table", processes=2, traffic=tmp_path / "log")
    pids = {worker["pid"] for worker in workers(server)}
    assert len(pids | {server.process.pid}) == 3
    connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=20) for _ in range(4)]
    for connection in connections:
        connection.request("POST", "/predict", orjson.dumps(ROWS), {"Content-Type": "application/json"})
        assert connection.getresponse().read().startswith(b'{"model":"table"')
    assert [worker["connections"] for worker in workers(server)] == [2, 2]
    page = metrics(server)
    for number in (0, 1):
        assert f'mlx_predictions_total{{worker="{number}"' in page
        assert f'mlx_worker_up{{worker="{number}",device="cpu"}} 1' in page
    assert server.get("/debug/config").json["workers"][1]["answer"]["model"] == "table"
    for connection in connections:
        connection.close()
    until(lambda: [worker["connections"] for worker in workers(server)] == [0, 0])
    assert server.stop() == 0
    records, stats = read_log(tmp_path / "log")
    assert len({record.boot_id for record in records}) == 2
    assert (stats.records, stats.duplicates) == (4, 0)
    assert not any(is_alive(pid) for pid in pids)


def test_a_killed_worker_costs_its_own_requests_a_503_and_comes_back(serve):
    server = serve("countdown", processes=2, request_timeout_ms=60_000)
    replies = []
    caller = threading.Thread(target=lambda: replies.append(server.infer(slow(2**40))))
    caller.start()
    until(
        lambda: (
            'mlx_in_flight{worker="0",model="countdown",route="stable",version="3"} 1.0' in metrics(server)
        )
    )
    assert [worker["connections"] for worker in workers(server)] == [1, 0]
    os.kill(workers(server)[0]["pid"], signal.SIGKILL)
    caller.join(20)
    assert [(reply.status, reply.headers["retry-after"]) for reply in replies] == [(503, "1")]
    assert "ended" in replies[0].json["error"]
    assert server.infer(slow(5)).status == 200
    until(lambda: all(worker["ready"] for worker in workers(server)))
    assert [worker["starts"] for worker in workers(server)] == [2, 1]
    assert "mlx_worker_deaths_total 1" in metrics(server)


def test_what_ends_a_worker_twice_is_refused_and_nothing_else_is(serve, gpus):
    server = serve("table", processes=1)
    gpus.set(cpu="deadly")
    for deaths in (1, 2):
        reply = server.post("/predict", POISON)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        until(lambda: workers(server)[0]["ready"])
        assert workers(server)[0]["starts"] == deaths + 1
        assert server.post("/predict", ROWS).status == 200
    reply = server.post("/predict", POISON)
    assert reply.status == 422
    assert "quarantine" in reply.json["error"]
    assert server.post("/predict", ROWS).status == 200
    assert "mlx_quarantined_inputs 1" in metrics(server)
    assert workers(server)[0]["starts"] == 3


def test_a_worker_that_lost_its_gpu_for_good_is_renewed_while_another_serves(serve, gpus):
    server = serve("table", processes=2, devices=["cuda", "cuda:1"], degrade={"probe_s": 1000})
    assert [worker["device"] for worker in workers(server)] == ["cuda", "cuda:1"]
    gpus.set(cuda="sticky")
    reply = server.post("/predict", ROWS)
    assert (reply.status, reply.headers["x-mlx-degraded"]) == (200, "cpu")
    until(lambda: server.post("/predict", ROWS).status == 200 and workers(server)[0]["starts"] == 2)
    until(lambda: all(worker["ready"] for worker in workers(server)))
    assert "x-mlx-degraded" not in server.post("/predict", ROWS).headers
    assert [worker["starts"] for worker in workers(server)] == [2, 1]


def test_while_no_worker_lives_the_supervisor_answers(serve):
    server = serve("table", processes=1)
    os.kill(workers(server)[0]["pid"], signal.SIGKILL)
    until(lambda: server.get("/readyz").status == 503)
    assert server.get("/healthz").status == 200
    reply = server.post("/predict", ROWS)
    assert reply.status in {200, 503}  # it may be back by now
    until(lambda: server.get("/readyz").status == 200)
    assert server.post("/predict", ROWS).status == 200


def starting_worker(server):
    """The worker of a server that has one, once it runs its own program; 0 before."""
    for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        if b"processes.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    return 0


def test_a_worker_that_is_killed_while_it_starts_is_started_again(packages):
    script = Path(__file__).with_name("serve_process.py")
    command = [sys.executable, str(script), str(packages["table"]), "table", "", '{"processes": 1}']
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        until(lambda: starting_worker(server))
        os.kill(starting_worker(server), signal.SIGKILL)
        assert orjson.loads(server.stdout.readline())["model"] == "table"
        server.terminate()
    assert server.returncode == 0


def test_one_that_is_killed_each_time_ends_the_server(packages):
    script = Path(__file__).with_name("serve_process.py")
    command = [sys.executable, str(script), str(packages["table"]), "table", "", '{"processes": 1}']
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        killed = set()
        while server.poll() is None and len(killed) < 3:
            pid = starting_worker(server)
            if pid and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.02)
        assert "ended with signal 9 at the start" in server.communicate(timeout=60)[1]
    assert server.returncode == 1


def test_workers_end_when_their_supervisor_is_killed(serve):
    server = serve("table", processes=2)
    pids = [worker["pid"] for worker in workers(server)]
    server.process.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))


def test_what_was_accepted_is_answered_although_the_server_stops(serve):
    server = serve("countdown", processes=1, request_timeout_ms=120_000, drain_timeout_s=60)
    trips = 10_000
    while True:
        began = time.monotonic()
        assert server.infer(slow(trips)).status == 200
        if time.monotonic() - began > 0.5:
            break
        trips *= 4
    statuses = []
    caller = threading.Thread(target=lambda: statuses.append(server.infer(slow(trips)).status))
    caller.start()
    # A connection is not enough: its request may still be on its way.
    until(lambda: statuses or server.metric("mlx_in_flight") == 1)
    assert server.stop(timeout=90) == 0
    caller.join(20)
    assert statuses == [200]


def test_a_server_whose_workers_cannot_start_says_why(tmp_path, packages, start_server):
    folder = tmp_path / "package"
    folder.mkdir()
    for file in packages["affine"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    x = {"x": {"datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}}
    wrong = {
        "inputs": x,
        "outputs": {"probabilities": {"datatype": "FP32", "shape": [1, 3], "data": [1, 1, 1]}},
    }
    (folder / "golden.jsonl").write_bytes(orjson.dumps(wrong) + b"\n")
    seal(folder)
    with pytest.raises(AssertionError, match="does not answer as it did"):
        start_server(folder, processes=2)


@pytest.fixture
def recorder():
    made = FlightRecorder(FlightRecorder.create(4), 4)
    yield made
    made.close()


def test_a_death_blames_those_who_ran_alone_or_else_everybody(recorder):
    quarantine = Quarantine()
    poison, other = b"p" * 16, b"o" * 16
    places = [recorder.begin(digest, alone=False) for digest in (poison, other)]
    assert quarantine.blame(recorder) == ({poison, other}, set())
    for place in places:
        recorder.end(place)
    recorder.begin(other, alone=False)
    recorder.begin(poison, alone=True)
    assert quarantine.blame(recorder) == (set(), {poison})
    quarantine.acquit(other)
    assert (set(quarantine.suspects), set(quarantine.refused)) == (set(), {poison})
    recorder.clear()
    assert recorder.suspects() == (set(), set())


def test_a_recorder_that_is_full_leaves_out_what_comes_next(recorder):
    places = [recorder.begin(bytes([1 + n % 255]) * 16, alone=True) for n in range(65)]
    assert None not in places[:64]
    assert places[64] is None
    recorder.end(places[64])
    recorder.end(places[0])
    assert recorder.begin(b"x" * 16, alone=True) == places[0]


def test_suspects_run_alone_until_they_did_no_harm(recorder):
    acquitted = []
    seen = []

    class Runner:
        degraded, down = "", False

        def run(self, feeds, _outputs, _timeout):
            seen.append(recorder.suspects()[0])
            return feeds

    guard = Guard(Runner(), recorder, acquitted.append, suspects=set(), refused=set())
    feeds = {"x": np.zeros((1, 2), np.float32)}
    digest = digest_of(feeds)
    ticket = guard.admit(feeds)
    assert (ticket.suspect, recorder.suspects()) == (False, (set(), {digest}))
    guard.release(ticket, answered=True)
    guard.suspects.add(digest)
    ticket = guard.admit(feeds)
    assert ticket.suspect
    guard.run(feeds, (), 1)
    guard.release(ticket, answered=True)
    assert (seen, acquitted, guard.suspects) == ([{digest}], [digest], set())
    assert recorder.suspects() == (set(), set())
    guard.refused.add(digest)
    with pytest.raises(Refusal, match="quarantine"):
        guard.admit(feeds)


def test_inputs_are_told_apart_by_all_that_matters():
    base = np.zeros((2, 2), np.float32)
    texts = np.array([["a"], ["b"]], object)
    others = (
        {"x": base},
        {"y": base},
        {"x": base.reshape(1, 4)},
        {"x": base.astype(np.int32)},
        {"x": base + 1},
        {"x": texts},
        {"x": texts[::-1]},
    )
    assert len({digest_of(feeds) for feeds in others}) == len(others)
    assert digest_of({"x": np.zeros((4, 2), np.float32)[::2]}) == digest_of({"x": base})
