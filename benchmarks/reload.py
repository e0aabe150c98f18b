"""What a switch of versions costs those who ask meanwhile: failed requests, and their time while it goes on.

One server process follows an alias that moves to and fro between two versions of a network of 60 MB, each of
them loaded anew; a client asks at a steady pace. Then the same from memory, as a rollback does it.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np
from measure import table

from mlx_platform.core.settings import load_settings
from mlx_platform.inference.build import build_package
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage

_RATE = 100.0  # requests a second
_WIDTH, _LAYERS = 700, 30
_PATH = "/v2/models/net/infer"


def reload(quick: bool) -> None:
    """Measure, and print the table."""
    times = 10 if quick else 100
    with tempfile.TemporaryDirectory() as folder:
        catalog = _registry(Path(folder))
        rows = [_measure(Path(folder), catalog, times, warm) for warm in (False, True)]
    columns = ("versions", "switches", "requests", "failed", "P99 before", "P99 during", "ratio")
    title = f"Switches at {_RATE:.0f} requests a second"
    table(title, rows, (*columns, "from the move to traffic", "resident"))


def _registry(folder: Path) -> Catalog:
    """Two versions of the same network with other weights, the first in production."""
    catalog = Catalog(load_settings(start=folder, environment={}))
    lineage = Lineage(
        dataset_version="none", dataset_fingerprint="", git_commit="0" * 40, params={}, metrics={}
    )
    for seed in (1, 2):
        package = build_package(
            _network(folder / f"{seed}.onnx", seed), folder / "packages" / str(seed)
        ).package
        catalog.register("net", package, lineage)
    catalog.move("net", "production", 1, kind="promote", actor="benchmark")
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


class _Client(Thread):
    """Asks at a steady pace; keeps when it asked, how long that took, and who answered."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, float, str]] = []
        self.failed = 0
        self.ended = Event()
        self._url = url

    def run(self) -> None:
        row = {"name": "x", "datatype": "FP32", "shape": [1, _WIDTH], "data": [0.1] * _WIDTH}
        body = json.dumps({"inputs": [row]})
        connection = http.client.HTTPConnection(self._url, timeout=30)
        due = time.monotonic()
        while not self.ended.is_set():
            due = max(due + 1 / _RATE, time.monotonic() - 1.0)
            time.sleep(max(0.0, due - time.monotonic()))
            asked = time.monotonic()
            try:
                connection.request("POST", _PATH, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                self.failed += answer.status != 200
            except OSError:
                self.failed += 1
                connection.close()
                continue
            self.seen.append((asked, time.monotonic() - due, answer.headers["X-Mlx-Version"]))


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


def _measure(folder: Path, catalog: Catalog, times: int, warm: bool) -> tuple[str, ...]:
    with _server(folder, warm=warm) as (pid, url):
        client = _Client(url)
        client.start()
        time.sleep(10 if times > 10 else 4)
        calm, during, arrivals = len(client.seen), [], []
        before, after = _resident(pid), 0
        for number in range(times):
            began, target = time.monotonic(), catalog.holders("net")["production"] % 2 + 1
            catalog.move("net", "production", target, kind="promote", actor="benchmark")
            moved = time.monotonic()
            while client.seen[-1][2] != str(target) and time.monotonic() < began + 60:
                time.sleep(0.005)
            arrivals.append(time.monotonic() - moved)
            time.sleep(0.3)  # the one before is unloaded
            during += [seconds for asked, seconds, _ in client.seen if asked >= began - 0.01]
            if number == times // 2:
                before = _resident(pid)
        after = _resident(pid)
        client.ended.set()
        client.join()
    quiet = _percentile([seconds for _, seconds, _ in client.seen[calm // 4 : calm]], 99)
    busy = _percentile(during, 99)
    return (
        "from memory" if warm else "loaded anew",
        str(times),
        f"{len(client.seen):,}",
        str(client.failed),
        f"{quiet * 1000:.1f} ms",
        f"{busy * 1000:.1f} ms",
        f"{busy / quiet:.2f}",
        f"{_percentile(arrivals, 50):.2f} s, at most {max(arrivals):.2f} s",
        f"{before / 2**20:.0f} MiB halfway, {after / 2**20:.0f} MiB at the end",
    )


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent))


if __name__ == "__main__":
    reload("--quick" in sys.argv)
