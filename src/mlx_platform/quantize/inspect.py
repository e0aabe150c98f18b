"""What a graph is made of, and whether INT8 has anything to offer it."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.text import plural, printable
from mlx_platform.quantize.runtime import refused
from mlx_platform.quantize.tidy import all_nodes, bodies

WEIGHT_INPUT = {"MatMul": 1, "Gemm": 1, "Conv": 1, "Gather": 0}
"""Operators worth quantizing, with the input that holds their weight."""
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_KERNEL_PREFIXES = (
    "QLinear",
    "MatMulInteger",
    "ConvInteger",
    "DynamicQuantize",
    "QGemm",
    "QAttention",
    "MatMulNBits",
    "GatherBlockQuantized",
)
_INPUTS_ARE_NOT_CONSTANT = 4  # before this IR version every initializer had to be listed as an input as well
_NO_INTEGER_FORM = {
    "TreeEnsemble": (
        "Trees compare features with thresholds, which INT8 does not shorten.",
        "Fewer or shallower trees (max_depth, ccp_alpha) make this model smaller and faster.",
    ),
    "Linear": (
        "A linear model is one small operator that has no integer form.",
        "It is small and fast as it is.",
    ),
    "SVM": (
        "Support vectors have no integer form.",
        "Fewer support vectors (a larger C, a linear kernel) make it faster.",
    ),
    "LSTM": ("Recurrent layers have no static integer kernel.", ""),
    "GRU": ("Recurrent layers have no static integer kernel.", ""),
    "RNN": ("Recurrent layers have no static integer kernel.", ""),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with a constant float32 weight; `axis` is the weight's output channel, None for an embedding."""

    node: str
    operator: str
    weight: str
    axis: int | None
    parameters: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts about a graph. `left_out` says for each weighted node that stays float why it does."""

    opset: int
    domains: Mapping[str, int]
    operators: Mapping[str, int]
    datatypes: Mapping[str, int]
    layers: tuple[Layer, ...]
    left_out: Mapping[str, str]
    control_flow: int
    in_subgraphs: int
    unnamed: int
    integer_nodes: int


def inspect(model: Any) -> Inspection:
    """Look at an `onnx.ModelProto`; weights may still be in external files, only their shapes are read."""
    graph = model.graph
    inner = list(_subgraph_nodes(graph))
    layers, left_out = _layers(model)
    domains = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    return Inspection(
        opset=domains.get("ai.onnx", 0),
        domains=domains,
        operators=dict(Counter(node.op_type for node in (*graph.node, *inner)).most_common()),
        datatypes=dict(Counter(_type_name(tensor.data_type) for tensor in graph.initializer).most_common()),
        layers=layers,
        left_out=left_out,
        control_flow=sum(any(True for _ in bodies(node)) for node in graph.node),
        in_subgraphs=sum(node.op_type in WEIGHT_INPUT for node in inner),
        unnamed=sum(not node.name for node in graph.node),
        integer_nodes=sum(is_integer(node.op_type) for node in (*graph.node, *inner)),
    )


def inspect_file(path: Path) -> Inspection:
    """Look at a model file without reading weights that are kept beside it.

    Raises:
        UndecidedError: it is no ONNX model.
    """
    import onnx

    with refused("read"):
        model = onnx.load(path, load_external_data=False)
    return inspect(model)


def is_integer(operator: str) -> bool:
    """Whether an operator works on quantized numbers or makes them."""
    return operator in _CONVERSIONS or is_kernel(operator)


def is_kernel(operator: str) -> bool:
    """Whether an operator computes with quantized numbers."""
    return operator.startswith(_KERNEL_PREFIXES) and operator not in _CONVERSIONS


def refuse_unsuitable(inspection: Inspection, source: str) -> None:
    """Stop where quantizing would change nothing, or would damage the model.

    Raises:
        UndecidedError: the model is quantized already, or no layer gains from INT8.
    """
    if inspection.integer_nodes:
        raise UndecidedError(
            f"{printable(source)} is already quantized: it holds"
            f" {plural(inspection.integer_nodes, 'integer operator')}.",
            hint="Quantize the float32 model that it was made from.",
        )
    if inspection.layers:
        return
    reason, hint = _why_nothing(inspection)
    present = ", ".join(
        f"{count} {printable(name)}" for name, count in list(inspection.operators.items())[:6]
    )
    raise UndecidedError(
        f"{printable(source)} has no layer that INT8 helps ({present or 'no operator at all'}). {reason}"
        " Nothing was written.",
        hint=hint,
    )


def _why_nothing(inspection: Inspection) -> tuple[str, str]:
    for prefix, sentences in _NO_INTEGER_FORM.items():
        if any(name.startswith(prefix) for name in inspection.operators):
            return sentences
    if inspection.left_out:
        return next(iter(inspection.left_out.values())), ""
    if inspection.in_subgraphs:
        return (
            "Its weighted layers are inside If, Loop or Scan bodies, out of reach of static quantization.",
            "Export the branch that is used, without the condition.",
        )
    return "Only MatMul, Gemm, Conv and Gather with a constant float32 weight are quantized.", ""


def _layers(model: Any) -> tuple[tuple[Layer, ...], dict[str, str]]:
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer} | _constant_nodes(graph)
    if model.ir_version >= _INPUTS_ARE_NOT_CONSTANT:
        for value in graph.input:
            constants.pop(value.name, None)
    candidates, left_out = [], {}
    for index, node in enumerate(graph.node):
        if node.op_type not in WEIGHT_INPUT or node.domain not in ("", "ai.onnx"):
            continue
        reason = _why_not(node, constants)
        if reason is None:
            weight = constants[node.input[WEIGHT_INPUT[node.op_type]]]
            size = math.prod(weight.dims)
            candidates.append(Layer(node.name, node.op_type, weight.name, _channel_axis(node), size))
        elif reason:
            left_out[node.name or f"{node.op_type} {index}"] = reason
    shared = _shared_weights(graph, candidates)
    for layer in candidates:
        if layer.weight in shared:
            left_out[layer.node] = "Its weight is shared with a node of another kind."
    return tuple(layer for layer in candidates if layer.weight not in shared), left_out


def _shared_weights(graph: Any, layers: Sequence[Layer]) -> set[str]:
    """Weights that one integer tensor with one layout of scales cannot replace for all who read them."""
    uses = Counter(name for node in all_nodes(graph) for name in node.input)
    roles: dict[str, set[tuple[str, int | None]]] = {}
    for layer in layers:
        roles.setdefault(layer.weight, set()).add((layer.operator, layer.axis))
        uses[layer.weight] -= 1
    outputs = {value.name for value in graph.output}
    return {name for name, kinds in roles.items() if len(kinds) > 1 or uses[name] or name in outputs}


def _why_not(node: Any, constants: Mapping[str, Any]) -> str | None:
    """Why a node of a weighted operator stays float; an empty text when that needs no mention."""
    weight = constants.get(node.input[WEIGHT_INPUT[node.op_type]])
    if weight is None:
        return ""  # two activations, such as attention scores, or the picking of a computed value
    if _type_name(weight.data_type) in {"FLOAT16", "BFLOAT16", "DOUBLE"} and len(weight.dims) > 1:
        kind = _type_name(weight.data_type).lower()
        return f"The weights are {kind}; only float32 is quantized."
    if _type_name(weight.data_type) != "FLOAT":
        return ""
    ranks = (3, 4, 5) if node.op_type == "Conv" else (2,)
    if len(weight.dims) not in ranks:
        return f"The weight has {plural(len(weight.dims), 'dimension')}, not {ranks[0]}."
    if node.op_type == "Gather":
        indices_are_fixed = node.input[1] in constants
        return "" if indices_are_fixed or _attribute(node, "axis", 0) != 0 else None
    return _why_not_bias(node, constants)


def _why_not_bias(node: Any, constants: Mapping[str, Any]) -> str | None:
    if len(node.input) > 2 and node.input[2]:
        bias = constants.get(node.input[2])
        if bias is None:
            return "Its bias is computed, not constant."
        if len(bias.dims) > 1 and bias.dims[0] != 1:
            return "Its bias differs from row to row."
    if any(attribute.name == "alpha" and attribute.f != 1 for attribute in node.attribute):
        return "It scales its product, which the integer form does not."
    return None


def _channel_axis(node: Any) -> int | None:
    if node.op_type == "Gather":
        return None
    if node.op_type == "MatMul":
        return 1
    if node.op_type == "Gemm":
        return 0 if _attribute(node, "transB", 0) else 1
    return 0


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def _constant_nodes(graph: Any) -> dict[str, Any]:
    found = {}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = attribute.t
    return found


def _subgraph_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        for body in bodies(node):
            yield from all_nodes(body)


def _type_name(data_type: int) -> str:
    import onnx

    return str(onnx.TensorProto.DataType.Name(data_type))
