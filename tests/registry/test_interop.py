"""What mlx registers as MLflow's own tools see it, and what MLflow registers on a server as mlx sees it."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain_mlflow import tracking
from projects import Project, write_network
from services import S3Endpoint
from support import clean_environment, sha256_of

from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.settings import load_settings
from mlx_platform.inference.build import build_package
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.adopt import adopt
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.register import register

_SPEC = """format = 1
task = "classification"
labels = ["bad", "good"]
[[pre]]
step = "tokenize"
column = "text"
[[post]]
step = "softmax"
output = "logits"
[[post]]
step = "labels"
"""


@dataclass
class Place:
    """A registry, seen by both."""

    catalog: Catalog
    client: Any


@pytest.fixture(params=["sqlite", "server"])
def place(request: pytest.FixtureRequest, project: Project) -> Iterator[Place]:
    overrides = {"registry.timeout": 60}
    uri = f"sqlite:///{project.database}"
    if request.param == "server":
        uri = request.getfixturevalue("mlflow_server")
        overrides |= {"registry.uri": uri}
    with tracking(uri) as client:
        yield Place(Catalog(load_settings(start=project.folder, environment={}, overrides=overrides)), client)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """A package that reads text: two inputs, made of one column by a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("reader")
    (folder / "source" / "assets").mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "good": 1, "bad": 2}, unk_token="[UNK]"))  # noqa: S106 - a token of text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "source" / "assets" / "tokenizer.json"))
    (folder / "source" / "model.toml").write_text(_SPEC)
    table = np.array([[0, 0], [-2, 3], [4, -1]], dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["words"]),
            helper.make_node("Cast", ["attention_mask"], ["flat"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["flat", "last"], ["mask"]),
            helper.make_node("Mul", ["words", "mask"], ["seen"]),
            helper.make_node("ReduceSum", ["seen", "words_axis"], ["logits"], keepdims=0),
        ],
        "reader",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "words"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([1]), "words_axis"),
        ],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(network, folder / "source" / "model.onnx")
    return build_package(folder / "source", folder / "package").package


def test_mlflow_answers_what_the_network_of_a_version_answers(place: Place, project: Project) -> None:
    import mlflow

    lineage = Lineage(params={"lr": "1"}, metrics={"f1": 0.9}, description="seen by both")
    version, _ = place.catalog.register("shared", project.variant("shared"), lineage)
    place.catalog.move("shared", "production", version.number, kind="promote", actor="ada")
    model = Model.load(place.catalog.fetch(version), device="cpu")
    rows = np.random.default_rng(20260308).normal(size=(5, 4)).astype(np.float32)
    ours = model.run({"x": rows})["probabilities"]

    for uri in (f"models:/shared/{version.number}", "models:/shared@production"):
        theirs = mlflow.pyfunc.load_model(uri).predict({"x": rows})
        assert np.array_equal(theirs["probabilities"], ours)
    network = mlflow.onnx.load_model(f"models:/shared/{version.number}")
    assert network == onnx.load(model.package.model_path)


def test_mlflow_sees_the_raw_network_of_a_text_model(place: Place, reader: Package) -> None:
    import mlflow

    version, _ = place.catalog.register("reader", reader, Lineage())
    model = Model.load(place.catalog.fetch(version), device="cpu")
    texts = {"text": np.array(["good good", "bad", "what"], dtype=object)}
    feeds = model.encode(texts)
    assert model.predict(texts).columns["label"].tolist() == ["good", "bad", "bad"]

    theirs = mlflow.pyfunc.load_model(f"models:/reader/{version.number}")

    assert np.array_equal(theirs.predict(feeds)["logits"], model.run(feeds)["logits"])
    with pytest.raises(mlflow.MlflowException, match="text"):
        theirs.predict(texts)


def test_mlflow_downloads_every_file_and_does_no_harm(place: Place, project: Project, tmp_path: Path) -> None:
    import mlflow

    version, _ = place.catalog.register("down", project.variant("down"), Lineage())
    names = {"manifest.json", *(entry.path for entry in project.package(1).manifest.files)}

    for target in (None, str(tmp_path)):
        folder = Path(mlflow.artifacts.download_artifacts(f"models:/down/{version.number}", dst_path=target))
        assert names <= {path.relative_to(folder).as_posix() for path in folder.rglob("*")}

    shutil.rmtree(place.catalog.fetch(version).root)
    assert place.catalog.fetch(version).digest == version.digest


def test_mlflows_page_says_what_a_version_is(place: Place, project: Project) -> None:
    lineage = Lineage(params={"lr": "1"}, metrics={"f1": 0.9}, git_commit="0123456789", description="wider")
    version, _ = place.catalog.register("page", project.variant("page"), lineage)

    seen = place.client.get_model_version("page", str(version.number))
    run = place.client.get_run(seen.run_id)

    assert seen.description == "wider"
    assert seen.tags["mlx.digest"] == version.digest
    assert (seen.tags["mlx.label"], seen.tags["mlx.task"]) == (version.label, "classification")
    assert run.info.run_name == "register page"
    assert (run.info.status, run.data.params, run.data.metrics) == ("FINISHED", {"lr": "1"}, {"f1": 0.9})
    assert run.data.tags["mlflow.source.git.commit"] == "0123456789"


def test_bytes_survive_the_deletion_of_their_run_and_mlflows_garbage_collection(project: Project) -> None:
    import mlflow

    version, _ = project.catalog.register("kept", project.variant("kept"), Lineage())
    project.catalog.move("kept", "production", version.number, kind="promote", actor="ada")
    uri = f"sqlite:///{project.database}"
    with tracking(uri) as client:
        client.delete_run(version.run_id)
        collected = subprocess.run(
            [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", uri],
            env=clean_environment(MLFLOW_TRACKING_URI=uri, MLFLOW_DISABLE_TELEMETRY="true"),
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"{version.run_id} has been permanently deleted" in collected.stdout + collected.stderr

        resolved = project.anew().resolve("kept@production")
        assert project.anew().fetch(resolved).digest == version.digest
        assert mlflow.onnx.load_model("models:/kept@production").graph.name == "digits"


def test_a_model_in_s3_is_taken_once_the_settings_allow_its_store(
    s3_endpoint: S3Endpoint, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    store = s3_endpoint.use(monkeypatch)
    network = write_network(tmp_path / "net.onnx", 12.0)
    with tracking(f"sqlite:///{project.database}") as client:
        mlflow.set_experiment(experiment_id=client.create_experiment("far away", f"{store}/1"))
        with mlflow.start_run():
            mlflow.onnx.log_model(
                onnx.load(network),
                name="network",
                pip_requirements=["onnx"],
                save_as_external_data=False,
                registered_model_name="far",
            )
    with pytest.raises(IntegrityError, match="none may be read"):
        project.catalog.fetch(project.catalog.resolve("far/1"))

    (project.folder / "mlx.toml").write_text(f'[registry]\nsources = ["{store}"]\n')
    catalog = Catalog(load_settings(start=project.folder, environment={}))
    package = catalog.fetch(catalog.resolve("far/1"))
    assert sha256_of(package.model_path) == sha256_of(network)
    assert catalog.fetch(catalog.resolve("far/1")) == package


def test_what_mlflow_logs_to_a_server_is_adopted(
    mlflow_server: str, project: Project, tmp_path: Path
) -> None:
    import mlflow

    overrides = {"registry.uri": mlflow_server, "registry.timeout": 60}
    context = make_context(load_settings(start=project.folder, environment={}, overrides=overrides))
    network = write_network(tmp_path / "net.onnx", 11.0)
    with tracking(mlflow_server) as client, contextlib.ExitStack() as stack:
        # Whatever experiment another test chose belongs to another registry.
        mlflow.set_experiment(experiment_id=client.create_experiment("logged"))
        run = stack.enter_context(mlflow.start_run())
        mlflow.log_param("lr", "7")
        mlflow.log_input(mlflow.data.from_numpy(np.zeros((2, 4)), name="writers", digest="77aa"), "training")
        mlflow.onnx.log_model(
            onnx.load(network),
            name="network",
            pip_requirements=["onnx"],
            save_as_external_data=False,
            registered_model_name="logged",
        )
        mlflow.log_artifact(str(network), "bare")

    package = context.catalog.fetch(context.catalog.resolve("logged/1"))
    assert sha256_of(package.model_path) == sha256_of(network)
    result = adopt(context, "logged/1")
    adopted = context.catalog.resolve("logged/2")
    assert (adopted.ref, adopted.params) == (result.data["ref"], {"lr": "7"})
    assert (adopted.dataset_version, adopted.digest) == ("writers (77aa)", package.digest)

    for path in ("network", "bare/net.onnx"):
        copied = register(context, "copied", f"runs:/{run.info.run_id}/{path}")
        assert copied.data["version"] == 1
    again = context.catalog.resolve("copied/1")
    assert again.tags["mlx.registered_from"] == f"runs:/{run.info.run_id}/network"
    assert json.loads(again.tags["mlx.params"]) == {"lr": "7"}
