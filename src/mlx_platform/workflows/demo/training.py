"""The demo's models: trained with scikit-learn, exported to ONNX, laid out as package sources."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.tensors import encode_array, text_column
from mlx_platform.workflows.demo.digits import LABELS, PIXELS, Labels, Pixels, column_major

_GOLDEN_CASES = 8


@dataclass(frozen=True, slots=True)
class Trained:
    """A package source on disk, and what is known about its training."""

    folder: Path
    params: Mapping[str, str]
    metrics: Mapping[str, float]


def train_first(pixels: Pixels, labels: Labels, folder: Path) -> Trained:
    """Logistic regression: a decent first model."""
    from sklearn.linear_model import LogisticRegression

    params = {"C": "0.01", "max_iter": "300"}
    return _train(LogisticRegression(C=0.01, max_iter=300), params, pixels, labels, folder)


def train_challenger(pixels: Pixels, labels: Labels, folder: Path) -> Trained:
    """A small neural network: better, and with layers that INT8 helps."""
    params = {"hidden": "256", "alpha": "0.01", "seed": "7"}
    return _train(_network(), params, pixels, labels, folder)


def train_broken(pixels: Pixels, labels: Labels, folder: Path) -> Trained:
    """The challenger again, trained on the other pixel order: fine in training, wrong in production."""
    params = {"hidden": "256", "alpha": "0.01", "seed": "7", "layout": "column-major"}
    return _train(_network(), params, column_major(pixels), labels, folder)


def _network() -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(
        hidden_layer_sizes=(256,), alpha=0.01, random_state=7, early_stopping=False, max_iter=60
    )


def _train(
    classifier: Any, params: Mapping[str, str], pixels: Pixels, labels: Labels, folder: Path
) -> Trained:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler
    from threadpoolctl import threadpool_limits

    started = time.monotonic()
    # Matrices this small are multiplied ten times as fast by one thread as by two that wait for each other.
    with threadpool_limits(1), warnings.catch_warnings():
        # A fixed number of passes is the point: the demo's time must not depend on convergence.
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipeline = make_pipeline(MinMaxScaler(), classifier).fit(pixels, labels)
    seconds = time.monotonic() - started
    folder.mkdir(parents=True, exist_ok=True)
    _export(pipeline, folder / "model.onnx")
    (folder / "model.toml").write_text(_MODEL_TOML)
    (folder / "golden.jsonl").write_bytes(_golden(pipeline, pixels[:_GOLDEN_CASES]))
    metrics = {"train_accuracy": float(pipeline.score(pixels, labels)), "train_seconds": round(seconds, 2)}
    return Trained(folder, params, metrics)


def _export(pipeline: Any, path: Path) -> None:
    from skl2onnx import to_onnx

    proto = to_onnx(
        pipeline,
        np.zeros((1, len(PIXELS)), np.float32),
        options={"zipmap": False},
        target_opset=17,
        name="digits",
    )
    path.write_bytes(proto.SerializeToString())


def _golden(pipeline: Any, pixels: Pixels) -> bytes:
    """Golden cases from scikit-learn itself, so that the self-check also proves the export."""
    probabilities = pipeline.predict_proba(pixels).astype(np.float32)
    lines = []
    for row, answer in zip(pixels, probabilities, strict=True):
        inputs = {name: encode_array(row[index : index + 1]) for index, name in enumerate(PIXELS)}
        outputs = {
            "label": encode_array(text_column([LABELS[int(answer.argmax())]])),
            "probabilities": encode_array(answer[None, :]),
        }
        lines.append(orjson.dumps({"inputs": inputs, "outputs": outputs, "rtol": 1e-3, "atol": 1e-4}))
    return b"\n".join(lines) + b"\n"


_MODEL_TOML = f"""\
format = 1
task = "classification"
labels = {list(LABELS)}

[[inputs]]
name = "X"
datatype = "FP32"
shape = [-1, 64]

[[outputs]]
name = "label"
datatype = "INT64"
shape = [-1]

[[outputs]]
name = "probabilities"
datatype = "FP32"
shape = [-1, 10]

[[pre]]
step = "columns"
names = {list(PIXELS)}

[[post]]
step = "labels"
output = "probabilities"
""".replace("'", '"')
