"""Models and rows for quantization: handwritten digits, and a graph that INT8 ruins."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from linear_models import write_source
from onnx import helper

YES_OR_NO = 'format = 1\ntask = "classification"\nlabels = ["no", "yes"]\n'
COLUMNS = [f"p{index:02d}" for index in range(64)]


@pytest.fixture(scope="session")
def digit_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`perceptron`, `forest` and `regressor` as ONNX files, with rows that none of them was trained on."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    pixels, labels = load_digits(return_X_y=True)
    train, rest, train_labels, rest_labels = train_test_split(
        pixels.astype(np.float32), labels, test_size=0.6, random_state=0, stratify=labels
    )
    made: dict[str, Any] = {"train": train, "rest": rest, "labels": rest_labels}
    estimators = {
        "perceptron": MLPClassifier((96, 48), max_iter=60, random_state=0, early_stopping=True),
        "forest": RandomForestClassifier(5, random_state=0),
        "regressor": MLPRegressor(hidden_layer_sizes=(64, 32), tol=0.01, n_iter_no_change=5, random_state=0),
    }
    for name, estimator in estimators.items():
        estimator.fit(train, train_labels.astype(np.float32) if name == "regressor" else train_labels)
        classifier = name != "regressor"
        options = {"zipmap": False} if classifier else None
        made[name] = tmp_path_factory.mktemp("models") / f"{name}.onnx"
        onnx.save(to_onnx(estimator, train[:1], options=options, target_opset=17), made[name])
    return made


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, empty at first."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


WriteRows = Callable[..., Path]


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """Write pixels and labels as a Parquet file."""

    def write(name: str, pixels: np.ndarray, labels: np.ndarray | None = None, **extra: Any) -> Path:
        import pandas as pd

        names = COLUMNS if pixels.shape[1] == len(COLUMNS) else [f"f{i}" for i in range(pixels.shape[1])]
        table = pd.DataFrame(pixels, columns=names)
        if labels is not None:
            table["label"] = labels
        path = tmp_path / name
        table.assign(**extra).to_parquet(path)
        return path

    return write


@pytest.fixture
def digit_rows(digit_models: dict[str, Any], write_rows: WriteRows) -> tuple[Path, Path]:
    """Calibration rows and judged rows, which do not overlap."""
    rest, labels = digit_models["rest"], digit_models["labels"]
    return (
        write_rows("calibration.parquet", rest[:400]),
        write_rows("test.parquet", rest[400:], labels[400:].astype(str)),
    )


@pytest.fixture
def fragile(tmp_path: Path) -> Path:
    """Tells two classes apart by a small input beside a huge one, which takes all steps of an 8-bit scale."""
    weights = {"w": np.float32([[0, 0], [-4, 4], [0, 0], [0, 0]]), "b": np.float32([0, 0])}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["z"], "layer"),
        helper.make_node("Softmax", ["z"], ["probabilities"], "softmax"),
    ]
    return write_source(tmp_path / "fragile", nodes, weights, YES_OR_NO, 4, ("probabilities", 2))


@pytest.fixture
def fragile_rows(write_rows: WriteRows) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (900, 4)).astype(np.float32)
    rows[:, 0] *= 10_000
    labels = np.where(rows[:, 1] > 0, "yes", "no")
    return write_rows("calibration.parquet", rows[:300]), write_rows("test.parquet", rows[300:], labels[300:])


@pytest.fixture
def partly_fragile(tmp_path: Path) -> Path:
    """Like `fragile`, but what INT8 ruins is one small layer beside large ones that it does not harm.

    The last layer stays float anyway, for its sum is fused into it.
    """
    rng = np.random.default_rng(0)
    weights = {
        "small": np.float32([[0, 0], [-4, 4], [0, 0], [0, 0]]),
        "wide": np.concatenate([np.zeros((1, 96)), rng.normal(size=(3, 96))]).astype(np.float32),
        "deep": (rng.normal(size=(96, 96)) / 10).astype(np.float32),
        "narrow": (rng.normal(size=(96, 2)) / 1000).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "small"], ["s"], "fragile"),
        helper.make_node("MatMul", ["x", "wide"], ["w"], "wide"),
        helper.make_node("Tanh", ["w"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "deep"], ["d"], "deep"),
        helper.make_node("MatMul", ["d", "narrow"], ["n"], "narrow"),
        helper.make_node("Add", ["s", "n"], ["z"], "sum"),
        helper.make_node("Softmax", ["z"], ["probabilities"], "softmax"),
    ]
    return write_source(tmp_path / "partly", nodes, weights, YES_OR_NO, 4, ("probabilities", 2))
