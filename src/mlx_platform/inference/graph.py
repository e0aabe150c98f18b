"""An ONNX file read for its signature and meaning, without loading weights from anywhere else."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.core.text import plural, printable

_DATATYPES = {
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "UINT16": "UINT16",
    "UINT32": "UINT32",
    "UINT64": "UINT64",
    "INT8": "INT8",
    "INT16": "INT16",
    "INT32": "INT32",
    "INT64": "INT64",
    "FLOAT16": "FP16",
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "STRING": "BYTES",
}  # ONNX's element types under the protocol's names
_PASSING = {"Identity", "Cast", "Reshape", "Squeeze", "Flatten"}  # operators that leave values as they are
_PROBABILITIES = {"Softmax", "Sigmoid", "TreeEnsembleClassifier"}
_DEPTH_CAP = 64


@dataclass(frozen=True, slots=True)
class Network:
    """What a graph says about itself.

    Attributes:
        task: told from the outputs.
        answer: the output that answers the task, "" where no one does.
        scores: whether `answer` holds scores that a softmax turns into probabilities.
        labels: class names that the graph carries.
        nodes: operators, those of subgraphs and functions included.
        external: files that hold tensors, relative to the model's folder.
    """

    task: Literal["classification", "regression", "tensors"]
    answer: str
    scores: bool
    labels: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int
    external: tuple[str, ...]


def read_network(path: Path, *, max_nodes: int = 50_000, shown: str = "") -> Network:
    """Read an ONNX file's graph.

    The task: one float output [rows, classes] with at least two classes classifies, also beside a label
    output; one float output [rows] or [rows, 1] is a value; everything else is tensors.

    Raises:
        UsageError: no ONNX model, more than `max_nodes` operators, or an input or output that is no tensor.
    """
    import onnx

    shown = printable(shown or str(path))
    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception as error:  # protobuf's error is a bare Exception of a library that onnx hides
        raise UsageError(f"{shown} is no ONNX model that can be read.") from error
    if not model.graph.node and not model.graph.output:
        raise UsageError(f"{shown} is no ONNX model: it holds no graph.")
    nodes = 0
    external: dict[str, None] = {}
    for part in parts(model):
        if isinstance(part, onnx.NodeProto):
            nodes += 1
            if nodes > max_nodes:
                raise UsageError(f"{shown} has more than {plural(max_nodes, 'operator')}.")
        elif part.data_location == onnx.TensorProto.EXTERNAL:
            external |= dict.fromkeys(entry.value for entry in part.external_data if entry.key == "location")
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_tensor(value, "Input") for value in model.graph.input if value.name not in constants)
    outputs = tuple(_tensor(value, "Output") for value in model.graph.output)
    task, answer = _task(model.graph, outputs)
    return Network(
        task=task,
        answer=answer,
        scores=task == "classification" and not _is_probability(model.graph, answer),
        labels=_labels(model.graph, outputs, answer) if task == "classification" else (),
        inputs=inputs,
        outputs=outputs,
        nodes=nodes,
        external=tuple(external),
    )


def parts(model: Any) -> Iterator[Any]:
    """Every node and every tensor of a model, wherever it is tucked away."""
    yield from _graph_parts(model.graph, 0)
    for function in model.functions:
        yield from _node_parts(function.node, 0)
    for training in model.training_info:
        yield from _graph_parts(training.initialization, 0)
        yield from _graph_parts(training.algorithm, 0)


def _graph_parts(graph: Any, depth: int) -> Iterator[Any]:
    if depth > _DEPTH_CAP:
        raise UsageError(f"The model nests more than {_DEPTH_CAP} graphs.")
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_parts(graph.node, depth)


def _node_parts(nodes: Any, depth: int) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse_tensors = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for sparse in (*sparse_tensors, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            graphs = [attribute.g] if attribute.HasField("g") else []
            for graph in (*graphs, *attribute.graphs):
                yield from _graph_parts(graph, depth + 1)


def _tensor(value: Any, noun: str) -> TensorSpec:
    import onnx

    name = printable(value.name, 128)
    if not value.type.HasField("tensor_type"):
        raise UsageError(
            f"{noun} {name!r} is no tensor but a {value.type.WhichOneof('value') or 'value of no type'}.",
            hint="Convert scikit-learn classifiers with the option zipmap=False.",
        )
    element = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    if element not in _DATATYPES:
        raise UsageError(f"{noun} {name!r} has the element type {element}, which cannot be served.")
    if not value.type.tensor_type.HasField("shape"):
        raise UsageError(
            f"{noun} {name!r} does not declare its shape.", hint="Run onnx.shape_inference first."
        )
    dims = (
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        for dim in value.type.tensor_type.shape.dim
    )
    return TensorSpec(value.name, _DATATYPES[element], tuple(dims))


def _task(
    graph: Any, outputs: tuple[TensorSpec, ...]
) -> tuple[Literal["classification", "regression", "tensors"], str]:
    floats = [output for output in outputs if output.datatype in {"FP16", "FP32", "FP64"}]
    others = [output for output in outputs if output not in floats]
    if len(floats) != 1:
        return "tensors", ""
    answer = floats[0]
    producer = _producer(graph, answer.name)
    kind = producer.op_type if producer is not None else ""
    width = answer.shape[1] if len(answer.shape) == 2 else None
    if others:
        # A converted classifier answers its label beside its probabilities.
        is_label = len(others) == 1 and others[0].name.endswith("label") and len(others[0].shape) <= 2
        return ("classification", answer.name) if is_label and len(answer.shape) == 2 else ("tensors", "")
    if len(answer.shape) == 1 or width == 1:
        return "regression", answer.name
    is_vector = kind.endswith("Regressor") or kind == "LpNormalization" or "embed" in answer.name.lower()
    if width is not None and width > 1 and not is_vector:
        return "classification", answer.name
    return "tensors", ""


def _producer(graph: Any, name: str) -> Any:
    """The node behind a value, seen through operators that pass values on unchanged."""
    makers = {output: node for node in graph.node for output in node.output}
    node = makers.get(name)
    for _ in range(len(makers)):
        if node is None or node.op_type not in _PASSING:
            break
        node = makers.get(node.input[0])
    return node


def _is_probability(graph: Any, answer: str) -> bool:
    node = _producer(graph, answer)
    if answer == "probabilities" or (node is not None and node.op_type in _PROBABILITIES):
        return True
    attributes = {item.name: item.s for item in node.attribute} if node is not None else {}
    return attributes.get("post_transform") in {b"SOFTMAX", b"LOGISTIC"} or attributes.get("norm") == b"L1"


_MOST_CLASSES = 1_000_000


def _labels(graph: Any, outputs: tuple[TensorSpec, ...], answer: str) -> tuple[str, ...]:
    """Class names: a classifier's attribute, or the constant that the label output is picked from."""
    from onnx import numpy_helper

    for node in graph.node:
        for item in node.attribute:
            if item.name.startswith("classlabels_"):
                names = [text.decode(errors="replace") for text in item.strings] or [
                    str(i) for i in item.ints
                ]
                if names:
                    return tuple(names)
    width = next(output.shape[1] for output in outputs if output.name == answer)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for output in outputs:
        node = _producer(graph, output.name)
        if output.name != answer and node is not None and node.op_type == "ArrayFeatureExtractor":
            classes = constants.get(node.input[0])
            if classes is not None and not classes.external_data:
                cells = numpy_helper.to_array(classes).reshape(-1).tolist()
                return tuple(
                    cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell) for cell in cells
                )
    if width and width > _MOST_CLASSES:
        raise UsageError(
            f"The output {printable(answer, 80)!r} has {width:,} classes, more than {_MOST_CLASSES:,}."
        )
    return tuple(str(index) for index in range(width)) if width else ()
