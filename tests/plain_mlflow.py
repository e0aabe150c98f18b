"""A registry that somebody filled with MLflow alone: made once per session, copied for each test."""

import json
import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from projects import write_network

DATASET = "writers"


@dataclass(frozen=True)
class Plain:
    """What the versions of `theirs` were made of.

    `theirs/1` is a logged model with a signature and its weights beside it, in the stage Staging; `theirs/2`
    lies in the artifacts of a run as MLflow 2 had it, in the stage Production; `theirs/3` is a logged model
    with the alias champion, and `theirs/4` a pickle of scikit-learn. `copied/1` was copied from `theirs/2`.
    """

    runs: dict[str, str]
    models: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> "Plain":
        return cls(**json.loads((folder / "plain.json").read_text()))


def make_plain(folder: Path) -> Path:
    """Fill a registry as a user of MLflow would, unless it is there."""
    if (folder / "plain.json").exists():
        return folder
    folder.mkdir(parents=True)
    _write_wide(folder / "model-1.onnx")
    for number in (2, 3):
        write_network(folder / f"model-{number}.onnx", float(number))
    with tracking(f"sqlite:///{folder / 'mlx.db'}") as client:
        plain = _fill(client, folder)
    (folder / "plain.json").write_text(json.dumps({"runs": plain.runs, "models": plain.models}))
    return folder


def copy_plain(template: Path, folder: Path) -> Path:
    """The test's own copy."""
    shutil.copytree(template, folder)
    return folder


@contextmanager
def tracking(uri: str) -> Iterator[Any]:
    """MLflow's client for a registry that MLflow's fluent functions use as well, until the block ends."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow

        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        try:
            yield mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        finally:
            mlflow.set_tracking_uri(None)
            mlflow.set_registry_uri(None)


def _write_wide(path: Path) -> None:
    """A network whose weights are large enough for MLflow to put them into a file of their own."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(20260308)
    weights = {
        "a": random.normal(size=(4, 512)).astype(np.float32),
        "b": random.normal(size=(512, 3)).astype(np.float32),
    }
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["scores"])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def _fill(client: Any, folder: Path) -> Plain:
    import mlflow
    import onnx

    mlflow.set_experiment(experiment_id=client.create_experiment("theirs", str(folder / "mlruns" / "1")))
    runs, models = {}, {}
    signature = mlflow.models.infer_signature(np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32))
    with mlflow.start_run() as run:
        info = mlflow.onnx.log_model(
            onnx.load(folder / "model-1.onnx"),
            name="network",
            pip_requirements=["onnx"],
            signature=signature,
            registered_model_name="theirs",
        )
        runs["1"], models["1"] = run.info.run_id, info.model_id
    with mlflow.start_run() as run, tempfile.TemporaryDirectory() as scratch:
        mlflow.log_params({"lr": 0.1, "layers": "2"})
        mlflow.log_metrics({"f1": 0.93, "loss": float("nan")})
        mlflow.set_tags(
            {"team": "vision", "mlflow.source.git.commit": "0123456789abcdef0123456789abcdef01234567"}
        )
        mlflow.log_input(mlflow.data.from_numpy(np.zeros((2, 4)), name=DATASET, digest="77aa"), "training")
        mlflow.onnx.save_model(
            onnx.load(folder / "model-2.onnx"),
            f"{scratch}/model",
            pip_requirements=["onnx"],
            save_as_external_data=False,
        )
        mlflow.log_artifacts(f"{scratch}/model", "model")
        mlflow.log_artifact(str(folder / "model-2.onnx"), "bare")
        runs["2"] = run.info.run_id
        place = mlflow.get_artifact_uri("model")
    client.create_model_version("theirs", place, run_id=runs["2"])
    with mlflow.start_run() as run:
        info = mlflow.onnx.log_model(
            onnx.load(folder / "model-3.onnx"),
            name="network",
            pip_requirements=["onnx"],
            save_as_external_data=False,
            registered_model_name="theirs",
        )
        runs["3"], models["3"] = run.info.run_id, info.model_id
    with mlflow.start_run() as run, tempfile.TemporaryDirectory() as scratch:
        # What MLflow's scikit-learn flavor leaves, without scikit-learn: the pickle must never be opened.
        Path(scratch, "MLmodel").write_text(
            "flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n    model_path: model.pkl\n"
            "  sklearn:\n    pickled_model: model.pkl\n    serialization_format: cloudpickle\n"
        )
        Path(scratch, "model.pkl").write_bytes(pickle.dumps(_Payload(str(folder / "canary"))))
        mlflow.log_artifacts(scratch, "model")
        runs["4"] = run.info.run_id
        client.create_model_version("theirs", mlflow.get_artifact_uri("model"), run_id=runs["4"])
    client.transition_model_version_stage("theirs", "1", "Staging")
    client.transition_model_version_stage("theirs", "2", "Production")
    client.set_registered_model_alias("theirs", "champion", "3")
    client.set_model_version_tag("theirs", "3", "owner", "ada")
    client.update_model_version("theirs", "3", "wider layers")
    client.copy_model_version("models:/theirs/2", "copied")
    return Plain(runs, models)


class _Payload:
    """Opens a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._path, "w")
