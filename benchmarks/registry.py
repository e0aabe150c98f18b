"""What questions to a registry and moves in it cost, beside MLflow's client and command line.

Each figure is a whole process, from its start to its end. Ratios come from one run, whose commands take
turns.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from measure import Cost, Step, cpu, spread, steps_in_turn, table, wall
from registries import MLX, NAME, fill

BUDGET = 0.35  # CPU seconds of a question, by the design
PYTHON = sys.executable
MLFLOW = str(Path(PYTHON).with_name("mlflow"))

_CLIENT = "from mlflow import MlflowClient; c = MlflowClient(tracking_uri={uri!r}, registry_uri={uri!r}); "
PEERS = {
    "client: version of an alias": f"c.get_model_version_by_alias({NAME!r}, 'production')",
    "client: search, 20 newest": f"c.search_model_versions(\"name='{NAME}'\", max_results=20)",
    "client: search, all": f"[c.search_model_versions(\"name='{NAME}'\", max_results=10000)]",
    "client: set an alias": f"c.set_registered_model_alias({NAME!r}, 'champion', '1')",
}
PAIRS = {
    "mlx resolve": "client: version of an alias",
    "mlx list": "client: search, 20 newest",
    "mlx list --where": "client: search, all",
    "mlx promote": "client: set an alias",
    "mlx rollback": "client: set an alias",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--versions", type=int, nargs="+", default=[2000, 10_000])
    parser.add_argument("--only", choices=("sqlite", "server"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mlx-bench-") as folder:
        os.environ["MLX_CACHE_DIR"] = str(Path(folder) / "cache")
        os.environ["MLX_ACTOR"] = "benchmark"
        os.environ["MLX_REGISTRY_TIMEOUT"] = "300"  # a busy machine is measured all the same
        projects = dict(_projects(Path(folder), chosen.versions))
        local, remote = {}, {}
        for size, project in projects.items():
            if chosen.only != "server":
                local[size] = _measured(project, size, rounds=chosen.rounds)
                _report(f"SQLite, {size:,} versions", local[size])
            if chosen.only != "sqlite":
                with server(project) as uri:
                    remote[size] = _measured(project, size, rounds=chosen.rounds, uri=uri)
                _report(f"MLflow server on this machine over REST, {size:,} versions", remote[size])
        _flatness("SQLite", local)
        _flatness("MLflow server", remote)


def _projects(folder: Path, sizes: Sequence[int]) -> Iterator[tuple[int, Path]]:
    """A project for each size; the tables are made once, and the last two versions are real packages."""
    template = folder / "template"
    template.mkdir()
    subprocess.run([MLX, "init", "--quiet"], cwd=template, check=True, stdout=subprocess.DEVNULL)
    for size in sizes:
        project = folder / str(size)
        shutil.copytree(template, project)
        fill(project / "mlx.db", size - 2, moves=200)
        for number in (1, 2):
            model = _network(project / f"model{number}.onnx", float(number))
            for command in (["register", NAME, str(model)], ["promote", f"{NAME}/{size - 2 + number}"]):
                extra = ["--to", "production", *_OVERRIDE] if command[0] == "promote" else []
                subprocess.run(
                    [MLX, *command, *extra, "--quiet"], cwd=project, check=True, stdout=subprocess.DEVNULL
                )
        yield size, project


_OVERRIDE = ["--override", "all", "--override", "quarantine", "--reason", "benchmark"]


def _network(path: Path, scale: float) -> Path:
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor("scale", TensorProto.FLOAT, [1], [scale])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def _measured(project: Path, size: int, *, rounds: int, uri: str = "") -> dict[str, list[Cost]]:
    registry = ["--registry", uri] if uri else []
    mlflow_uri = uri or f"sqlite:///{project / 'mlx.db'}"
    where = "metrics.f1 >= 0.9 and params.lr < 0.1"

    def mlx(*words: str) -> list[str]:
        return [MLX, *words, *registry]

    steps = [
        Step("python -c pass", [PYTHON, "-c", "pass"]),
        Step("mlx --help", [MLX, "--help"]),
        Step("mlx resolve", mlx("resolve", f"{NAME}@production")),
        Step("mlx list", mlx("list", NAME)),
        Step("mlx list --where", mlx("list", NAME, "--where", where)),
        Step("mlx show", mlx("show", f"{NAME}@production")),
        Step("mlx history", mlx("history", NAME)),
        Step(
            "Tab after NAME@",
            [MLX, "show", *registry, f"{NAME}@"],
            environment={"_MLX_COMPLETE": "zsh"},
        ),
        # Production is at the newest: each round moves it back, and forth again.
        Step("mlx rollback", mlx("rollback", NAME, "--reason", "benchmark")),
        Step("mlx promote", mlx("promote", f"{NAME}/{size}", "--to", "production", *_OVERRIDE)),
    ]
    costs = steps_in_turn(steps, rounds=rounds, cwd=str(project))
    peers = [
        Step(name, [PYTHON, "-c", _CLIENT.format(uri=mlflow_uri) + call]) for name, call in PEERS.items()
    ]
    if not uri:
        peers.append(Step("mlflow --version", [MLFLOW, "--version"]))
    return costs | steps_in_turn(peers, rounds=max(1, rounds // 2), cwd=str(project))


@contextmanager
def server(project: Path) -> Iterator[str]:
    """A live MLflow server on the project's registry."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [MLFLOW, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{project / 'mlx.db'}"]
    command += ["--artifacts-destination", str(project / "mlx-artifacts")]
    process = subprocess.Popen(
        command, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    uri = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{uri}/health", process)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit("The MLflow server did not start.")
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - our own server
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    raise SystemExit("The MLflow server never answered.")


def _report(title: str, costs: Mapping[str, Sequence[Cost]]) -> None:
    floor = cpu(costs["python -c pass"])
    rows = []
    for name, runs in costs.items():
        peer = PAIRS.get(name)
        times = f"{cpu(costs[peer]) / cpu(runs):.1f} x less than {peer!r}" if peer else ""
        rows.append(
            (
                name,
                spread([cost.cpu for cost in runs]),
                f"{cpu(runs) / floor:.1f}",
                f"{wall(runs):.2f}",
                times,
            )
        )
    columns = ("command", "CPU s, min / median / max", "x bare Python", "wall s", "CPU beside MLflow")
    table(f"{title} (budget of a question: {BUDGET} s CPU)", rows, columns)


def _flatness(title: str, measured: Mapping[int, Mapping[str, Sequence[Cost]]]) -> None:
    sizes = sorted(measured)
    if len(sizes) < 2:
        return
    small, large = measured[sizes[0]], measured[sizes[-1]]
    rows = [
        (name, f"{cpu(large[name]) / cpu(small[name]):.2f}", f"{wall(large[name]) / wall(small[name]):.2f}")
        for name in small
        if name.startswith(("mlx", "Tab", "client"))
    ]
    table(f"{title}: {sizes[-1]:,} versions against {sizes[0]:,}", rows, ("command", "x CPU", "x wall"))


if __name__ == "__main__":
    main()
