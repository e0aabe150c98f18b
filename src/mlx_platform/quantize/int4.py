"""INT4 weights: blocks of 32 numbers with a scale and a zero point each; activations stay float.

Round-to-nearest, asymmetric. The smallest of all forms, at the price of accuracy.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.quantize.inspect import TAKES, Layer, inspect
from mlx_platform.quantize.plan import Built, Plan
from mlx_platform.quantize.storage import load, save
from mlx_platform.quantize.tidy import constants_of, drop_unused, tidy

BLOCK = 32
_DOMAIN = "com.microsoft"
_LEVELS = 15
_INT8_ACTIVATIONS = 4  # the accuracy level at which products run in integers


def plan_int4(model: Any) -> Plan:
    """The products of a prepared `onnx.ModelProto`, and embeddings of whole blocks."""
    constants = constants_of(model.graph)
    layers = [
        layer
        for layer in inspect(model).layers
        if layer.operator in TAKES["int4"]
        and (layer.operator != "Gather" or constants[layer.weight].dims[1] % BLOCK == 0)
    ]
    return Plan(tuple(layers), (), ())


def build_int4(prepared: Path, out: Path, chosen: Plan) -> Built:
    """Write the model with 4-bit weights, in ONNX Runtime's own operators.

    Args:
        prepared: the prepared model.
        out: where to write.
        chosen: from `plan_int4`, or a part of it.
    """
    from onnx import helper, numpy_helper

    original, model = load(prepared), load(prepared)
    layers = {layer.node: layer for layer in chosen.layers}
    constants = constants_of(model.graph)
    stored: dict[str, list[str]] = {}
    tensors: list[Any] = []
    nodes: list[Any] = []
    for node in model.graph.node:
        layer = layers.get(node.name)
        if layer is None:
            nodes.append(node)
            continue
        weight = numpy_helper.to_array(constants[layer.weight])
        rows = weight.T if layer.axis == 1 else weight  # a row for each output, or for each word
        if layer.weight not in stored:
            stored[layer.weight] = _store(layer, rows, tensors)
        names = stored[layer.weight]
        if layer.operator == "Gather":
            nodes.append(_picked(node, names))
        else:
            nodes.append(_multiplied(node, names, layer, rows.shape[1]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(tensors)
    drop_unused(model.graph)
    if all(entry.domain != _DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    tidy(model, original)
    save(model, out)
    return Built(chosen, {}, ())


def _store(layer: Layer, rows: npt.NDArray[np.float32], tensors: list[Any]) -> list[str]:
    """Add the packed weight, its scales and zero points, and give their names."""
    from onnx import numpy_helper

    names = [f"{layer.weight}:{part}" for part in ("int4", "scales", "zero_points")]
    packed, scales, zeros = pack(rows)
    if layer.operator == "Gather":
        packed = packed.reshape(len(rows), -1)
    for key, array in zip(names, (packed, scales, zeros), strict=True):
        tensors.append(numpy_helper.from_array(array, key))
    return names


def _multiplied(node: Any, names: list[str], layer: Layer, width: int) -> Any:
    from onnx import helper

    bias = [node.input[2]] if len(node.input) > 2 and node.input[2] else []
    return helper.make_node(
        "MatMulNBits",
        [node.input[0], *names, *(["", *bias] if bias else [])],
        list(node.output),
        node.name,
        domain=_DOMAIN,
        K=width,
        N=layer.parameters // width,
        bits=4,
        block_size=BLOCK,
        accuracy_level=_INT8_ACTIVATIONS,
    )


def _picked(node: Any, names: list[str]) -> Any:
    from onnx import helper

    packed, scales, zeros = names
    return helper.make_node(
        "GatherBlockQuantized",
        [packed, node.input[1], scales, zeros],
        list(node.output),
        node.name,
        domain=_DOMAIN,
        bits=4,
        block_size=BLOCK,
        gather_axis=0,
        quantize_axis=1,
    )


def pack(rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Quantize rows [n, k] by blocks along k.

    Returns:
        Two numbers in each byte [n, blocks, BLOCK / 2], the earlier one in the low bits; scales [n, blocks];
        zero points, packed alike [n, (blocks + 1) // 2].
    """
    count, width = rows.shape
    blocks = -(-width // BLOCK)
    padded = np.zeros((count, blocks * BLOCK), np.float32)
    padded[:, :width] = rows
    cut = padded.reshape(count, blocks, BLOCK)
    lowest = np.minimum(cut.min(axis=2), 0)
    highest = np.maximum(cut.max(axis=2), 0)  # zero stays a step of the scale
    scales = (highest - lowest) / _LEVELS
    scales[scales == 0] = 1
    zeros = np.clip(np.rint(-lowest / scales), 0, _LEVELS).astype(np.uint8)
    steps = np.rint(cut / scales[..., None]) + zeros[..., None]
    steps = np.clip(steps, 0, _LEVELS).astype(np.uint8)
    return _pairs(steps), scales.astype(np.float32), _pairs(zeros)


def _pairs(steps: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if steps.shape[-1] % 2:
        steps = np.concatenate([steps, np.zeros((*steps.shape[:-1], 1), np.uint8)], axis=-1)
    return np.ascontiguousarray(steps[..., ::2] | (steps[..., 1::2] << 4))
