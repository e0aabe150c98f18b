"""What a command costs before it does anything: `mlx --help` beside bare Python and MLflow's own CLI.

And how long `mlx serve` takes until it is ready, for a small registered model that is in the cache.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loads import write_loads
from measure import Cost, in_turn, spread, table

BUDGET = 0.25  # CPU seconds
READY_BUDGET = 1.0  # seconds
_ROUNDS = 7


def main() -> None:
    bin_folder = Path(sys.executable).parent
    costs = in_turn(
        {
            "python -c pass": [sys.executable, "-c", "pass"],
            "mlx --help": [str(bin_folder / "mlx"), "--help"],
            "mlx --version": [str(bin_folder / "mlx"), "--version"],
        }
    ) | in_turn({"mlflow --version": [str(bin_folder / "mlflow"), "--version"]}, rounds=3)
    floor = statistics.median(cost.cpu for cost in costs["python -c pass"])
    rows = []
    for name, runs in costs.items():
        cpu = [cost.cpu for cost in runs]
        rows.append(
            (name, spread(cpu), f"{statistics.median(cpu) / floor:.1f}", f"{max(c.memory for c in runs):.0f}")
        )
    table(
        f"Start-up, CPU seconds (budget of mlx: {BUDGET})",
        rows,
        ("command", "min / median / max", "x bare Python", "MB"),
    )
    _starts()


def _starts() -> None:
    """Starts of a server, in turn with the imports that none of its kind can do without."""
    floor = "import asyncio, numpy, onnxruntime, uvloop, httptools"
    costs: dict[str, list[Cost]] = {"mlx serve": [], "without gRPC": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _register(folder)
        bare = in_turn({"imports": [sys.executable, "-c", floor]})["imports"]
        for number in range(_ROUNDS + 1):
            for title, more in zip(costs, ((), ("--grpc-port", "-1")), strict=True):
                cost = _ready(folder, more)
                if number:  # the first one fills the cache
                    costs[title].append(cost)
    rows = [
        (title, spread([cost.wall for cost in taken]), spread([cost.cpu for cost in taken]))
        for title, taken in (("imports alone", bare), *costs.items())
    ]
    table(
        f"Until ready, min / median / max (budget of mlx serve: {READY_BUDGET} s)",
        rows,
        ("process", "seconds", "CPU seconds"),
    )


def _register(folder: Path) -> None:
    """One version of a small network, in a registry in this folder."""
    from mlx_platform.core.settings import load_settings
    from mlx_platform.inference.build import build_package
    from mlx_platform.registry.catalog import Catalog
    from mlx_platform.registry.version import Lineage

    lineage = Lineage(
        dataset_version="none", dataset_fingerprint="", git_commit="0" * 40, params={}, metrics={}
    )
    package = build_package(write_loads(folder)["mlp"].model, folder / "package").package
    Catalog(load_settings(start=folder, environment={})).register("mlp", package, lineage)


def _ready(folder: Path, more: tuple[str, ...]) -> Cost:
    """What a server took until it printed that it is ready; memory is left out."""
    command = [sys.executable, "-m", "mlx_platform.cli", "serve", "mlp/1", "--json"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--traffic", "traffic", *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        line = process.stdout.readline()
        wall = time.perf_counter() - began
        if not line:
            raise SystemExit(f"{' '.join(command)} did not become ready.")
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    return Cost(sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"), wall, 0.0)


if __name__ == "__main__":
    main()
