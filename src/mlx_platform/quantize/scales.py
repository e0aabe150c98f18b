"""What one step of an integer is worth in the outputs of a quantized network."""

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import numpy_helper

_QUANTIZED = (
    "QLinear",
    "QGemm",
    "QAttention",
    "MatMulInteger",
    "MatMulNBits",
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantize",
)


def output_scales(path: Path) -> Mapping[str, float]:
    """The scale of each output that a DequantizeLinear with one scale makes, from the network's file."""
    graph = onnx.load(str(path), load_external_data=False).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    found = {}
    for output in graph.output:
        maker = makers.get(output.name)
        if maker is None or maker.op_type != "DequantizeLinear":
            continue
        scale = constants.get(maker.input[1])
        if scale is not None and not any(dim > 1 for dim in scale.dims):
            found[output.name] = float(numpy_helper.to_array(scale).reshape(-1)[0])
    return found


def has_integers(path: Path) -> bool:
    """Whether a network computes with quantized numbers."""
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    return any(node.op_type.startswith(_QUANTIZED) for node in nodes)
