"""Which nodes of a prepared model become integer, and which tensors must be watched for it."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from mlx_platform.quantize.inspect import Layer, inspect

_FOLLOWERS = frozenset({"Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool"})
FLOAT_OUTPUT = ("MatMul", "Gemm")
"""Their integer kernels write floats, so their outputs need no scale of their own: faster and more exact."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`followers` are the activations and poolings that stay integer between two convolutions."""

    layers: tuple[Layer, ...]
    followers: tuple[str, ...]
    tensors: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(layer.node for layer in self.layers) + self.followers

    def without(self, nodes: Container[str]) -> "Plan":
        """The plan less some of its nodes."""
        return Plan(
            tuple(layer for layer in self.layers if layer.node not in nodes),
            tuple(name for name in self.followers if name not in nodes),
            self.tensors,
        )


@dataclass(frozen=True, slots=True)
class Built:
    """What came of a plan.

    `left_out` holds planned nodes that stayed float, with the reason; `notes` are for the reader.
    """

    plan: Plan
    left_out: Mapping[str, str]
    notes: tuple[str, ...]


def plan(model: Any) -> Plan:
    """Choose from the allow-list; everything else, such as Softmax, normalization and Add, stays float.

    Args:
        model: a prepared `onnx.ModelProto`.
    """
    layers = {layer.node: layer for layer in inspect(model).layers}
    constants = {tensor.name for tensor in model.graph.initializer}
    followers: list[str] = []
    tensors: list[str] = []
    integer: set[str] = set()
    for node in model.graph.node:  # in topological order
        layer = layers.get(node.name)
        follows = layer is None and node.op_type in _FOLLOWERS and node.input[0] in integer
        if follows:
            followers.append(node.name)
        elif layer is None or layer.operator == "Gather":
            continue
        tensors += [name for name in node.input if name and name not in constants]
        if follows or node.op_type not in FLOAT_OUTPUT:
            tensors.append(node.output[0])
            integer.add(node.output[0])
    return Plan(tuple(layers.values()), tuple(followers), tuple(dict.fromkeys(tensors)))
