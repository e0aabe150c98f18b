"""Float16 weights: half the bytes, for a model that computes in float32 as before.

Processors that are no GPU have few float16 kernels: a graph that computes in float16 is cast back and forth
around every operator. Weights that are cast once, when the model is loaded, cost no time at all.
"""

from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.text import plural
from mlx_platform.quantize.inspect import inspect
from mlx_platform.quantize.plan import Built, Plan
from mlx_platform.quantize.storage import load, save
from mlx_platform.quantize.tidy import all_graphs, tidy

_LARGEST = float(np.finfo(np.float16).max)


def plan_half(model: Any) -> Plan:
    """The layers of the main graph; weights of other nodes and of inner graphs are halved all the same."""
    return Plan(inspect(model).layers, (), ())


def build_half(prepared: Path, out: Path, chosen: Plan) -> Built:
    """Write the model with its weight matrices in float16, each brought back to float32 by a Cast.

    Args:
        prepared: the prepared model.
        out: where to write.
        chosen: from `plan_half`, or a part of it: what other layers read stays as it is.
    """
    original, model = load(prepared), load(prepared)
    kept = {layer.weight for layer in inspect(model).layers} - {layer.weight for layer in chosen.layers}
    too_large = 0
    for graph in all_graphs(model.graph):
        too_large += _halve(graph, kept)
    tidy(model, original)
    save(model, out)
    notes = (
        (f"{plural(too_large, 'weight')} beyond the range of float16 stayed float32.",) if too_large else ()
    )
    return Built(chosen, {}, notes)


def _halve(graph: Any, kept: set[str]) -> int:
    """Halve the matrices of one graph; the number of those whose values float16 cannot hold."""
    import onnx
    from onnx import helper, numpy_helper

    outputs = {value.name for value in graph.output}
    casts, too_large = [], 0
    for tensor in graph.initializer:
        name = tensor.name
        is_matrix = tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1
        if not is_matrix or name in kept or name in outputs:
            continue
        values = numpy_helper.to_array(tensor)
        if not (np.abs(values) <= _LARGEST).all():
            too_large += 1
            continue
        half = f"{name}_half"
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), half))
        casts.append(helper.make_node("Cast", [half], [name], f"{name}_cast", to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return too_large
