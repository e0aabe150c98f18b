"""Finishing touches to a rewritten graph: the same signature and notes as before, and nothing left over."""

from collections.abc import Iterator
from typing import Any

PRODUCER = "mlx"


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
