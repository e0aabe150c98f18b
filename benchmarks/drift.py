"""What `mlx drift` costs beside Evidently, and beside a bare scan of the same files, in CPU time and memory.

    python benchmarks/drift.py                        a million rows on both sides, and ten times as many
    python benchmarks/drift.py --rows 100000000       a window of a hundred million rows (25 GB on disk)

Twenty numeric columns and five categorical ones, some of which have moved. The floor reads every column of
every row group with pyarrow and does nothing with it. Whole processes are measured, in turns: importing,
reading, comparing, and for `mlx` printing JSON.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import cost_of, table

MLX = str(Path(sys.executable).parent / "mlx")
BUDGET_CPU, BUDGET_MEMORY, BUDGET_RATIO, BUDGET_SCAN = 3.0, 250.0, 25.0, 4.0
_GROUP = 1_000_000  # rows of a row group that is written again and again
_SCAN = """
import sys
import pyarrow.parquet as pq
for path in sys.argv[1:]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=131072, use_threads=False):
            batch.num_rows
"""
_EVIDENTLY = """
import sys
import pandas as pd
from evidently import Report
from evidently.presets import DataDriftPreset
baseline, window = (pd.read_parquet(path) for path in sys.argv[1:])
Report([DataDriftPreset(method="psi")]).run(window, baseline).dict()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the large window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-evidently", action="store_true", help="it takes minutes and 3 GB")
    parser.add_argument("--write", nargs=4, metavar="X", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.write:
        path, rows, seed, moved = chosen.write
        _write(Path(path), int(rows), int(seed), moved=moved == "moved")
        return
    with tempfile.TemporaryDirectory(prefix="mlx-bench-") as name:
        folder = Path(name)
        baseline = _made(folder / "baseline.parquet", 1_000_000, 1, "as it was")
        window = _made(folder / "window.parquet", 1_000_000, 2, "moved")
        _compare(baseline, window, chosen.rounds, evidently=not chosen.without_evidently)
        if chosen.rows > 1_000_000:
            large = _made(folder / "large.parquet", chosen.rows, 3, "moved")
            _grow(folder, baseline, {1_000_000: window, chosen.rows: large})


def _compare(baseline: Path, window: Path, rounds: int, *, evidently: bool) -> None:
    files = [str(baseline), str(window)]
    ours = [MLX, "drift", "--baseline", files[0], "--traffic", files[1], "--json"]
    found = [cost_of(ours, expect=(5,)) for _ in range(rounds)]
    scans = [cost_of([sys.executable, "-c", _SCAN, *files]) for _ in range(rounds)]
    cpu, memory = min(cost.cpu for cost in found), max(cost.memory for cost in found)
    scan = min(cost.cpu for cost in scans)
    rows = [
        ("mlx drift", f"{cpu:.2f}", f"{memory:.0f}", "1.0 x", f"<= {BUDGET_CPU} s, {BUDGET_MEMORY:.0f} MB"),
        ("bare scan", f"{scan:.2f}", f"{max(cost.memory for cost in scans):.0f}", f"{scan / cpu:.2f} x", ""),
    ]
    if evidently:
        theirs = cost_of([sys.executable, "-W", "ignore", "-c", _EVIDENTLY, *files])
        ratio = f"{theirs.cpu / cpu:.1f} x"
        rows.append(("Evidently", f"{theirs.cpu:.1f}", f"{theirs.memory:.0f}", ratio, f">= {BUDGET_RATIO} x"))
    columns = ("what", "CPU s", "peak MB", "of mlx", "budget")
    table("A million rows of 25 columns against a million", rows, columns)


def _grow(folder: Path, baseline: Path, windows: dict[int, Path]) -> None:
    """A profile once, then windows of two sizes counted on it."""
    profile = folder / "profile.json"
    cost_of([MLX, "profile", "build", str(baseline), "-o", str(profile)])
    rows = []
    for count, path in windows.items():
        command = [MLX, "drift", "--baseline", str(profile), "--traffic", str(path), "--json"]
        ours = cost_of(command, expect=(5,))
        scan = cost_of([sys.executable, "-c", _SCAN, str(path)])
        ratio = f"{ours.cpu / scan.cpu:.2f} x"
        memory = (f"{ours.memory:.0f}", f"{scan.memory:.0f}")
        rows.append((f"{count:,}", f"{ours.cpu:.1f}", f"{scan.cpu:.1f}", ratio, *memory))
    title = f"Against a kept profile (budget: {BUDGET_SCAN} x the scan, memory flat)"
    table(title, rows, ("rows", "CPU s", "scan CPU s", "of the scan", "peak MB", "scan MB"))


def _made(path: Path, rows: int, seed: int, moved: str) -> Path:
    """Written by another process: a child is charged with what its parent held when it was made."""
    write = [sys.executable, __file__, "--write", str(path), str(rows), str(seed), moved]
    subprocess.run(write, check=True)
    return path


def _write(path: Path, rows: int, seed: int, *, moved: bool) -> None:
    """A Parquet file in row groups of 131,072 rows; beyond a million rows the same million comes again."""
    import pyarrow.parquet as pq

    group = _columns(min(rows, _GROUP), seed, moved=moved)
    with pq.ParquetWriter(path, group.schema, compression="snappy") as writer:
        written = 0
        while written < rows:
            part = group.slice(0, min(group.num_rows, rows - written))
            writer.write_table(part, row_group_size=131_072)
            written += part.num_rows


def _columns(rows: int, seed: int, *, moved: bool) -> Any:
    import numpy as np
    import pyarrow as pa

    generator = np.random.default_rng(seed)
    columns: dict[str, object] = {}
    for number in range(20):
        values = generator.lognormal(0, 1, rows) if number % 2 else generator.normal(size=rows)
        if moved and number < 5:
            values = values * 1.1 + 0.3
        columns[f"n{number}"] = values
    for number, count in enumerate((3, 10, 50, 200, 1000)):
        weights = 1 / np.arange(1, count + 1)
        names = pa.array([f"value {index}" for index in range(count)])
        shift = 1 if moved and number == 1 else 0
        places = (generator.choice(count, rows, p=weights / weights.sum()) + shift) % count
        columns[f"c{number}"] = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), names)
    return pa.table(columns)


if __name__ == "__main__":
    main()
