"""Soak: an hour of mixed traffic against `mlx serve`, then what leaked, was lost, or does not add up.

    python benchmarks/soak.py                         an hour
    python benchmarks/soak.py --minutes 3             a look at it; too short to judge memory
    python benchmarks/soak.py --inject leak           must fail: every request leaves some bytes behind
    python benchmarks/soak.py --inject drop           must fail: some records vanish without being counted

The traffic: tensors as JSON and as bytes, raw rows, long requests, malformed ones, clients that leave early,
slow bodies, deadlines of a millisecond, unknown routes, and every half a minute a burst of more clients than
the queue has room for. Exit code 0: all is well; 5: something is not; 7: nothing is wrong, but it was too
short to say so of the memory, which grows until caches and arenas are full.
"""

import argparse
import http.client
import json
import math
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measure import table

from mlx_platform.traffic.log import read_log
from mlx_platform.workflows.watching.scrape import Scrape, scrape

COLUMNS = 16
MOST_GROWTH = 1.0  # MB an hour
LEAST_SECONDS = 900.0  # of samples, before memory that grows is called a leak
WARM_UP = 1 / 6  # of the time, at most ten minutes: caches fill, arenas grow
BURST_EVERY, BURST_SECONDS = 30.0, 2.0
INFER = "/v2/models/soak/infer"
JSON = {"Content-Type": "application/json"}
CHILD = """
import sys
mode = sys.argv.pop(1)
from mlx_platform.serving.engine import Engine
from mlx_platform.traffic.writer import TrafficWriter
kept = []
finish, log = Engine.finish, TrafficWriter.log
def leak(self, *arguments, **named):
    kept.append(bytes(1024))
    return finish(self, *arguments, **named)
def drop(self, record):
    if record.seq % 500:
        log(self, record)
    else:
        self._served += 1
if mode == "leak":
    Engine.finish = leak
if mode == "drop":
    TrafficWriter.log = drop
from mlx_platform.cli.main import main
sys.exit(main())
"""


@dataclass
class Server:
    process: "subprocess.Popen[bytes]"
    host: str
    port: int
    admin: str


@dataclass
class Seen:
    """What clients and the watch saw; appended to by several threads, one list or counter operation each."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)  # seconds, MB, files, threads


def write_model(path: Path) -> None:
    """A small network: probabilities of three classes from 16 numbers."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((COLUMNS, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["s"]),
            helper.make_node("Softmax", ["s"], ["probabilities"], axis=-1),
        ],
        "soak",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", COLUMNS])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def start(folder: Path, inject: str) -> Server:
    write_model(folder / "soak.onnx")
    environment = dict(os.environ, MLX_SERVING_MAX_QUEUE_ROWS="64", MLX_SERVING_TRAFFIC_DISK_BYTES=str(2**40))
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, inject, "serve", "soak.onnx", "--traffic", "log", "--json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
    )
    lines = []
    for line in process.stdout or ():
        lines.append(line)
        if line.rstrip() == b"}":
            break
    facts = json.loads(b"".join(lines))["data"]
    host, _, port = facts["url"].removeprefix("http://").rpartition(":")
    return Server(process, host, int(port), facts["admin_url"])


class Client(threading.Thread):
    """Sends one request after the other on a connection that it keeps, as fast as `pause` allows."""

    def __init__(self, server: Server, seen: Seen, ending: threading.Event, seed: int, pause: float) -> None:
        super().__init__(daemon=True)
        self._server, self._seen, self._ending, self._pause = server, seen, ending, pause
        self._random = random.Random(seed)  # noqa: S311 - traffic, no secret
        self._connection: http.client.HTTPConnection | None = None
        kinds: dict[Callable[[], None], int] = {
            self._infer: 50,
            self._binary: 10,
            self._predict: 15,
            self._long: 5,
            self._malformed: 8,
            self._leave: 3,
            self._slow: 2,
            self._hurry: 3,
            self._elsewhere: 4,
        }
        self._kinds, self._weights = list(kinds), list(kinds.values())

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._random.choices(self._kinds, self._weights)[0]()
            except (OSError, http.client.HTTPException) as error:
                self._close()
                self._seen.faults.append(f"{type(error).__name__}: {error}")
            self._ending.wait(self._random.expovariate(1 / self._pause) if self._pause else 0)
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str], name: str) -> None:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=30)
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        answer.read()
        self._seen.statuses[f"{name} {answer.status}"] += 1
        if answer.status >= 500 and answer.status not in {503, 504}:
            self._seen.faults.append(f"{name} was answered with {answer.status}")

    def _numbers(self, rows: int) -> list[float]:
        return [round(self._random.gauss(0, 1), 4) for _ in range(rows * COLUMNS)]

    def _tensors(self, rows: int) -> bytes:
        x = {"name": "x", "datatype": "FP32", "shape": [rows, COLUMNS], "data": self._numbers(rows)}
        return json.dumps({"inputs": [x]}).encode()

    def _infer(self) -> None:
        self._ask("POST", INFER, self._tensors(1), JSON, "infer")

    def _long(self) -> None:
        self._ask("POST", INFER, self._tensors(200), JSON, "long")

    def _hurry(self) -> None:
        self._ask("POST", INFER, self._tensors(4), JSON | {"X-Request-Timeout-Ms": "1"}, "hurry")

    def _predict(self) -> None:
        rows = [self._numbers(1) for _ in range(self._random.randint(1, 3))]
        self._ask("POST", "/predict", json.dumps({"rows": rows}).encode(), JSON, "predict")

    def _binary(self) -> None:
        raw = struct.pack(f"<{COLUMNS}f", *self._numbers(1))
        x = {"name": "x", "datatype": "FP32", "shape": [1, COLUMNS]}
        x["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps({"inputs": [x], "parameters": {"binary_data_output": True}}).encode()
        self._ask("POST", INFER, head + raw, {"Inference-Header-Content-Length": str(len(head))}, "binary")

    def _malformed(self) -> None:
        body = self._random.choice(
            (
                b"{",
                b"[]",
                b'{"rows":[]}',
                b'{"rows":[[NaN]]}',
                b'{"rows":[["a"]]}',
                b'{"inputs":[{"name":"y","datatype":"FP32","shape":[1,16],"data":[1]}]}',
                b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1,16],"data":[1]}]}',
                b"[" * 5000,
            )
        )
        self._ask("POST", self._random.choice((INFER, "/predict")), body, JSON, "malformed")

    def _elsewhere(self) -> None:
        path = self._random.choice(
            ("/v2", "/v2/health/ready", "/v2/models/soak", f"/{self._random.random()}")
        )
        self._ask("GET", path, None, {}, "elsewhere")

    def _raw(self, pieces: Sequence[bytes], *, answer: bool) -> None:
        with socket.create_connection((self._server.host, self._server.port), timeout=30) as connection:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.02)
            if answer:
                connection.recv(65536)
                self._seen.statuses["slow"] += 1

    def _message(self, rows: int) -> bytes:
        body = self._tensors(rows)
        return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
            INFER.encode(),
            len(body),
            body,
        )

    def _leave(self) -> None:
        self._raw([self._message(self._random.choice((1, 100)))], answer=False)
        self._seen.statuses["left"] += 1

    def _slow(self) -> None:
        message = self._message(1)
        third = len(message) // 3
        self._raw([message[:third], message[third : 2 * third], message[2 * third :]], answer=True)


def watch(server: Server, seen: Seen, ending: threading.Event, every: float) -> None:
    """Sample the process and see that no counter ever falls."""
    before: dict[tuple[Any, ...], float] = {}
    began = time.monotonic()
    while not ending.is_set():
        seen.samples.append((time.monotonic() - began, *vitals(server.process.pid)))
        now = counters(scrape(server.admin))
        fell = [key for key, value in now.items() if value < before.get(key, 0.0)]
        if fell:
            seen.faults.append(f"a counter fell: {fell[0]}")
        before = now
        ending.wait(every)


def vitals(pid: int) -> tuple[float, int, int]:
    """Resident memory in MB, open files, threads."""
    status = Path(f"/proc/{pid}/status").read_text()
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    resident = int(values["VmRSS"].split()[0]) / 1024
    return resident, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(values["Threads"])


def counters(page: Scrape) -> dict[tuple[Any, ...], float]:
    return {
        (name, *sorted(labels.items())): value
        for name, rows in page.samples.items()
        if name.endswith(("_total", "_count", "_bucket"))
        for labels, value in rows
    }


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """MB an hour of (seconds, MB) by least squares, and twice its standard error."""
    if len(points) < 3:
        return math.nan, math.inf
    hours = [seconds / 3600 for seconds, _ in points]
    sizes = [size for _, size in points]
    line = statistics.linear_regression(hours, sizes)
    rest = sum((y - line.slope * x - line.intercept) ** 2 for x, y in zip(hours, sizes, strict=True))
    spread = sum((x - statistics.fmean(hours)) ** 2 for x in hours)
    return line.slope, 2 * math.sqrt(rest / (len(points) - 2) / spread)


def load(server: Server, seen: Seen, options: argparse.Namespace) -> None:
    """The steady clients for the whole time, the others in bursts."""
    ending = threading.Event()
    pause = options.clients / options.rate
    clients = [Client(server, seen, ending, seed, pause) for seed in range(options.clients)]
    for client in clients:
        client.start()
    end = time.monotonic() + options.minutes * 60
    burst = 0
    while time.monotonic() < end and server.process.poll() is None:
        time.sleep(min(BURST_EVERY, max(end - time.monotonic(), 0)))
        over = threading.Event()
        burst += 1
        crowd = [Client(server, seen, over, 1000 * burst + n, 0) for n in range(options.crowd)]
        for client in crowd:
            client.start()
        time.sleep(BURST_SECONDS)
        over.set()
        for client in crowd:
            client.join(60)
    ending.set()
    for client in clients:
        client.join(60)


def settle(server: Server) -> Scrape:
    """The last metrics, once nothing is under way any more."""
    for _ in range(300):
        page = scrape(server.admin)
        if not page.total("mlx_in_flight") and not page.total("mlx_traffic_pending"):
            return page
        time.sleep(0.1)
    return page


@dataclass(frozen=True)
class Check:
    name: str
    found: str
    expected: str
    verdict: str


def judge(seen: Seen, last: Scrape, code: int | None, log: Path) -> list[Check]:
    def check(name: str, found: object, expected: str, *, good: bool) -> Check:
        return Check(name, str(found), expected, "pass" if good else "FAIL")

    duration = seen.samples[-1][0]
    steady = [each for each in seen.samples if each[0] >= min(600.0, WARM_UP * duration)]
    growth, error = slope([(each[0], each[1]) for each in steady])
    memory = "pass" if growth + error <= MOST_GROWTH else "undecided"
    if steady[-1][0] - steady[0][0] >= LEAST_SECONDS and growth - error > MOST_GROWTH:
        memory = "FAIL"
    # The same number of clients is there at the start and at the end of the steady part.
    files = [each[2] for each in steady]
    threads = [each[3] for each in steady]
    head, tail = files[: len(files) // 3 or 1], files[-len(files) // 3 or -1 :]
    records = read_log(log)
    logged = sum(1 for _ in records[0])
    stats = records[1]
    predictions = last.total("mlx_predictions_total")
    written = last.total("mlx_traffic_logged_total")
    dropped = last.total("mlx_traffic_dropped_total")
    sampled_out = last.total("mlx_traffic_sampled_out_total")
    asked = sum(n for name, n in seen.statuses.items() if not name.startswith(("elsewhere", "left")))
    left = seen.statuses["left"]
    return [
        Check("memory", f"{growth:+.2f} ± {error:.2f} MB/h", f"at most {MOST_GROWTH:g} MB/h", memory),
        check(
            "open files",
            f"{statistics.median(head):.0f} → {statistics.median(tail):.0f}",
            "the same",
            good=abs(statistics.median(tail) - statistics.median(head)) <= 3,
        ),
        check(
            "threads", f"{min(threads)} to {max(threads)}", "the same", good=max(threads) - min(threads) <= 2
        ),
        check("faults that were seen", len(seen.faults), "none", good=not seen.faults),
        check(
            "predictions counted",
            f"{predictions:,.0f}",
            f"{asked:,} answered, and up to {left:,} left",
            good=asked <= predictions <= asked + left,
        ),
        check(
            "logged + dropped + sampled out",
            f"{written:,.0f} + {dropped:,.0f} + {sampled_out:,.0f}",
            f"{predictions:,.0f}",
            good=written + dropped + sampled_out == predictions,
        ),
        check("records in the log", f"{logged:,}", f"{written:,.0f}", good=logged == written),
        check(
            "torn, unreadable, duplicate",
            f"{stats.torn}, {stats.unreadable}, {stats.duplicates}",
            "none",
            good=not (stats.torn or stats.unreadable or stats.duplicates),
        ),
        check("exit code after SIGTERM", code, "0", good=code == 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8, help="that are there all the time")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second of those")
    parser.add_argument("--crowd", type=int, default=48, help="clients of a burst")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between samples")
    parser.add_argument("--inject", choices=("none", "leak", "drop"), default="none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = start(folder, options.inject)
        seen, ending = Seen(), threading.Event()
        watcher = threading.Thread(target=watch, args=(server, seen, ending, options.every), daemon=True)
        watcher.start()
        try:
            load(server, seen, options)
            ending.set()
            watcher.join(30)
            last = settle(server)
            server.process.send_signal(signal.SIGTERM)
            code = server.process.wait(60)
        finally:
            server.process.kill()
            server.process.communicate()
        checks = judge(seen, last, code, folder / "log")
    answered = sorted(seen.statuses.items(), key=lambda item: -item[1])
    table("Requests", [(name, f"{count:,}") for name, count in answered], ("kind and status", "count"))
    for fault in seen.faults[:10]:
        print(f"  fault: {fault}")
    rows = [(each.name, each.found, each.expected, each.verdict) for each in checks]
    table(f"After {options.minutes:g} minutes", rows, ("what", "found", "expected", ""))
    verdicts = {each.verdict for each in checks}
    return 5 if "FAIL" in verdicts else 7 if "undecided" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
