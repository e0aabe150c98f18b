"""What `mlx consistency` costs beside bare ONNX Runtime, and what time and memory a long log takes.

    python benchmarks/consistency.py              a real text encoder, then a million logged rows of a table
    python benchmarks/consistency.py --quick      twenty thousand of them

The bare side runs the very batches that the replay gave to the network, with the session options of mlx, in
the same process and in turns: what is beyond it goes into reading the log, tokenizing, hashing and comparing.
Long logs are checked by whole processes, with reading alone and the network alone beside them. All of them
are written by the server's own writer, and sealed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from logged import (
    NUMBERS,
    answered,
    answered_texts,
    encoder_package,
    table_package,
    table_rows,
    traffic_of,
    write_log,
)
from measure import cost_of, table

from mlx_platform.core.progress import Advance
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.inference.session import Session
from mlx_platform.traffic.log import read_log
from mlx_platform.traffic.seal import ROW_GROUP
from mlx_platform.workflows.consistency import check_consistency
from mlx_platform.workflows.context import make_context

BUDGET_SPEED, BUDGET_MEMORY = 0.85, 1.1
MLX = str(Path(sys.executable).parent / "mlx")
_BATCH = 64
_DISTINCT = 20_000  # tables' requests that are answered; a longer log holds them again

Feeds = Mapping[str, npt.NDArray[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the long log")
    parser.add_argument("--quick", action="store_true", help="a long log of 20,000 rows, and fewer rounds")
    parser.add_argument("--child", nargs="+", metavar="X", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        what, folder, rows = chosen.child
        _CHILDREN[what](Path(folder), int(rows))
        return
    rows, rounds, texts = (20_000, 3, 256) if chosen.quick else (chosen.rows, chosen.rounds, chosen.texts)
    with tempfile.TemporaryDirectory(prefix="mlx-bench-") as name:
        folder = Path(name)
        os.environ["MLX_CACHE_DIR"] = str(folder / "cache")
        # First, since a child is charged with what its parent held when it was made.
        _long_logs(folder, (rows // 10, rows))
        _against_bare(folder, texts, rounds, chosen.threads)


def _long_logs(folder: Path, sizes: Sequence[int]) -> None:
    """The whole command on a log of a table's requests, and on one of ten times as many."""
    package = folder / "churn"
    _run_child("build", package, 0)
    lines, memory = [], []
    for rows in sizes:
        _run_child("write", package, rows)
        traffic = traffic_of(package, rows)
        ours = cost_of([MLX, "consistency", str(package), "--traffic", str(traffic)], cwd=str(folder))
        read, bare = (cost_of(_child(what, package, rows)) for what in ("read", "bare"))
        start_of_read, start_of_bare = (cost_of(_child(what, package, 0)) for what in ("read", "bare"))
        floor = read.cpu - start_of_read.cpu + bare.cpu - start_of_bare.cpu
        memory.append(ours.memory)
        size = sum(path.stat().st_size for path in traffic.rglob("*") if path.is_file())
        lines.append(
            (
                f"{rows:,}",
                f"{size / 1e6:,.0f}",
                f"{ours.wall / 60:.2f}",
                f"{ours.cpu:.1f}",
                f"{1e6 * ours.cpu / rows:.0f}",
                f"{read.cpu - start_of_read.cpu:.1f}",
                f"{bare.cpu - start_of_bare.cpu:.1f}",
                f"{ours.cpu / floor:.2f}",
                f"{ours.memory:.0f}",
            )
        )
    table(
        f"Logged requests of a table, {NUMBERS + 1} columns, checked by `mlx consistency`",
        lines,
        (
            "requests",
            "log, MB",
            "minutes",
            "CPU s",
            "CPU us each",
            "reading alone, CPU s",
            "network alone, CPU s",
            "command / both",
            "peak, MB",
        ),
    )
    if sizes[0] < 2 * ROW_GROUP:
        print(f"  Memory is not compared: {sizes[0]:,} requests do not fill what is read at a time.")
        return
    grown = memory[-1] / memory[0]
    print(f"  ten times the log takes {grown:.2f} x the memory (budget: <= {BUDGET_MEMORY} x)")


def _against_bare(folder: Path, texts: int, rounds: int, threads: int) -> None:
    """Replay of an encoder's requests, in turns with the network alone on the same batches."""
    package = encoder_package(folder)
    write_log(package, texts, answered_texts(package, texts, threads))
    watch = Stopwatch()
    settings = Settings(
        folder=folder,
        actor="benchmark",
        cache=CacheSettings(dir=str(folder / "cache")),
        serving=ServingSettings(intra_op_threads=threads),
    )
    context = make_context(settings, progress=watch)

    def replay() -> None:
        result = check_consistency(context, str(package), traffic=traffic_of(package, texts))
        if result.verdict is Verdict.FAIL or result.data["requests"]["compared"] != texts:
            raise SystemExit(f"The replay of a faithful log does not agree: {result.report.summary}")

    batches = _batches_of(replay)
    session = _bare_session(package, threads)
    padded = _padded(batches)
    same, alike = "bare, the same batches", f"bare, {_BATCH} of like length"
    counts = {"replay": batches, same: batches, f"{same}, once more": batches, alike: padded}

    def spent(name: str) -> Spent:
        if name != "replay":
            return _timed(lambda: _run_all(session, counts[name]))
        watch.spent = Spent()
        replay()
        return watch.spent

    times: dict[str, list[Spent]] = {name: [] for name in counts}
    names = list(counts)
    for number in range(rounds + 1):  # the first warms up; the order moves on, since who comes first may pay
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found = spent(name)
            if number:
                times[name].append(found)
    lines = []
    for name, taken in times.items():
        by_time = [one.wall / other.wall for one, other in zip(taken, times["replay"], strict=True)]
        by_cpu = [one.cpu / other.cpu for one, other in zip(taken, times["replay"], strict=True)]
        lines.append(
            (
                name,
                f"{len(counts[name])}",
                f"{texts / statistics.median(one.wall for one in taken):.1f}",
                f"{texts / statistics.median(one.cpu for one in taken):.1f}",
                _shares(by_time),
                _shares(by_cpu),
            )
        )
    table(
        f"Replay of {texts:,} texts through an encoder, threads: {threads}, rounds: {rounds} "
        f"(budget: >= {BUDGET_SPEED:.0%} of the same batches)",
        lines,
        ("side", "runs", "rows/s", "rows/CPU s", "replay reaches, by time", "by CPU: min / median / max"),
    )


def _shares(ratios: Sequence[float]) -> str:
    return (
        " / ".join(f"{100 * one:.0f}" for one in (min(ratios), statistics.median(ratios), max(ratios))) + " %"
    )


@dataclass(slots=True)
class Spent:
    """Seconds of the wall clock, and of all threads of this process."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass(slots=True)
class Stopwatch:
    """A progress that adds up what the stage of the replay took."""

    spent: Spent = field(default_factory=Spent)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:  # noqa: ARG002 - nothing is drawn
        began = time.perf_counter(), time.process_time()
        yield lambda _units: None
        if name == "replaying":
            self.spent.wall += time.perf_counter() - began[0]
            self.spent.cpu += time.process_time() - began[1]


def _timed(run: Callable[[], None]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def _batches_of(replay: Callable[[], None]) -> list[Feeds]:
    """What a replay gives to the network, run by run."""
    found: list[Feeds] = []
    run = Session.run

    def noted(session: Session, feeds: Tensors, *rest: Any, **named: Any) -> dict[str, Array]:
        found.append(feeds)
        return run(session, feeds, *rest, **named)

    with patch.object(Session, "run", noted):
        replay()
    return found


def _padded(batches: Iterable[Feeds]) -> list[Feeds]:
    """The same rows, the longest first, padded to the longest of each batch: what an offline job would do."""
    rows = [
        {name: array[row] for name, array in feeds.items()}
        for feeds in batches
        for row in range(len(feeds["input_ids"]))
    ]
    rows.sort(key=lambda row: -len(row["input_ids"]))
    return [
        {
            name: np.stack([np.pad(row[name], (0, len(part[0][name]) - len(row[name]))) for row in part])
            for name in part[0]
        }
        for part in (rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH))
    ]


def _run_all(session: Any, batches: Iterable[Feeds]) -> None:
    for feeds in batches:
        session.run(None, feeds)


def _bare_session(package: Path, threads: int) -> Any:
    """ONNX Runtime alone, with the options that mlx sets."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    path = str(open_package(package).model_path)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _build_table(package: Path, _rows: int) -> None:
    table_package(package)


def _write_table(package: Path, rows: int) -> None:
    model = Model.load(open_package(package), name=package.name, device="cpu", threads=1)
    count = min(rows, _DISTINCT)
    columns = table_rows(count)
    requests = ({name: column[row : row + 1] for name, column in columns.items()} for row in range(count))
    write_log(package, rows, [answered(model, request) for request in requests])


def _read_table(package: Path, rows: int) -> None:
    """Read as many requests as there are in a log; none to tell what starting takes."""
    if rows and sum(1 for _ in read_log(traffic_of(package, rows))[0]) != rows:
        raise SystemExit("The log is not whole.")


def _run_table(package: Path, rows: int) -> None:
    """The network alone on so many rows, their tensors made before."""
    model = Model.load(open_package(package), name=package.name, device="cpu", threads=1)
    feeds = model.encode(table_rows(_BATCH))
    session = _bare_session(package, 1)
    for _ in range(0, rows, _BATCH):
        session.run(None, feeds)


_CHILDREN: Mapping[str, Callable[[Path, int], None]] = {
    "build": _build_table,
    "write": _write_table,
    "read": _read_table,
    "bare": _run_table,
}


def _child(what: str, package: Path, rows: int) -> list[str]:
    return [sys.executable, __file__, "--child", what, str(package), str(rows)]


def _run_child(what: str, package: Path, rows: int) -> None:
    subprocess.run(_child(what, package, rows), check=True)


if __name__ == "__main__":
    main()
