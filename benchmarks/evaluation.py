"""What `mlx eval` costs beside bare ONNX Runtime, for a real text encoder, and what memory more rows take.

Both sides answer the same rows with the same threads in one process, in turns. The bare side is given tokens
that were made before: it only runs the network. The side of mlx is the whole command but its start and its
intervals: reading the file, tokenizing, running, collecting the answers.
"""

import argparse
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from docstrings import docstrings_of
from encoder import build, check, embed, tokens
from measure import cost_of, spread, table

from mlx_platform.core.progress import Advance
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.evaluate import evaluate
from mlx_platform.workflows.evaluation.answerer import Running

BUDGET = 1.15
BATCH = 64
MLX = str(Path(sys.executable).parent / "mlx")
_CLASSES = 8
_WIDE = 64  # columns of the rows that memory is measured with

Feeds = dict[str, npt.NDArray[np.int64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mlx-bench-") as name:
        folder = Path(name)
        os.environ["MLX_CACHE_DIR"] = str(folder / "cache")
        # First, since a child is charged with what its parent held when it was made.
        _memory(folder)
        _compare(folder, chosen.rows, chosen.rounds, chosen.threads)


def _compare(folder: Path, rows: int, rounds: int, threads: int) -> None:
    source, texts, labels = _classifier(folder, rows, threads)
    data = folder / "texts.parquet"
    pq.write_table(pa.table({"text": texts, "label": labels}), data)
    watch = Stopwatch()
    settings = Settings(folder=folder, actor="benchmark", cache=CacheSettings(dir=str(folder / "cache")))
    context = Context(**{**_fields(make_context(settings)), "progress": watch})
    session = _session(source, threads)
    by_length = sorted(texts, key=len, reverse=True)
    batches = {
        "as the rows come": _batches(source, texts),
        "texts of like length": _batches(source, by_length),
    }

    def ours() -> None:
        running = Running(BATCH, threads)
        evaluate(context, str(source), data=data, gate_expressions=("accuracy>=0",), running=running)

    bare = {name: _run_all(session, feeds) for name, feeds in batches.items()}
    times: dict[str, list[float]] = {name: [] for name in ("mlx eval", *bare)}
    for number in range(rounds + 1):
        found = {name: _cpu(run) for name, run in bare.items()}
        watch.spent = 0.0
        ours()
        found["mlx eval"] = watch.spent
        if number:
            for name, spent in found.items():
                times[name].append(spent)
    _report(times, batches, rows, threads)


def _report(
    times: Mapping[str, Sequence[float]], batches: Mapping[str, Sequence[Feeds]], rows: int, threads: int
) -> None:
    ours = times["mlx eval"]
    lines = []
    for name, spent in times.items():
        ratio = statistics.median(one / other for one, other in zip(ours, spent, strict=True))
        feeds = batches.get(name, ())
        padded = sum(feed["input_ids"].size for feed in feeds)
        lines.append(
            (
                name if name == "mlx eval" else f"bare, batches: {name}",
                spread(spent),
                f"{1000 * statistics.median(spent) / rows:.1f}",
                f"{padded:,}" if padded else "",
                f"{ratio:.3f}",
            )
        )
    table(
        f"Encoder, {rows:,} texts, batches of {BATCH}, threads: {threads} (budget: {BUDGET} x bare)",
        lines,
        ("side", "CPU s, min / median / max", "ms a text", "tokens with padding", "mlx eval / side"),
    )


class Stopwatch:
    """A progress that adds up the CPU seconds of the stages that answer rows."""

    def __init__(self) -> None:
        self.spent = 0.0

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:  # noqa: ARG002 - nothing is drawn
        began = time.process_time()
        yield lambda _units: None
        if name.startswith("answering"):
            self.spent += time.process_time() - began


def _fields(context: Context) -> dict[str, Any]:
    return {name: getattr(context, name) for name in ("settings", "catalog", "clock", "actor")}


def _cpu(run: Callable[[], None]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def _session(source: Path, threads: int) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(str(source / "model.onnx"), options, providers=["CPUExecutionProvider"])


def _run_all(session: Any, batches: Sequence[Feeds]) -> Callable[[], None]:
    def run() -> None:
        for feeds in batches:
            session.run(None, feeds)

    return run


def _batches(source: Path, texts: Sequence[str]) -> list[Feeds]:
    return [tokens(source, texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]


def _classifier(folder: Path, rows: int, threads: int) -> tuple[Path, list[str], list[str]]:
    """The encoder with a head for modules that docstrings come from, and docstrings with their modules."""
    plain = build(folder / "encoder")
    print("cosines", ", ".join(f"{value:.4f}" for value in check(plain)), "as published")
    texts, labels = _docstrings(rows + 8 * _CLASSES)
    names = sorted(set(labels))
    known = embed(plain, texts[rows:], threads=threads)
    means = np.stack([known[[label == name for label in labels[rows:]]].mean(axis=0) for name in names])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return build(folder / "classifier", head=(names, means)), texts[:rows], labels[:rows]


def _docstrings(count: int) -> tuple[list[str], list[str]]:
    """First paragraphs of the standard library's docstrings, from the modules that have most of them."""
    found: dict[str, list[str]] = {}
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if parts[0] in ("site-packages", "test", "idlelib", "lib2to3"):
            continue
        found.setdefault(parts[0], []).extend(docstrings_of(path))
    largest = sorted(found, key=lambda name: (-len(found[name]), name))[:_CLASSES]
    pairs = [(text, name) for name in largest for text in islice(found[name], -(-count // _CLASSES))]
    order = np.random.default_rng(0).permutation(len(pairs))[:count]
    texts, labels = zip(*(pairs[place] for place in order), strict=True)
    return list(texts), list(labels)


def _memory(folder: Path) -> None:
    """The peak of the whole command on a table, and on ten of it."""
    source, base = _table_model(folder / "table"), 20_000
    generator = np.random.default_rng(0)
    files = {}
    for times in (1, 10):
        files[times] = folder / f"rows{times}.parquet"
        with pq.ParquetWriter(files[times], _schema()) as writer:
            for _ in range(times):
                writer.write_table(_rows(generator, base))
    lines = []
    for times, path in files.items():
        cost = cost_of(
            [MLX, "eval", str(source), "--data", str(path), "--gate", "rmse<=1e9"], cwd=str(folder)
        )
        lines.append(
            (f"{times * base:,}", f"{path.stat().st_size / 1e6:.0f}", f"{cost.memory:.0f}", f"{cost.cpu:.1f}")
        )
    table(f"Memory of mlx eval, {_WIDE} columns", lines, ("rows", "file, MB", "peak, MB", "CPU s"))


def _schema() -> pa.Schema:
    return pa.schema([*((f"x{column}", pa.float64()) for column in range(_WIDE)), ("label", pa.float64())])


def _rows(generator: np.random.Generator, count: int) -> pa.Table:
    values = generator.normal(size=(count, _WIDE))
    columns = {f"x{column}": values[:, column] for column in range(_WIDE)}
    return pa.table(columns | {"label": values.sum(axis=1)}, schema=_schema())


def _table_model(folder: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((_WIDE, 1), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["value"])],
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", _WIDE])],
        [helper.make_tensor_value_info("value", TensorProto.FLOAT, ["n", 1])],
        [weights],
    )
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    (folder / "model.toml").write_text('format = 1\ntask = "regression"\n')
    return folder


if __name__ == "__main__":
    main()
