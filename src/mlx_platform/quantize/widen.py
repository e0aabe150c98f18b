"""Float16 models as float32 ones: what processors without float16 kernels compute in anyway."""

from typing import Any

import numpy as np

from mlx_platform.quantize.tidy import all_graphs, all_nodes

_TYPED = frozenset({"to", "dtype"})  # attributes that name the type of what an operator gives


def is_half(model: Any) -> bool:
    """Whether an `onnx.ModelProto` computes with float16 weights."""
    import onnx

    half = onnx.TensorProto.FLOAT16
    return any(
        tensor.data_type == half and len(tensor.dims) > 1
        for graph in all_graphs(model.graph)
        for tensor in (*graph.initializer, *_constants(graph))
    )


def widen(model: Any) -> None:
    """Make a model compute in float32 throughout, in place; its inputs and outputs keep their types."""
    import onnx

    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        del graph.value_info[:]
        inner = () if graph is model.graph else (*graph.input, *graph.output)
        for value in inner:
            if value.type.tensor_type.elem_type == half:
                value.type.tensor_type.elem_type = single
    for node in all_nodes(model.graph):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.name in _TYPED and attribute.i == half:
                attribute.i = single
    _cast_borders(model.graph)


def _constants(graph: Any) -> list[Any]:
    return [
        attribute.t
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]


def _widen_tensor(tensor: Any) -> None:
    import onnx
    from onnx import numpy_helper

    if tensor.data_type == onnx.TensorProto.FLOAT16:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _cast_borders(graph: Any) -> None:
    """Between float16 inputs and outputs and the float32 inside stands a Cast."""
    import onnx
    from onnx import helper

    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    ends = [
        {value.name for value in side if value.type.tensor_type.elem_type == half}
        for side in (graph.input, graph.output)
    ]
    inner = {name: f"{name}:float" for side in ends for name in side}
    for node in all_nodes(graph):
        for names in (node.input, node.output):
            names[:] = [inner.get(name, name) for name in names]
    for tensor in graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    nodes = [
        *(helper.make_node("Cast", [name], [inner[name]], f"{name}:widened", to=single) for name in ends[0]),
        *graph.node,
        *(helper.make_node("Cast", [inner[name]], [name], f"{name}:halved", to=half) for name in ends[1]),
    ]
    del graph.node[:]
    graph.node.extend(nodes)
