"""A good model, and versions of it that are ill in one way or another: once in traffic, and not before.

The ill ones answer their golden cases as everybody does. What makes them ill is a number that no golden case
has: the column `x3` above `SICK`, and `x2`, between 0 and 1, above the share of requests that stay well.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlx_platform.inference.build import BuildOptions, build_package
from mlx_platform.inference.package import Package

SICK = 1000.0
LABELS = ("red", "green", "blue")
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_WEIGHTS = np.array([[4, 0, 0], [0, 4, 0], [0, 0, 4], [0, 0, 0]], np.float32)
_TOML = """format = 1
task = "classification"
labels = ["red", "green", "blue"]
[[pre]]
step = "columns"
names = ["x0", "x1", "x2", "x3"]
[[post]]
step = "labels"
output = "probabilities"
"""


def package(folder: Path, *, ill: str = "", well: float = 0.0, seed: int = 0, shift: int = 0) -> Package:
    """Build a version.

    Args:
        folder: where; made.
        ill: "raises", "nan" or "slow"; empty for a sound one.
        well: share of the requests that an ill one answers all the same.
        seed: makes versions differ by what no answer shows.
        shift: of the labels, by so many places.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    weights = np.roll(_WEIGHTS, shift, axis=1) + np.float32(1e-6 * seed)
    constants = [
        numpy_helper.from_array(weights.astype(np.float32), "w"),
        numpy_helper.from_array(np.array([3], np.int64), "last"),
        numpy_helper.from_array(np.array([2], np.int64), "third"),
        numpy_helper.from_array(np.array(SICK, np.float32), "sick"),
        numpy_helper.from_array(np.array(well, np.float32), "well"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["sound"], axis=1),
        helper.make_node("Gather", ["x", "last"], ["x3"], axis=1),
        helper.make_node("Gather", ["x", "third"], ["x2"], axis=1),
        helper.make_node("Greater", ["x3", "sick"], ["in_traffic"]),
        helper.make_node("GreaterOrEqual", ["x2", "well"], ["unlucky"]),
        helper.make_node("And", ["in_traffic", "unlucky"], ["ill"]),
    ]
    match ill:
        case "raises":
            constants.append(numpy_helper.from_array(np.array([0], np.float32), "only"))
            nodes += [
                helper.make_node("Cast", ["ill"], ["place"], to=I64),
                helper.make_node("Gather", ["only", "place"], ["nothing"]),  # there is no place 1
                helper.make_node("Add", ["sound", "nothing"], ["probabilities"]),
            ]
        case "nan":
            constants.append(numpy_helper.from_array(np.array(np.nan, np.float32), "nan"))
            nodes.append(helper.make_node("Where", ["ill", "nan", "sound"], ["probabilities"]))
        case "slow":
            nodes += _slow(constants)
        case _:
            nodes.append(helper.make_node("Identity", ["sound"], ["probabilities"]))
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("x", F32, ["n", 4])],
        [helper.make_tensor_value_info("probabilities", F32, ["n", 3])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, source / "model.onnx")
    (source / "model.toml").write_text(_TOML)
    return build_package(source, folder / "package", BuildOptions()).package


def _slow(constants: list[onnx.TensorProto]) -> list[onnx.NodeProto]:
    """Some ten milliseconds of counting."""
    constants += [
        numpy_helper.from_array(np.array(20_000, np.int64), "long"),
        numpy_helper.from_array(np.array(True), "true"),
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
    ]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Identity", ["v"], ["v_out"])],
        "body",
        [
            helper.make_tensor_value_info("k", I64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("v", F32, []),
        ],
        [helper.make_tensor_value_info("go_on", BOOL, []), helper.make_tensor_value_info("v_out", F32, [])],
    )
    return [
        helper.make_node("Cast", ["ill"], ["ill_ones"], to=I64),
        helper.make_node("ReduceMax", ["ill_ones"], ["any"], keepdims=0),
        helper.make_node("Mul", ["any", "long"], ["trips"]),
        helper.make_node("Loop", ["trips", "true", "zero"], ["nothing"], body=body),
        helper.make_node("Add", ["sound", "nothing"], ["probabilities"]),
    ]
