"""Small real models: a perceptron trained on handwritten digits, and graphs built by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

Feeds = list[dict[str, np.ndarray]]


@dataclass(frozen=True)
class Digits:
    """Half of the rows train, a quarter calibrates, a quarter judges."""

    train: np.ndarray
    train_labels: np.ndarray
    calibration: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    def feeds(self, rows: int = 32) -> Feeds:
        return [{"X": self.calibration[at : at + rows]} for at in range(0, len(self.calibration), rows)]


@pytest.fixture(scope="session")
def digits() -> Digits:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    train, rest, train_labels, rest_labels = train_test_split(
        pixels.astype(np.float32), labels, test_size=0.5, random_state=0, stratify=labels
    )
    half = len(rest) // 2
    return Digits(train, train_labels, rest[:half], rest[half:], rest_labels[half:])


def _convert(estimator: Any, row: np.ndarray, path: Path) -> Path:
    from skl2onnx import to_onnx

    onnx.save(to_onnx(estimator, row, options={"zipmap": False}, target_opset=17), path)
    return path


@pytest.fixture(scope="session")
def perceptron(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained multilayer perceptron, as skl2onnx writes it: MatMul, Add, and ArgMax for the label."""
    from sklearn.neural_network import MLPClassifier

    estimator = MLPClassifier((96, 48), max_iter=60, random_state=0, early_stopping=True)
    estimator.fit(digits.train, digits.train_labels)
    return _convert(estimator, digits.train[:1], tmp_path_factory.mktemp("models") / "perceptron.onnx")


@pytest.fixture(scope="session")
def forest(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sklearn.ensemble import RandomForestClassifier

    estimator = RandomForestClassifier(5, random_state=0).fit(digits.train, digits.train_labels)
    return _convert(estimator, digits.train[:1], tmp_path_factory.mktemp("models") / "forest.onnx")


@pytest.fixture(scope="session")
def linear(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sklearn.linear_model import RidgeClassifier

    estimator = RidgeClassifier().fit(digits.train, digits.train_labels)
    return _convert(estimator, digits.train[:1], tmp_path_factory.mktemp("models") / "linear.onnx")


SaveModel = Callable[..., Path]


@pytest.fixture
def save_model(tmp_path: Path) -> SaveModel:
    """Write a graph: nodes, shapes of float inputs and outputs, and weights."""

    def save(
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Sequence[Any]],
        outputs: Mapping[str, Sequence[Any]],
        weights: Mapping[str, np.ndarray],
        *,
        opset: int = 17,
        name: str = "model.onnx",
    ) -> Path:
        graph = helper.make_graph(
            list(nodes),
            "graph",
            [
                helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, shape)
                for key, shape in inputs.items()
            ],
            [
                helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, shape)
                for key, shape in outputs.items()
            ],
            [numpy_helper.from_array(array, key) for key, array in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        path = tmp_path / "models" / name
        path.parent.mkdir(exist_ok=True)
        onnx.save(model, path)
        return path

    return save


@pytest.fixture
def dense(save_model: SaveModel) -> Path:
    """One MatMul without a name, its weights drawn at random."""
    weight = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    return save_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 16]}, {"y": ["n", 8]}, {"w": weight}
    )


@pytest.fixture
def embedding(save_model: SaveModel) -> Callable[[int], Path]:
    """The mean of the rows of a table, of so many numbers each, that `ids` [n, l] pick."""

    def make(width: int) -> Path:
        table = np.random.default_rng(1).normal(size=(500, width)).astype(np.float32)
        nodes = [
            helper.make_node("Cast", ["ids"], ["i"], "cast", to=onnx.TensorProto.INT64),
            helper.make_node("Gather", ["table", "i"], ["e"], "embedding"),
            helper.make_node("ReduceMean", ["e"], ["y"], "mean", axes=[1], keepdims=0),
        ]
        return save_model(nodes, {"ids": ["n", "l"]}, {"y": ["n", width]}, {"table": table})

    return make


@pytest.fixture
def convolutional(save_model: SaveModel) -> Path:
    """Convolutions with Relu, pooling, a residual sum and a head, with random weights."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["m1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m1", "w2", "b2"], ["c2"], "conv2", pads=[1] * 4),
        helper.make_node("Add", ["c2", "m1"], ["a"], "residual"),
        helper.make_node("GlobalAveragePool", ["a"], ["g"], "average"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["z"], "head"),
        helper.make_node("Softmax", ["z"], ["p"], "softmax"),
    ]
    weights = {
        "w1": weight(16, 1, 3, 3),
        "b1": weight(16),
        "w2": weight(16, 16, 3, 3),
        "b2": weight(16),
        "w3": np.ascontiguousarray(weight(10, 16).T),
        "b3": weight(10),
    }
    return save_model(nodes, {"x": ["n", 1, 16, 16]}, {"p": ["n", 10]}, weights)


@pytest.fixture
def saturating(save_model: SaveModel) -> Path:
    """Products whose 8-bit pairs overflow 16 bits where weights use all 8 bits on AVX2."""
    rng = np.random.default_rng(0)
    weight = rng.uniform(0.9, 1.0, (256, 8)).astype(np.float32)
    weight[:, 4:] *= rng.choice([-1, 1], (256, 4))
    return save_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 256]}, {"y": ["n", 8]}, {"w": weight}
    )
