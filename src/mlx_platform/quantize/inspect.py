"""What a graph is made of, and whether INT8 has anything to offer it."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.text import plural, printable
from mlx_platform.quantize.storage import load
from mlx_platform.quantize.tidy import all_graphs, all_nodes, bodies

WEIGHT_INPUT = {"MatMul": 1, "Gemm": 1, "Conv": 1, "Gather": 0}
"""Operators worth quantizing, with the input that holds their weight."""
PRODUCTS = frozenset({"MatMul", "Gemm", "Gather"})
TAKES: Mapping[str, frozenset[str]] = {
    "static": frozenset(WEIGHT_INPUT),
    "dynamic": PRODUCTS,
    "fp16": frozenset(),
    "int4": PRODUCTS,
}
"""The operators that each method takes; float16 takes matrices, whoever reads them."""
STANDARD = ("", "ai.onnx")  # names of the domain of ONNX's own operators
_KNOWN = (*STANDARD, "ai.onnx.ml")  # the domains that the ONNX standard describes
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_NO_RECURRENT_KERNEL = "Recurrent layers have no static integer kernel."
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
_TYPE_OF = {"static": "INT8", "dynamic": "INT8", "fp16": "float16", "int4": "INT4"}
_LEAST_NUMBERS = 128  # below, the nodes that bring a weight back take more bytes than a smaller type saves
_NO_MATRIX = (f"It has no float32 weight of {_LEAST_NUMBERS} numbers or more in rows and columns.", "")
_FLOAT = 1  # TensorProto.FLOAT
_FLOATS = frozenset({_FLOAT, 10, 11, 16})  # and FLOAT16, DOUBLE, BFLOAT16
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
    **dict.fromkeys(sorted(_RECURRENT), (_NO_RECURRENT_KERNEL, "--method fp16 halves their weights.")),
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
    """Facts about a graph.

    Attributes:
        foreign: counts of operators outside the ONNX standard.
        layers: nodes of the main graph that INT8 can take.
        external: weights that are kept in other files.
        left_out: for each other weighted node of the main graph, why it stays float.
        settled: conditions and weights of the main graph that folding constants decides.
        in_subgraphs: nodes of weighted operators inside If, Loop and Scan bodies.
        numbers: in all float weights, wherever they are.
        matrices: weights that float16 can halve, wherever they are, with `matrix_numbers` in them.
    """

    opset: int
    domains: Mapping[str, int]
    operators: Mapping[str, int]
    foreign: Mapping[str, int]
    datatypes: Mapping[str, int]
    layers: tuple[Layer, ...]
    left_out: Mapping[str, str]
    control_flow: int
    settled: int
    in_subgraphs: int
    unnamed: int
    external: int
    integer_nodes: int
    numbers: int
    matrices: int
    matrix_numbers: int

    def taken(self, method: str) -> int:
        """How many layers (for float16: weights) a method can take."""
        if method == "fp16":
            return self.matrices
        return sum(layer.operator in TAKES[method] for layer in self.layers)

    def share(self, method: str) -> float:
        """The share of all float weights that a method can take."""
        if not self.numbers:
            return 0.0
        if method == "fp16":
            return self.matrix_numbers / self.numbers
        weights = {layer.weight: layer.parameters for layer in self.layers if layer.operator in TAKES[method]}
        return sum(weights.values()) / self.numbers


def inspect(model: Any) -> Inspection:
    """Look at an `onnx.ModelProto`; weights may still be in external files, only their shapes are read."""
    graph = model.graph
    inner = list(_subgraph_nodes(graph))
    layers, left_out = _layers(model)
    domains = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    weights = list(_weights(graph))
    return Inspection(
        opset=domains.get("ai.onnx", 0),
        domains=domains,
        operators=dict(Counter(node.op_type for node in (*graph.node, *inner)).most_common()),
        foreign=dict(Counter(node.op_type for node in (*graph.node, *inner) if node.domain not in _KNOWN)),
        datatypes=dict(Counter(_type_name(tensor.data_type) for tensor in graph.initializer).most_common()),
        layers=layers,
        left_out=left_out,
        control_flow=sum(any(True for _ in bodies(node)) for node in graph.node),
        settled=_settled(graph),
        in_subgraphs=sum(node.op_type in WEIGHT_INPUT for node in inner),
        unnamed=sum(not node.name for node in graph.node),
        external=sum(
            tensor.data_location == tensor.EXTERNAL
            for part in all_graphs(graph)
            for tensor in part.initializer
        ),
        integer_nodes=sum(is_integer(node.op_type) for node in (*graph.node, *inner)),
        numbers=sum(math.prod(tensor.dims) for tensor in weights),
        matrices=sum(map(_is_matrix, weights)),
        matrix_numbers=sum(math.prod(tensor.dims) for tensor in weights if _is_matrix(tensor)),
    )


def inspect_file(path: Path) -> Inspection:
    """Look at a model file without reading weights that are kept beside it.

    Raises:
        UndecidedError: it is no ONNX model.
    """
    return inspect(load(path, weights=False))


def is_integer(operator: str) -> bool:
    """Whether an operator works on quantized numbers or makes them."""
    return operator in _CONVERSIONS or is_kernel(operator)


def is_kernel(operator: str) -> bool:
    """Whether an operator computes with quantized numbers."""
    return operator.startswith(_KERNEL_PREFIXES) and operator not in _CONVERSIONS


def refuse_unsuitable(inspection: Inspection, source: str, methods: Sequence[str] = ("static",)) -> None:
    """Stop where quantizing would change nothing, or would damage the model.

    Args:
        inspection: of the model.
        source: what to call it.
        methods: those that are to be tried; one that applies is enough.

    Raises:
        UndecidedError: the model is quantized already, or has nothing that these methods take.
    """
    if inspection.integer_nodes:
        raise UndecidedError(
            f"{printable(source)} is already quantized: it holds"
            f" {plural(inspection.integer_nodes, 'integer operator')}.",
            hint="Quantize the float32 model that it was made from.",
        )
    if inspection.settled or any(inspection.taken(method) for method in methods):
        return
    reason, hint = _NO_MATRIX if set(methods) == {"fp16"} else _why_nothing(inspection)
    small = " or ".join(dict.fromkeys(_TYPE_OF[method] for method in methods))
    present = ", ".join(
        f"{count} {printable(name)}" for name, count in list(inspection.operators.items())[:6]
    )
    raise UndecidedError(
        f"{printable(source)} has no layer that {small} helps ({present or 'no operator at all'}). {reason}"
        " Nothing was written.",
        hint=hint,
    )


def matrices_of(graph: Any) -> list[Any]:
    """The initializers of one graph that are worth a smaller type than float32, whoever reads them."""
    seen_outside = {value.name for value in (*graph.input, *graph.output)}
    return [tensor for tensor in graph.initializer if _is_matrix(tensor) and tensor.name not in seen_outside]


def _is_matrix(tensor: Any) -> bool:
    return tensor.data_type == _FLOAT and len(tensor.dims) > 1 and math.prod(tensor.dims) >= _LEAST_NUMBERS


def _why_nothing(inspection: Inspection) -> tuple[str, str]:
    if inspection.layers:
        return (
            "Convolutions have no fast kernel that quantizes as it goes, and none for 4 bits.",
            "--method static takes them.",
        )
    for prefix, sentences in _NO_INTEGER_FORM.items():
        if any(name.startswith(prefix) for name in inspection.operators):
            return sentences
    if inspection.left_out:
        return next(iter(inspection.left_out.values())), ""
    if inspection.in_subgraphs:
        return (
            "Its weighted layers are inside If, Loop or Scan bodies, out of reach of integer layers.",
            "Export the branch that is used, without the condition; --method fp16 halves weights anywhere.",
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
        if node.op_type in _RECURRENT:
            left_out[node.name or f"{node.op_type} {index}"] = _NO_RECURRENT_KERNEL
        if node.op_type not in WEIGHT_INPUT or node.domain not in STANDARD:
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
    if _type_name(weight.data_type) in {"BFLOAT16", "DOUBLE"} and len(weight.dims) > 1:
        kind = _type_name(weight.data_type).lower()
        return f"The weights are {kind}; only float32 and float16 are quantized."
    if _type_name(weight.data_type) not in {"FLOAT", "FLOAT16"}:
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


def _weights(graph: Any) -> Iterator[Any]:
    """The float weights of a graph and of all inside it, as initializers or Constant nodes."""
    for part in all_graphs(graph):
        for tensor in (*part.initializer, *_constant_nodes(part).values()):
            if tensor.data_type in _FLOATS:
                yield tensor


def _settled(graph: Any) -> int:
    known = {tensor.name for tensor in graph.initializer} | _constant_nodes(graph).keys()
    folded: set[str] = set()
    found = 0
    for node in graph.node:  # in topological order
        if node.op_type == "If":
            found += node.input[0] in known
        elif node.op_type in WEIGHT_INPUT and node.input[WEIGHT_INPUT[node.op_type]] in folded:
            found += 1
        elif node.input and known.issuperset(node.input):
            folded.update(node.output)
            known.update(node.output)
    return found


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
