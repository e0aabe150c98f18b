"""Dynamic INT8: weights are stored as integers, and the activations of each call are quantized as it runs.

No calibration is needed, for the range of an activation is that of the call at hand.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.quantize.inspect import TAKES, Layer, inspect
from mlx_platform.quantize.plan import Built, Plan
from mlx_platform.quantize.storage import load, save
from mlx_platform.quantize.target import Target
from mlx_platform.quantize.tidy import constants_of, drop_unused, tidy

_LARGEST, _REDUCED = 127, 64


def plan_dynamic(model: Any) -> Plan:
    """The products and embeddings of a prepared `onnx.ModelProto`."""
    return Plan(tuple(layer for layer in inspect(model).layers if layer.operator in TAKES["dynamic"]), (), ())


def build_dynamic(prepared: Path, out: Path, chosen: Plan, target: Target) -> Built:
    """Write the model with integer products, in the form that ONNX Runtime fuses.

    Args:
        prepared: the prepared model.
        out: where to write.
        chosen: from `plan_dynamic`, or a part of it.
        target: the integer types.
    """
    original, model = load(prepared), load(prepared)
    layers = {layer.node: layer for layer in chosen.layers}
    rewriter = _Rewriter(model, _REDUCED if target.reduce_range else _LARGEST)
    for node in list(model.graph.node):
        layer = layers.get(node.name)
        if layer is None:
            rewriter.nodes.append(node)
        elif layer.operator == "Gather":
            rewriter.embedding(node)
        else:
            rewriter.product(node, layer)
    del model.graph.node[:]
    model.graph.node.extend(rewriter.nodes)
    model.graph.initializer.extend(rewriter.tensors.values())
    drop_unused(model.graph)
    tidy(model, original)
    save(model, out)
    return Built(chosen, {}, ())


@dataclass(frozen=True, slots=True)
class _Stored:
    """Names of the integers and of their scales."""

    weight: str
    scale: str


class _Rewriter:
    """Builds the new node list; a weight or an activation that several nodes read is quantized once."""

    def __init__(self, model: Any, largest: int) -> None:
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}
        self._constants = constants_of(model.graph)
        self._largest = largest
        self._stored: dict[str, _Stored] = {}
        self._activations: dict[str, tuple[str, str, str]] = {}

    def product(self, node: Any, layer: Layer) -> None:
        """Replace `x @ w + b` by an integer product, its scaling, and the sum in float."""
        import onnx

        stored = self._weight(layer)
        quantized, scale, zero = self._activation(node.input[0])
        output, name = node.output[0], node.name
        bias = node.input[2] if len(node.input) > 2 else ""
        product = f"{output}:scaled" if bias else output
        self._node("MatMulInteger", [quantized, stored.weight, zero], f"{output}:integer", f"{name}:integer")
        self._node("Cast", [f"{output}:integer"], f"{output}:cast", f"{name}:cast", to=onnx.TensorProto.FLOAT)
        self._node("Mul", [scale, stored.scale], f"{output}:scales", f"{name}:scales")
        self._node("Mul", [f"{output}:cast", f"{output}:scales"], product, f"{name}:scaled")
        if bias:
            self._node("Add", [product, bias], output, f"{name}:biased")

    def embedding(self, node: Any) -> None:
        """Replace the picking of float rows by that of rows of bytes and of the scale of each."""
        import onnx
        from onnx import helper

        stored = self._table(node.input[0])
        output, name, indices = node.output[0], node.name, node.input[1]
        self.nodes += [
            helper.make_node("Gather", [part, indices], [f"{output}:{kind}"], f"{name}:{kind}")
            for kind, part in (("integer", stored.weight), ("scale", stored.scale))
        ]
        self._node("Cast", [f"{output}:integer"], f"{output}:cast", f"{name}:cast", to=onnx.TensorProto.FLOAT)
        self._node("Mul", [f"{output}:cast", f"{output}:scale"], output, f"{name}:scaled")

    def _activation(self, name: str) -> tuple[str, str, str]:
        from onnx import helper

        if name not in self._activations:
            names = (f"{name}:quantized", f"{name}:scale", f"{name}:zero_point")
            self.nodes.append(
                helper.make_node("DynamicQuantizeLinear", [name], list(names), f"{name}:quantizing")
            )
            self._activations[name] = names
        return self._activations[name]

    def _weight(self, layer: Layer) -> _Stored:
        """Integers [inputs, outputs] and a scale for each output."""
        from onnx import numpy_helper

        if layer.weight not in self._stored:
            weight = numpy_helper.to_array(self._constants[layer.weight])
            columns = weight.T if layer.axis == 0 else weight
            self._store(layer.weight, columns, np.abs(columns).max(axis=0, initial=0), self._largest)
        return self._stored[layer.weight]

    def _table(self, name: str) -> _Stored:
        """Integers [words, width] and a scale for each word [words, 1]."""
        from onnx import numpy_helper

        if name not in self._stored:
            table = numpy_helper.to_array(self._constants[name])
            self._store(name, table, np.abs(table).max(axis=1, keepdims=True, initial=0), _LARGEST)
        return self._stored[name]

    def _store(self, name: str, weight: npt.NDArray[Any], widest: npt.NDArray[Any], largest: int) -> None:
        from onnx import numpy_helper

        widest = np.where(widest == 0, 1, widest)  # zeros stay zeros whatever their scale is
        scale = np.asarray(widest / largest, dtype=np.float32)
        integers = np.clip(np.rint(weight / scale), -largest, largest).astype(np.int8)
        stored = _Stored(f"{name}:quantized", f"{name}:scale")
        for key, array in ((stored.weight, np.ascontiguousarray(integers)), (stored.scale, scale)):
            self.tensors[key] = numpy_helper.from_array(array, key)
        self._stored[name] = stored

    def _node(self, operator: str, inputs: list[str], output: str, name: str, **attributes: Any) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, [output], name, **attributes))
