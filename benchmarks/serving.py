"""What a served request costs: `mlx serve`, bare ONNX Runtime, and the peers that are installed, in one run.

    python benchmarks/serving.py                            both networks, 1, 8, 32 and 64 clients
    python benchmarks/serving.py --loads mlp --clients 32   a quick look
    python benchmarks/serving.py --install                  install the peers (`make bench-peers`)

Two networks: one that costs nothing beside the server (its figure is CPU time per request), and an encoder
that costs all (its figure is the share of what bare ONNX Runtime does with the same threads). Servers are
measured one at a time, in turn, over `--rounds` rounds, closed loop, on this machine's cores, which the load
generator wrk shares. Each first answers a request that is compared with ONNX Runtime's own answer; who is
wrong is not measured.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from loads import SEQUENCE, Load, write_loads
from measure import table

PEERS = Path(__file__).with_name("peers")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlx-benchmarks"
RUNTIME = "onnxruntime==1.32.0"
MIXED = {16: 60, 32: 25, 64: 10, 128: 5}  # tokens: percent of the requests
_POST = """
-- wrk knows its host only later, and some servers refuse requests that name none.
local headers = {["Content-Type"] = "application/json", ["Host"] = "127.0.0.1"}
local bodies = {}
for line in io.lines(os.getenv("BENCH_BODIES")) do
  bodies[#bodies + 1] = wrk.format("POST", nil, headers, line)
end
local at = 0
request = function()
  at = at % #bodies + 1
  return bodies[at]
end
done = function(summary, latency)
  local errors = summary.errors
  local broken = errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "errors": %d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    errors.status + broken))
end
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A way to serve a network. `python` is its interpreter, None for our own."""

    name: str
    script: str = ""
    packages: tuple[str, ...] = ()
    path: str = "/v2/models/{model}/infer"
    plain: bool = False
    base: str = sys.executable

    @property
    def python(self) -> Path:
        return CACHE / self.script.removesuffix(".py") / "bin" / "python"

    @property
    def installed(self) -> bool:
        return not self.script or (self.python.parent.parent / "finished").exists()


OURS = Server("mlx")
ALL = (
    OURS,
    Server(
        "FastAPI",
        "fastapi_server.py",
        ("fastapi==0.165.0", "uvicorn==0.54.0", "uvloop", "httptools"),
        path="/predict",
        plain=True,
    ),
    Server("LitServe", "litserve_server.py", ("litserve==0.2.19",), path="/predict", plain=True),
    Server("MLServer", "mlserver_server.py", ("mlserver==1.7.1",), path="/v2/models/m/infer"),
    # Triton's Python backend starts only under an interpreter whose shared library is that of the system.
    Server(
        "Triton",
        "triton_server.py",
        ("nvidia-pytriton==0.7.0", "numpy<2"),
        path="/v2/models/m/infer",
        base="/usr/bin/python3",
    ),
)


@dataclass(slots=True)
class Point:
    """What was measured of one server with one number of clients, round by round."""

    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # milliseconds per request


def install(servers: Sequence[Server]) -> None:
    """Make the environments that are missing; one that cannot be made is told and left out."""
    for server in servers:
        if server.installed:
            continue
        folder = server.python.parent.parent
        shutil.rmtree(folder, ignore_errors=True)
        print(f"Installing {server.name} ...", flush=True)
        make = [server.base, "-m", "venv", str(folder)]
        pip = [str(server.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        packages = (*server.packages, RUNTIME if "numpy<2" not in server.packages else "onnxruntime")
        try:
            subprocess.run(make, check=True)
            subprocess.run([*pip, *packages], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"  {server.name} cannot be installed here: {error}")
            continue
        (folder / "finished").touch()


@contextmanager
def running(server: Server, load: Load, threads: int, folder: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of a server that has given the right answer."""
    port = _free_port()
    environment = {**os.environ, "BENCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    if server.script:
        command = [str(server.python), str(PEERS / server.script), str(load.model), str(port)]
    else:
        traffic = folder / "traffic"
        command = [sys.executable, "-m", "mlx_platform.cli", "serve", str(load.model)]
        command += ["--port", str(port), "--traffic", str(traffic)]
        environment["MLX_SERVING_INTRA_OP_THREADS"] = str(threads)
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_the_right_answer(process, server, load, port)
        yield port, process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    # Peers take the two ports after it as well.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port if port < 65000 else port - 1000


def _wait_for_the_right_answer(
    process: subprocess.Popen[bytes], server: Server, load: Load, port: int
) -> None:
    body = (load.plain() if server.plain else load.protocol())[0]
    expected = _bare(load, 1).run(None, dict(load.feeds[0]))[0].reshape(-1)
    path = server.path.format(model=load.model.stem)
    until = time.monotonic() + 60
    answer = b""
    while time.monotonic() < until and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answer = reply.read()
        except OSError:
            time.sleep(0.2)
            continue
        finally:
            connection.close()
        if reply.status == 200:
            document = json.loads(answer)
            values = document["outputs"][0]["data"] if "outputs" in document else document["y"]
            if np.allclose(np.asarray(values).reshape(-1), expected, atol=1e-3):
                return
            raise SystemExit(f"{server.name} answers {values}, not {expected.tolist()}.")
        time.sleep(0.2)
    raise SystemExit(f"{server.name} gave no answer: {answer[:300]!r}")


def _bare(load: Load, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(load.model), options, providers=["CPUExecutionProvider"])


def floor(load: Load, threads: int, callers: int, batch: int, seconds: float) -> tuple[float, float]:
    """Rows a second, and the median milliseconds of a run, of ONNX Runtime with nothing around it.

    So many callers run one session at a time: on some machines that is worth twice what a run on as many
    threads is, and a floor must not be lower than it need be.
    """
    session = _bare(load, threads)
    count = len(load.feeds)
    feeds = [
        {
            name: np.concatenate([load.feeds[(start + row) % count][name] for row in range(batch)])
            for name in load.feeds[0]
        }
        for start in range(0, count, batch)
    ]
    session.run(None, feeds[0])
    began = time.perf_counter()

    def run_on(caller: int) -> list[float]:
        times: list[float] = []
        while time.perf_counter() - began < seconds:
            start = time.perf_counter()
            session.run(None, feeds[(caller + len(times)) % len(feeds)])
            times.append(time.perf_counter() - start)
        return times

    with ThreadPoolExecutor(callers) as pool:
        times = [taken for found in pool.map(run_on, range(callers)) for taken in found]
    return batch * len(times) / (time.perf_counter() - began), statistics.median(times) * 1000


def shoot(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float, folder: Path) -> dict:
    """Let wrk ask for a while."""
    (folder / "bodies").write_bytes(b"\n".join(bodies) + b"\n")
    (folder / "post.lua").write_text(_POST)
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:g}s", "--timeout", "20s", "-s", "post.lua"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{path}"],
        cwd=folder,
        env={**os.environ, "BENCH_BODIES": str(folder / "bodies")},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process group."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(server: Server, load: Load, options: argparse.Namespace, points: dict[int, Point]) -> None:
    """One round of one server."""
    bodies = load.plain() if server.plain else load.protocol()
    path = server.path.format(model=load.model.stem)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(server, load, options.threads, Path(folder)) as (port, pid),
    ):
        shoot(port, path, bodies, 8, 2, Path(folder))
        for clients in options.clients:
            before = _cpu_of(pid)
            found = shoot(port, path, bodies, clients, options.seconds, Path(folder))
            if found["errors"]:
                raise SystemExit(f"{server.name} failed {found['errors']} requests with {clients} clients.")
            point = points[clients]
            point.rates.append(found["requests"] / found["seconds"])
            point.p50.append(found["p50"])
            point.p99.append(found["p99"])
            point.cpu.append((_cpu_of(pid) - before) / found["requests"] * 1000)


def mixed(load: Load, options: argparse.Namespace, folder: Path) -> None:
    """Texts of four lengths, as they are and filled up to the longest, at the same server."""
    rng = np.random.default_rng(2)
    lengths = [length for length, share in MIXED.items() for _ in range(share)]
    rng.shuffle(lengths)
    rows = [
        {name: load.feeds[place % 64][name][:, :length] for name in load.feeds[0]}
        for place, length in enumerate(lengths)
    ]
    filled = [
        {
            "input_ids": np.pad(row["input_ids"], ((0, 0), (0, SEQUENCE - row["input_ids"].shape[1]))),
            "attention_mask": np.pad(
                row["attention_mask"], ((0, 0), (0, SEQUENCE - row["attention_mask"].shape[1]))
            ),
        }
        for row in rows
    ]
    rates: dict[str, list[float]] = {"as they are": [], "filled up to 128": []}
    with running(OURS, load, options.threads, folder) as (port, _):
        for _ in range(options.rounds):
            for name, feeds in zip(rates, (rows, filled), strict=True):
                bodies = Load("mixed", load.model, tuple(feeds)).protocol()
                found = shoot(
                    port, OURS.path.format(model=load.model.stem), bodies, 32, options.seconds, folder
                )
                rates[name].append(found["requests"] / found["seconds"])
    best = {name: max(values) for name, values in rates.items()}
    table(
        f"Lengths {'/'.join(map(str, MIXED))}, {'/'.join(map(str, MIXED.values()))} %, 32 clients",
        [(name, f"{best[name]:.0f}", f"{best[name] / best['filled up to 128']:.2f} x") for name in rates],
        ("texts", "requests/s", "against filled up"),
    )


def report(load: Load, measured: dict[str, dict[int, Point]], options: argparse.Namespace) -> None:
    cores = os.cpu_count() or 1
    _, lone = floor(load, options.threads, 1, 1, 2)
    best = 0.0
    for threads in dict.fromkeys((options.threads, cores)):
        for batch in (1, 8, 32):
            rate, _ = floor(load, threads, max(1, cores // threads), batch, 2)
            best = max(best, rate)
            print(f"  bare ONNX Runtime, {threads} threads a run, batch {batch}: {rate:.0f} rows/s")
    rows = []
    for name, points in measured.items():
        for clients, point in points.items():
            rate, ours = max(point.rates), max(measured["mlx"][clients].rates)
            rows.append(
                (
                    name,
                    str(clients),
                    f"{rate:.0f}",
                    f"{min(point.p50):.2f}",
                    f"{min(point.p99):.2f}",
                    f"{min(point.cpu):.3f}",
                    f"{rate / best:.2f}",
                    f"{min(point.p50) / lone:.2f}" if clients == 1 else "",
                    f"{ours / rate:.1f} x",
                )
            )
    table(
        f"{load.name}, {options.rounds} rounds of {options.seconds:g} s, best of the rounds",
        rows,
        (
            "server",
            "clients",
            "req/s",
            "P50 ms",
            "P99 ms",
            "CPU ms",
            "of bare",
            "P50 of bare",
            "mlx against it",
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--install", action="store_true", help="make the peers' environments, then stop")
    parser.add_argument("--loads", nargs="+", default=["mlp", "encoder"], choices=["mlp", "encoder"])
    parser.add_argument("--servers", nargs="+", default=[server.name for server in ALL])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--seconds", type=float, default=5.0, help="of one point")
    parser.add_argument("--rounds", type=int, default=3)
    half = max(1, (os.cpu_count() or 1) // 2)
    parser.add_argument("--threads", type=int, default=half, help="of a run; as many run as there are cores")
    options = parser.parse_args()
    chosen = [server for server in ALL if server.name in options.servers or server is OURS]
    if options.install:
        install(chosen)
        return
    if shutil.which("wrk") is None:
        raise SystemExit("wrk makes the load, and is not installed: apt-get install wrk")
    missing = [server.name for server in chosen if not server.installed]
    if missing:
        print(f"Not installed: {', '.join(missing)}. `make bench-peers` installs them.")
    present = [server for server in chosen if server.installed]
    with tempfile.TemporaryDirectory() as folder:
        loads = write_loads(Path(folder))
        for name in options.loads:
            load = loads[name]
            measured = {server.name: {clients: Point() for clients in options.clients} for server in present}
            for _ in range(options.rounds):
                for server in present:
                    measure(server, load, options, measured[server.name])
            report(load, measured, options)
            if name == "encoder":
                mixed(load, options, Path(folder))


if __name__ == "__main__":
    main()
