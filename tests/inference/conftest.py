"""Small real networks: converted estimators on handwritten digits, and graphs made by hand."""

import os

# Before anything imports onnxruntime.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from mlx_platform.inference.build import build_package
from mlx_platform.inference.graph import read_network
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package, open_package, seal
from mlx_platform.inference.spec import spec_from_network, write_spec

Pack = Callable[..., Model]
FLOAT = TensorProto.FLOAT


def _graph(
    nodes: list[Any],
    inputs: Mapping[str, tuple[int, list[int | str]]],
    outputs: Mapping[str, tuple[int, list[int | str]]],
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """An ONNX model from nodes; shapes use text for dimensions that vary."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    made = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        tensors,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="session")
def graph() -> Callable[..., Any]:
    return _graph


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels [1797, 64] in 0..1 and the digits."""
    pixels, truth = load_digits(return_X_y=True)
    return (pixels / 16).astype(np.float32), truth


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _convert(estimator: Any, path: Path) -> Path:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    network = to_onnx(
        estimator,
        initial_types=[("x", FloatTensorType([None, 64]))],
        options={"zipmap": False},
        name="model",
    )
    path.write_bytes(network.SerializeToString())
    return path


@pytest.fixture(scope="session")
def logistic(digits) -> LogisticRegression:
    return LogisticRegression(max_iter=2000).fit(digits[0][:1000], digits[1][:1000])


@pytest.fixture(scope="session")
def mlp(digits) -> MLPClassifier:
    estimator = MLPClassifier((24,), max_iter=400, early_stopping=True, random_state=0)
    return estimator.fit(digits[0][:1000], digits[1][:1000])


@pytest.fixture(scope="session")
def logistic_onnx(logistic, model_folder) -> Path:
    return _convert(logistic, model_folder / "logistic.onnx")


@pytest.fixture(scope="session")
def mlp_onnx(mlp, model_folder) -> Path:
    return _convert(mlp, model_folder / "mlp.onnx")


@pytest.fixture(scope="session")
def mlp_skops(mlp, model_folder) -> Path:
    import skops.io

    skops.io.dump(mlp, model_folder / "mlp.skops")
    return model_folder / "mlp.skops"


@pytest.fixture(scope="session")
def matmul_onnx(model_folder) -> Path:
    """Scores [n, 3] of three columns: the unit matrix times ten."""
    model = _graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"])],
        {"x": (FLOAT, ["n", 3])},
        {"scores": (FLOAT, ["n", 3])},
        {"w": np.eye(3, dtype=np.float32) * 10},
    )
    onnx.save(model, model_folder / "matmul.onnx")
    return model_folder / "matmul.onnx"


@pytest.fixture(scope="session")
def logistic_package(logistic_onnx, tmp_path_factory) -> Package:
    return build_package(logistic_onnx, tmp_path_factory.mktemp("built") / "package").package


@pytest.fixture(scope="session")
def logistic_model(logistic_package) -> Model:
    return Model.load(logistic_package, name="digits", version="3", device="cpu", threads=1)


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Seal a network with a `model.toml` and assets, without the first run in a child, and load it."""

    def make(network: Any, spec: str = "", assets: Mapping[str, bytes] | None = None) -> Model:
        root = tmp_path / "package"
        (root / "assets").mkdir(parents=True)
        if isinstance(network, Path):
            (root / "model.onnx").write_bytes(network.read_bytes())
        else:
            onnx.save(network, root / "model.onnx")
        (root / "model.toml").write_text(
            spec or write_spec(spec_from_network(read_network(root / "model.onnx")))
        )
        for name, content in (assets or {}).items():
            (root / "assets" / name).write_bytes(content)
        seal(root)
        return Model.load(open_package(root), device="cpu", threads=1)

    return make
