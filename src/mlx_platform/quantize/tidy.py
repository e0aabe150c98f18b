"""Finishing touches to a rewritten graph: the same signature and notes as before, and nothing left over."""

import hashlib
from collections.abc import Iterator
from typing import Any

PRODUCER = "mlx"
_LARGE = 1024  # bytes of a weight that is worth sharing


def tidy(quantized: Any, original: Any) -> None:
    """Keep the model's own notes and signature, and drop what only served the making: it would cost bytes."""
    quantized.producer_name, quantized.producer_version = PRODUCER, ""
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(original.metadata_props)
    del quantized.graph.value_info[:]
    keep_signature(quantized, original)
    used = {node.domain or "" for node in all_nodes(quantized.graph)} | {""}
    kept = [
        entry
        for entry in quantized.opset_import
        if ("" if entry.domain == "ai.onnx" else entry.domain) in used
    ]
    del quantized.opset_import[:]
    quantized.opset_import.extend(kept)


def keep_signature(model: Any, original: Any) -> None:
    """Give back the inputs and outputs as they were declared; shape inference invents names for free dims."""
    for mine, theirs in (
        (model.graph.input, original.graph.input),
        (model.graph.output, original.graph.output),
    ):
        del mine[:]
        mine.extend(theirs)


def drop_unused(graph: Any) -> None:
    """Remove the initializers of a graph that nothing reads any more."""
    used = {name for node in all_nodes(graph) for name in node.input} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def share_equal(graph: Any) -> None:
    """Let all who read equal large initializers read one, wherever in the graph and those inside they are.

    Folding constants in the branches of a condition leaves a copy in each.
    """
    shared: dict[tuple[Any, ...], str] = {}
    moved: dict[str, Any] = {}
    for part in all_graphs(graph):
        fixed = {value.name for value in (*part.input, *part.output)}
        renamed = {}
        for tensor in part.initializer:
            if len(tensor.raw_data) < _LARGE or tensor.name in fixed:
                continue
            key = (tensor.data_type, *tensor.dims, hashlib.sha256(tensor.raw_data).digest())
            if key not in shared:
                shared[key] = tensor.name if part is graph else f"{tensor.name}_shared_{len(moved)}"
                if part is not graph:
                    moved[shared[key]] = type(tensor).FromString(tensor.SerializeToString())
            renamed[tensor.name] = shared[key]
        for node in all_nodes(part):
            node.input[:] = [renamed.get(name, name) for name in node.input]
        kept = [tensor for tensor in part.initializer if renamed.get(tensor.name, tensor.name) == tensor.name]
        del part.initializer[:]
        part.initializer.extend(kept)
    for name, tensor in moved.items():
        tensor.name = name
        graph.initializer.append(tensor)


def constants_of(graph: Any) -> dict[str, Any]:
    """The initializers of a graph, by name."""
    return {tensor.name: tensor for tensor in graph.initializer}


def bodies(node: Any) -> Iterator[Any]:
    """The graphs inside a node: branches of an If, the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: Any) -> Iterator[Any]:
    """A graph and all graphs inside its nodes."""
    yield graph
    for node in all_nodes(graph):
        yield from bodies(node)


def all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of all graphs inside them."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)
