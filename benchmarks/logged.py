"""Logs of requests as a server writes them: of texts to an encoder, and of rows to a network for tables.

Each lies beside the package that answered it, written by the server's own writer and sealed.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from docstrings import docstrings_of
from encoder import build, check, embed

from mlx_platform.core.clock import system_clock
from mlx_platform.core.tensors import Array, Columns, encode_array, text_column
from mlx_platform.inference.build import build_package
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.seal import recover
from mlx_platform.traffic.writer import TrafficWriter

TOPICS = ("file", "network", "number", "text", "time", "thread")
NUMBERS, PLANS = 20, ("free", "team", "firm", "other")
_WAITING = 4096  # records that the writer is given before it is waited for


def answered(model: Model, columns: Columns) -> Record:
    """A request as a server answers and records it."""
    encoded = model.prepare(columns)
    tensors = encoded.merged(model.run(encoded.feeds))
    answers = model.decode(tensors)
    stages = {"raw": columns, "tensor": encoded.feeds, "logits": tensors, "output": answers}
    rows = len(next(iter(columns.values())))
    return Record(
        request_id="",
        time=system_clock(),
        seq=0,
        server_id="",
        boot_id="",
        model=model.name,
        version=model.version,
        digest=model.digest,
        rows=rows,
        inputs={name: encode_array(array) for name, array in columns.items()},
        outputs={name: encode_array(array) for name, array in answers.items()},
        timings_ms={"queue": 0.31, "pre": 0.12, "inference": 1.94, "post": 0.08, "total": 2.75},
        batch_rows=rows,
        hashes={stage: stage_hash(arrays) for stage, arrays in stages.items()},
        runtime=model.runtime,
    )


def write_log(package: Path, rows: int, records: Sequence[Record]) -> None:
    """A sealed log of so many requests beside a package; with too few of them they come again."""
    folder = traffic_of(package, rows)
    first = records[0]
    writer = TrafficWriter(
        folder, model=first.model, version=first.version, queue_bytes=2**30, disk_bytes=2**40
    )
    for number in range(rows):
        record = replace(
            records[number % len(records)],
            request_id=f"{writer.boot_id}-{number}",
            time=system_clock(),
            seq=writer.next_seq(),
            server_id=writer.server_id,
            boot_id=writer.boot_id,
        )
        writer.log(record)
        if number % _WAITING == _WAITING - 1:
            writer.flush()
    writer.close(600)
    recover(folder)
    if writer.counters.logged != rows:
        raise SystemExit(f"Of {rows:,} requests {writer.counters.logged:,} were logged.")


def traffic_of(package: Path, rows: int) -> Path:
    return package.with_name(f"{package.name}-{rows}")


def encoder_package(folder: Path) -> Path:
    """A package of the encoder with a head that says which of a few words a text is closest to."""
    plain = build(folder / "encoder")
    print("cosines", ", ".join(f"{value:.4f}" for value in check(plain)), "as published")
    source = build(folder / "topics-source", head=(TOPICS, embed(plain, TOPICS)))
    return build_package(source, folder / "topics").package.root


def answered_texts(package: Path, count: int, threads: int) -> list[Record]:
    """Docstrings of the standard library, each answered alone."""
    model = Model.load(open_package(package), name=package.name, device="cpu", threads=threads)
    library = Path(statistics.__file__).parent
    texts = [text for path in sorted(library.glob("*.py")) for text in docstrings_of(path)]
    order = np.random.default_rng(0).permutation(len(texts))[:count]
    return [answered(model, {"text": text_column([texts[place]])}) for place in order]


def table_package(package: Path) -> None:
    """A package that takes numbers and a category, and tells three classes apart."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    drawn = np.random.default_rng(0)
    sizes = {"plans": (len(PLANS), 4), "w1": (NUMBERS + 4, 64), "b1": (64,), "w2": (64, 3), "b2": (3,)}
    nodes = [
        helper.make_node("Gather", ["plans", "plan"], ["p"]),
        helper.make_node("Concat", ["x", "p"], ["all"], axis=1),
        helper.make_node("Gemm", ["all", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["probabilities"]),
    ]
    graph = helper.make_graph(
        nodes,
        "churn",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", NUMBERS]),
            helper.make_tensor_value_info("plan", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 3])],
        [
            numpy_helper.from_array(drawn.normal(0, 0.3, size).astype(np.float32), name)
            for name, size in sizes.items()
        ],
    )
    source = package.with_name(f"{package.name}-source")
    source.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, source / "model.onnx")
    names = ", ".join(f'"x{number}"' for number in range(NUMBERS))
    plans = ", ".join(f'"{plan}"' for plan in PLANS)
    (source / "model.toml").write_text(
        f"""format = 1
task = "classification"
labels = ["stays", "asks", "leaves"]

[[pre]]
step = "columns"
names = [{names}]
input = "x"

[[pre]]
step = "categories"
column = "plan"
values = [{plans}]

[[post]]
step = "labels"
output = "probabilities"
"""
    )
    build_package(source, package)


def table_rows(count: int) -> dict[str, Array]:
    drawn = np.random.default_rng(1)
    columns: dict[str, Array] = {
        f"x{number}": np.round(drawn.normal(size=count), 4) for number in range(NUMBERS)
    }
    return columns | {"plan": text_column(drawn.choice(PLANS, count).tolist())}
