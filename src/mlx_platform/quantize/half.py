"""Float16 weights: half the bytes, for a model that computes in float32 as before.

Processors that are no GPU have few float16 kernels: a graph that computes in float16 is cast back and forth
around every operator. Weights that are cast once, when the model is loaded, cost no time at all.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError
from mlx_platform.quantize.inspect import Layer, matrices_of
from mlx_platform.quantize.plan import Built, Plan
from mlx_platform.quantize.storage import load, save
from mlx_platform.quantize.tidy import all_graphs, all_nodes, tidy

_LARGEST = float(np.finfo(np.float16).max)
_TOO_LARGE = "Its weight is beyond the range of float16."


def plan_half(model: Any) -> Plan:
    """Every float32 matrix of a prepared `onnx.ModelProto` and all inner graphs, with each of its readers."""
    layers = []
    for graph in all_graphs(model.graph):
        matrices = {tensor.name: tensor for tensor in matrices_of(graph)}
        for node in all_nodes(graph):
            layers += [
                Layer(node.name or name, node.op_type, name, None, math.prod(matrices[name].dims))
                for name in dict.fromkeys(node.input)
                if name in matrices
            ]
    return Plan(tuple(layers), (), ())


def build_half(prepared: Path, out: Path, chosen: Plan) -> Built:
    """Write the model with its weight matrices in float16, each brought back to float32 by a Cast.

    Args:
        prepared: the prepared model.
        out: where to write.
        chosen: from `plan_half`, or a part of it: what other nodes read stays as it is.
    """
    original, model = load(prepared), load(prepared)
    wanted = {layer.weight for layer in chosen.layers}
    wanted -= {
        layer.weight for layer in plan_half(model).without({each.node for each in chosen.layers}).layers
    }
    too_large: set[str] = set()
    for graph in all_graphs(model.graph):
        too_large |= _halve(graph, wanted)
    if too_large >= wanted:
        raise UndecidedError("Float16 can hold the values of no weight. Nothing was written.")
    tidy(model, original)
    save(model, out)
    large = {layer.node: _TOO_LARGE for layer in chosen.layers if layer.weight in too_large}
    return Built(chosen.without(large), large, ())


def _halve(graph: Any, wanted: set[str]) -> set[str]:
    """Halve matrices of one graph; the names of those whose values float16 cannot hold."""
    import onnx
    from onnx import helper, numpy_helper

    casts, too_large = [], set()
    for tensor in [tensor for tensor in matrices_of(graph) if tensor.name in wanted]:
        name = tensor.name
        values = numpy_helper.to_array(tensor)
        if not (np.abs(values) <= _LARGEST).all():
            too_large.add(name)
            continue
        half = numpy_helper.from_array(values.astype(np.float16), f"{name}:half")
        tensor.CopyFrom(half)
        casts.append(helper.make_node("Cast", [half.name], [name], f"{name}:cast", to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return too_large
