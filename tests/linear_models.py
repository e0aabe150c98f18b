"""Linear models as sources to register, and rows that they can be right or wrong about."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper, numpy_helper

from mlx_platform.inference.build import BuildOptions, build_package
from mlx_platform.inference.package import Package

LABELS = ("red", "green", "blue")


def classifier(folder: Path, weights: np.ndarray, *, labels: Sequence[str] = LABELS) -> Path:
    """A source folder: softmax of the columns `x0, x1 ...` times the weights [columns, labels]."""
    names = [f"x{index}" for index in range(len(weights))]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    toml = f"""format = 1
task = "classification"
labels = [{", ".join(f'"{label}"' for label in labels)}]
[[pre]]
step = "columns"
names = {names}
[[post]]
step = "labels"
output = "probabilities"
"""
    return write_source(
        folder,
        nodes,
        {"w": weights},
        toml.replace("'", '"'),
        len(weights),
        ("probabilities", weights.shape[1]),
    )


def regressor(folder: Path, weights: np.ndarray) -> Path:
    """A source folder: the columns in file order times the weights [columns, 1]."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["value"])]
    toml = 'format = 1\ntask = "regression"\n'
    return write_source(folder, nodes, {"w": weights}, toml, len(weights), ("value", 1))


def write_source(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    toml: str,
    columns: int,
    output: tuple[str, int],
) -> Path:
    """A source folder with a graph of the input `x` [n, columns] and an output of a name and a width."""
    folder.mkdir(parents=True)
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])],
        [helper.make_tensor_value_info(output[0], TensorProto.FLOAT, ["n", output[1]])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    (folder / "model.toml").write_text(toml)
    return folder


def pack(source: Path) -> Package:
    """Build the package of a source beside it."""
    return build_package(source, source.with_name(source.name + "-package"), BuildOptions()).package


def colours(rows: int, *, noise: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features [rows, 3], the largest of which names the colour, and the colour's code with some noise."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 3)).astype(np.float32)
    return features, (features + generator.normal(0, noise, features.shape)).argmax(axis=1)


def write_rows(path: Path, features: np.ndarray, **columns: Sequence[object]) -> Path:
    """Write features as `x0, x1 ...` beside other columns."""
    table = {f"x{index}": features[:, index] for index in range(features.shape[1])}
    pq.write_table(pa.table(table | {name: list(column) for name, column in columns.items()}), path)
    return path
