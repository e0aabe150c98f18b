"""What a switch of versions costs those who ask meanwhile: failed requests, and their time while it goes on.

One server process follows an alias that moves to and fro between two versions of a network of 60 MB, each of
them loaded anew, then the same from memory, as a rollback does it. Once a client asks at a steady pace, which
shows what a switch adds to a request, and once as many as saturate the server: each asks again as soon as it
has its answer, so that there is always somebody waiting.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
from measure import table

from mlx_platform.core.settings import load_settings
from mlx_platform.inference.build import build_package
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage

_RATE = 25.0  # requests a second at a steady pace
_CROWD = 8  # clients that saturate it
_WIDTH, _LAYERS = 700, 30
_PATH = "/v2/models/net/infer"


def reload(quick: bool) -> None:
    """Measure, and print the table."""
    times = 10 if quick else 100
    with tempfile.TemporaryDirectory() as folder:
        catalog = _registry(Path(folder))
        rows = [
            _measure(Path(folder), catalog, times, crowd=crowd, warm=warm)
            for crowd in (1, _CROWD)
            for warm in (False, True)
        ]
    columns = ("load", "versions", "switches", "requests", "failed", "P99 before", "P99 during", "ratio")
    table("Switches under load", rows, (*columns, "from the move to traffic", "resident"))


def _registry(folder: Path) -> Catalog:
    """Two versions of the same network with other weights."""
    catalog = Catalog(load_settings(start=folder, environment={}))
    lineage = Lineage(
        dataset_version="none", dataset_fingerprint="", git_commit="0" * 40, params={}, metrics={}
    )
    for seed in (1, 2):
        package = build_package(
            _network(folder / f"{seed}.onnx", seed), folder / "packages" / str(seed)
        ).package
        catalog.register("net", package, lineage)
    return catalog


def _network(path: Path, seed: int) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(seed)
    nodes, weights, last = [], [], "x"
    for layer in range(_LAYERS):
        values = random.standard_normal((_WIDTH, _WIDTH)).astype(np.float32) * 0.03
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"h{layer}"]))
        last = "y" if layer == _LAYERS - 1 else f"t{layer}"
        nodes.append(helper.make_node("Tanh", [f"h{layer}"], [last]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", _WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", _WIDTH])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def client(url: str, path: Path, crowd: int) -> None:
    """Ask; write down when each request was due, how long it took, and what came back.

    Args:
        url: host and port.
        path: the file that is written.
        crowd: one asks at a steady pace; more ask without a pause.
    """
    row = {"name": "x", "datatype": "FP32", "shape": [1, _WIDTH], "data": [0.1] * _WIDTH}
    body = json.dumps({"inputs": [row]})
    with path.open("w", buffering=1) as file:
        ask = partial(_ask, url, body, file, 1 / _RATE if crowd == 1 else 0.0)
        threads = [threading.Thread(target=ask, daemon=True) for _ in range(crowd)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _ask(url: str, body: str, file: TextIO, pause: float) -> None:
    connection = http.client.HTTPConnection(url, timeout=30)
    due = time.monotonic()
    while True:
        # Who is late asks at once, and time spent waiting for the answer before counts too, up to a second.
        due = max(due + pause, time.monotonic() - 1.0) if pause else time.monotonic()
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            connection.request("POST", _PATH, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            status, version = answer.status, answer.headers["X-Mlx-Version"]
        except OSError:
            status, version = 0, "?"
            connection.close()
        file.write(f"{due} {time.monotonic() - due} {status} {version}\n")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client wrote down of a request; seconds of the machine's clock that never goes back."""

    due: float
    seconds: float
    status: int
    version: str


def _answers(path: Path) -> list[Answer]:
    whole = path.read_text().rpartition("\n")[0].splitlines()
    answers = [
        Answer(float(due), float(seconds), int(status), version)
        for due, seconds, status, version in (line.split() for line in whole)
    ]
    return sorted(answers, key=lambda answer: answer.due + answer.seconds)


@contextmanager
def _server(folder: Path, *, warm: bool) -> Iterator[tuple[int, str]]:
    command = [sys.executable, "-m", "mlx_platform.cli", "serve", "net@production", "--follow"]
    environment = {"MLX_SERVING_KEEP_WARM_S": "600" if warm else "0", "MLX_SERVING_INTRA_OP_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--device", "cpu", "--grpc-port", "-1", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | environment,
        text=True,
    ) as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if line.rstrip() == "}":
                break
        try:
            yield process.pid, json.loads("".join(lines))["data"]["url"].removeprefix("http://")
        finally:
            process.terminate()


def _measure(folder: Path, catalog: Catalog, times: int, *, crowd: int, warm: bool) -> tuple[str, ...]:
    catalog.move("net", "production", 1, kind="promote", actor="benchmark")
    path = folder / "answers.txt"
    path.unlink(missing_ok=True)
    with _server(folder, warm=warm) as (pid, url):
        command = [sys.executable, __file__, "--client", url, str(path), str(crowd)]
        with subprocess.Popen(command) as asking:
            time.sleep(3)
            began = time.monotonic()
            time.sleep(10 if times > 10 else 5)
            moves, resident = [time.monotonic()], [0]
            for number in range(times):
                target = (number + 1) % 2 + 1
                catalog.move("net", "production", target, kind="promote", actor="benchmark")
                moves.append(time.monotonic())
                _wait_for(path, str(target))
                time.sleep(0.3)  # in which the one before is unloaded
                resident.append(_resident(pid))
            asking.terminate()
    answers = _answers(path)
    quiet = [answer.seconds for answer in answers if began <= answer.due < moves[0]]
    busy = [answer.seconds for answer in answers if answer.due >= moves[0]]
    calm, during = _percentile(quiet, 99), _percentile(busy, 99)
    return (
        f"{_RATE:.0f} requests/s" if crowd == 1 else f"{crowd} clients without a pause",
        "from memory" if warm else "loaded anew",
        str(times),
        f"{len(answers):,}",
        str(sum(answer.status != 200 for answer in answers)),
        f"{calm * 1000:.1f} ms",
        f"{during * 1000:.1f} ms",
        f"{during / calm:.2f}",
        _reached(answers, moves[1:]),
        f"{resident[times // 2] / 2**20:.0f} MiB halfway, {resident[-1] / 2**20:.0f} MiB at the end",
    )


def _wait_for(path: Path, version: str) -> None:
    """Wait until a version answers."""
    deadline = time.monotonic() + 60
    while _last_version(path) != version:
        if time.monotonic() > deadline:
            raise SystemExit(f"Version {version} did not answer within a minute.")
        time.sleep(0.02)


def _last_version(path: Path) -> str:
    """Of the newest whole line; to read all of them again and again would take the cores from the server."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 500))
        return file.read().rpartition(b"\n")[0].split()[-1].decode()


def _reached(answers: list[Answer], moves: list[float]) -> str:
    """How long after each move of the alias the first answer of the other version came."""
    seconds = []
    for number, moved in enumerate(moves):
        target = str((number + 1) % 2 + 1)
        ends = (answer.due + answer.seconds for answer in answers if answer.version == target)
        seconds.append(next(end for end in ends if end > moved) - moved)
    return f"{_percentile(seconds, 50):.2f} s, at most {max(seconds[1:]):.2f} s"


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        reload("--quick" in sys.argv)
