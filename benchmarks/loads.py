"""Two networks to serve and what to ask them: one costs nothing beside the server, the other costs all.

Everything is drawn from fixed seeds, so that figures of two machines are about the same networks. Random
weights are as much work as trained ones.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

BODIES = 64
SEQUENCE = 128
_LAYERS, _WIDTH, _HEADS, _INNER, _WORDS, _PLACES = 4, 256, 4, 1024, 30522, 512

Feeds = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Load:
    """A network in a file, and the inputs of single requests."""

    name: str
    model: Path
    feeds: tuple[Feeds, ...]

    def protocol(self) -> list[bytes]:
        """Bodies of the Open Inference Protocol."""
        kinds = {"float32": "FP32", "int64": "INT64"}
        return [
            _compact(
                {
                    "inputs": [
                        {
                            "name": name,
                            "datatype": kinds[array.dtype.name],
                            "shape": list(array.shape),
                            "data": [_short(value) for value in array.reshape(-1).tolist()],
                        }
                        for name, array in feeds.items()
                    ]
                }
            )
            for feeds in self.feeds
        ]

    def plain(self) -> list[bytes]:
        """Bodies as people write them for servers of their own: names and lists."""
        return [
            _compact({name: [_short(value) for value in array[0].tolist()] for name, array in feeds.items()})
            for feeds in self.feeds
        ]


def write_loads(folder: Path) -> dict[str, Load]:
    """Write both networks into a folder."""
    rng = np.random.default_rng(0)
    encoder, mlp = _encoder(rng), _mlp(rng)
    for name, model in (("mlp", mlp), ("encoder", encoder)):
        onnx.checker.check_model(model)
        onnx.save(model, folder / f"{name}.onnx")
    rows = np.random.default_rng(1)
    tables = tuple(
        {"x": np.round(rows.standard_normal((1, 100)), 4).astype(np.float32)} for _ in range(BODIES)
    )
    rows = np.random.default_rng(1)
    texts = tuple(
        {
            "input_ids": rows.integers(0, _WORDS, (1, SEQUENCE)),
            "attention_mask": np.ones((1, SEQUENCE), np.int64),
        }
        for _ in range(BODIES)
    )
    return {
        "mlp": Load("mlp", folder / "mlp.onnx", tables),
        "encoder": Load("encoder", folder / "encoder.onnx", texts),
    }


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _short(value: float) -> float:
    return round(value, 4) if isinstance(value, float) else value


def _model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Mapping[str, npt.NDArray[Any]]
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _mlp(rng: np.random.Generator) -> onnx.ModelProto:
    """100 numbers to two scores by way of 64."""
    sizes = {"w1": (100, 64), "b1": (64,), "w2": (64, 2), "b2": (2,)}
    weights = {name: (rng.standard_normal(size) * 0.1).astype(np.float32) for name, size in sizes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
    ]
    return _model(
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 100])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        weights,
    )


class _Graph:
    """Nodes and weights of a network that is being written down."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, npt.NDArray[Any]] = {}
        self._rng = rng

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, kind)
        return name

    def drawn(self, *size: int) -> str:
        return self.constant(self._rng.standard_normal(size) * 0.02)

    def dense(self, x: str, wide: int, out: int) -> str:
        weight, bias = self.drawn(wide, out), self.drawn(out)
        return self.add("Add", self.add("MatMul", x, weight), bias)

    def norm(self, x: str) -> str:
        scale, bias = self.constant(np.ones(_WIDTH)), self.constant(np.zeros(_WIDTH))
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)


def _encoder(rng: np.random.Generator) -> onnx.ModelProto:
    """Four layers of a BERT-like encoder, 11 million weights, to two scores."""
    graph = _Graph(rng)
    words, places = graph.drawn(_WORDS, _WIDTH), graph.drawn(_PLACES, _WIDTH)
    whole = {name: graph.constant(value, np.int64) for name, value in {"0": [0], "1": [1], "2": [2]}.items()}
    length = graph.add("Slice", graph.add("Shape", "input_ids"), whole["1"], whole["2"])
    place = graph.add("Slice", places, whole["0"], length, whole["0"])
    x = graph.norm(graph.add("Add", graph.add("Gather", words, "input_ids"), place))
    ones = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    ones = graph.add("Unsqueeze", ones, graph.constant([1, 2], np.int64))
    away = graph.add("Mul", graph.add("Sub", graph.constant(1.0), ones), graph.constant(-10000.0))
    for _ in range(_LAYERS):
        x = _layer(graph, x, away)
    first = graph.add("Gather", x, graph.constant(0, np.int64), axis=1)
    pooled = graph.add("Tanh", graph.dense(first, _WIDTH, _WIDTH))
    graph.nodes.append(helper.make_node("Identity", [graph.dense(pooled, _WIDTH, 2)], ["logits"]))
    shape = ["batch", "seq"]
    return _model(
        graph.nodes,
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, shape),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        graph.weights,
    )


def _layer(graph: _Graph, x: str, away: str) -> str:
    deep = _WIDTH // _HEADS
    split = graph.constant([0, 0, _HEADS, deep], np.int64)
    together = graph.constant([0, 0, _WIDTH], np.int64)
    orders = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
    heads = {
        name: graph.add("Transpose", graph.add("Reshape", graph.dense(x, _WIDTH, _WIDTH), split), perm=order)
        for name, order in orders.items()
    }
    scores = graph.add("Mul", graph.add("MatMul", heads["q"], heads["k"]), graph.constant(deep**-0.5))
    shares = graph.add("Softmax", graph.add("Add", scores, away), axis=-1)
    seen = graph.add("Transpose", graph.add("MatMul", shares, heads["v"]), perm=[0, 2, 1, 3])
    seen = graph.dense(graph.add("Reshape", seen, together), _WIDTH, _WIDTH)
    x = graph.norm(graph.add("Add", x, seen))
    inner = graph.dense(x, _WIDTH, _INNER)
    bent = graph.add("Erf", graph.add("Div", inner, graph.constant(2**0.5)))
    bent = graph.add("Mul", inner, graph.add("Add", bent, graph.constant(1.0)))
    bent = graph.add("Mul", bent, graph.constant(0.5))
    return graph.norm(graph.add("Add", x, graph.dense(bent, _INNER, _WIDTH)))
