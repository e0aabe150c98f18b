"""The registry behind real MLflow servers, however they keep bytes, and behind servers that are none."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peers import Talk, peer, saying
from projects import Project, evidence_of, see_a_rollout_through
from services import S3Endpoint, serve_mlflow
from support import clean_environment

from mlx_platform.core.errors import ConflictError, IntegrityError, MlxError, NotFoundError, UnavailableError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry.address import parse_address
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.rest import RestStore
from mlx_platform.registry.version import Lineage, model_id_of


def catalog_of(project: Project, uri: str, **settings: Any) -> Catalog:
    overrides = {"registry.uri": uri, "registry.timeout": 30, **settings}
    return Catalog(load_settings(start=project.folder, environment={}, overrides=overrides))


def rest(uri: str, folder: Path, timeout: float = 30) -> RestStore:
    return RestStore(parse_address(uri, folder), timeout=timeout, artifacts=str(folder / "bytes"))


def test_everything_works_over_http(
    mlflow_server: str, project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog = catalog_of(project, mlflow_server)
    params = {f"p{number}": "1" for number in range(120)}  # more than a server takes at once

    version, created = catalog.register("letters", project.variant("http"), Lineage(params=params))
    again, created_again = catalog.register("letters", project.package(1), Lineage(metrics={"f1": 0.5}))
    reused = catalog.register("letters", project.package(1), Lineage())

    assert (version.number, created, again.number, created_again) == (1, True, 2, True)
    assert reused[0].number == 2
    assert not reused[1]
    assert [found.number for found in catalog.versions("letters")] == [2, 1]
    assert "letters" in {model.name for model in catalog.models()}

    event = catalog.move("letters", "production", 1, expect=None, kind="promote", actor="ada")
    assert event is not None
    with pytest.raises(ConflictError):
        catalog.move("letters", "production", 2, expect=None, kind="promote", actor="bob")
    assert catalog.move("letters", "production", 2, expect=1, kind="promote", actor="bob") is not None
    assert [move.to_version for move in catalog.history("letters")] == [2, 1]
    assert catalog.resolve("letters@production").aliases == ("production",)
    assert catalog.resolve("letters@production~1").number == 1
    assert catalog.resolve(version.label).number == 1
    assert catalog.differences("letters") == ()

    catalog.record(version, evidence_of(version))
    assert catalog.evidence(version)["evaluation"].verdict == "pass"

    package = catalog.fetch(version)
    assert package.digest == version.digest
    assert package.model_path.read_bytes() == (project.folder / "model-1.onnx").read_bytes()
    assert capfd.readouterr() == ("", "")


def test_what_is_not_there_is_not_found_over_http(mlflow_server: str, project: Project) -> None:
    catalog = catalog_of(project, mlflow_server)
    catalog.register("numbers", project.package(1), Lineage())

    for ref in ("numbers/9", "nothing/1", "numbers@staging", "numbers-20200101-001", "nothing"):
        with pytest.raises(NotFoundError):
            catalog.resolve(ref)


def test_what_was_registered_shows_in_mlflow_as_a_model_with_its_run(
    mlflow_server: str, project: Project
) -> None:
    import mlflow

    catalog = catalog_of(project, mlflow_server)
    lineage = Lineage(params={"lr": "1"}, metrics={"f1 macro": 0.5}, description="made by hand")
    version, _ = catalog.register("shown.there", project.package(2), lineage)
    catalog.record(version, evidence_of(version))

    client = mlflow.MlflowClient(mlflow_server, mlflow_server)
    theirs = client.get_model_version("shown.there", "1")
    run = client.get_run(version.run_id)
    model = client.get_logged_model(model_id_of(version.source))

    assert (theirs.run_id, theirs.description) == (run.info.run_id, "made by hand")
    assert dict(theirs.tags) == dict(catalog.resolve("shown.there/1").tags)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "register shown.there")
    assert (run.data.params, run.data.metrics) == ({"lr": "1"}, {"f1 macro": 0.5})
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert (model.name, model.status, model.source_run_id) == ("shown_there", "READY", run.info.run_id)
    assert {metric.key for metric in model.metrics} > {"f1 macro", "accuracy"}
    assert model.params == {"lr": "1"}
    found = rest(mlflow_server, project.folder).run(version.run_id)
    assert found is not None
    assert (found.params, found.metrics, found.models) == (
        {"lr": "1"},
        {"f1 macro": 0.5},
        (model.model_id,),
    )


@pytest.mark.parametrize("kind", ["server", "file"])
def test_numbers_of_evidence_show_in_mlflow_with_the_rows_they_are_about(
    request: pytest.FixtureRequest, project: Project, kind: str
) -> None:
    import mlflow

    uri = request.getfixturevalue("mlflow_server") if kind == "server" else project.settings.registry.uri
    catalog = catalog_of(project, uri)
    version, _ = catalog.register("measured", project.variant(kind), Lineage())
    numbers = {"accuracy": {"value": 0.95}, "recall[a//b]": {"value": 0.5}}
    found = replace(evidence_of(version), numbers=numbers, parameters={"data": "rows/test.parquet"})
    catalog.record(version, found)

    address = parse_address(uri, project.folder).uri
    client = mlflow.MlflowClient(address, address)
    model = client.get_logged_model(model_id_of(version.source))
    run = client.get_run(catalog.evidence(version)["evaluation"].run_id)
    (data,) = run.inputs.dataset_inputs
    assert {(one.key, one.value, one.dataset_name, one.dataset_digest) for one in model.metrics} == {
        ("accuracy", 0.95, "test.parquet", "f" * 36),
        ("recall_a__b_", 0.5, "test.parquet", "f" * 36),
    }
    assert (data.dataset.name, data.dataset.digest) == ("test.parquet", "f" * 36)
    assert [(tag.key, tag.value) for tag in data.tags] == [("mlflow.data.context", "evaluation")]
    assert [entry.model_id for entry in run.inputs.model_inputs] == [model.model_id]
    by_rows = client.search_logged_models(
        [model.experiment_id],
        filter_string="metrics.accuracy > 0.9",
        datasets=[{"dataset_name": "test.parquet", "dataset_digest": "f" * 36}],
    )
    assert model.model_id in {one.model_id for one in by_rows}


def test_rows_are_what_mlflow_says(mlflow_server: str, tmp_path: Path) -> None:
    import mlflow

    client, store = mlflow.MlflowClient(mlflow_server, mlflow_server), rest(mlflow_server, tmp_path)
    store.ensure_model("rows", tags={"a": "ä"}, description="")
    store.ensure_model("rows", tags={"a": "other"}, description="")
    store.ensure_model("prompt", tags={"mlflow.prompt.is_prompt": "true"}, description="")
    for number in range(1, 13):
        tags = {"n": str(number), "quote": "it's"}
        assert store.create_version("rows", f"s3://bucket/{number}", tags=tags) == number
    for number in (3, 11, 12):
        store.delete_version("rows", number)
    store.set_tags("rows", 5, {"n": "five", "empty": ""})
    store.set_alias("rows", "production", 5)
    store.set_alias("rows", "staging", 6)
    store.set_alias("rows", "staging", None)
    store.set_model_tags("rows", {"b": "2"})

    rows = store.rows("rows")
    left = [10, 9, 8, 7, 6, 5, 4, 2, 1]
    assert [row.number for row in rows] == left
    assert store.count("rows") == len(left)
    assert [row.number for row in store.rows("rows", limit=3)] == left[:3]
    assert [row.number for row in store.rows("rows", numbers=(1, 3, 9, 99, 0))] == [9, 1]
    assert [row.number for row in store.rows("rows", numbers=range(1, 50))] == left
    assert store.tagged("rows", "n", "five") == (5,)
    assert store.tagged("rows", "quote", "it's") == tuple(left)
    theirs = client.get_model_version("rows", "5")
    (ours,) = store.rows("rows", numbers=(5,))
    assert (ours.source, ours.created_ms, ours.tags) == (
        theirs.source,
        theirs.creation_timestamp,
        theirs.tags,
    )
    assert ours.tags == {"n": "five", "quote": "it's", "empty": ""}
    assert store.aliases("rows") == {"production": 5}
    assert store.model_tags("rows") == {"a": "ä", "b": "2"}
    assert store.location("rows", 5) == client.get_model_version_download_uri("rows", "5")
    assert (store.location("rows", 3), store.aliases("nothing"), store.model_tags("it's")) == ("", {}, {})
    assert (store.rows("nothing"), store.count("nothing")) == ((), 0)
    assert "rows" in store.names()
    assert "prompt" not in store.names()


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.set_alias("nothing", "production", 1),
        lambda store: store.set_tags("nothing", 1, {"a": "b"}),
        lambda store: store.set_model_tags("nothing", {"a": "b"}),
        lambda store: store.delete_version("nothing", 1),
        lambda store: store.create_version("nothing", "s3://bucket/x", tags={}),
        lambda store: store.logged_model("m-" + "0" * 32),
    ],
)
def test_writes_to_what_is_not_there_are_refused(mlflow_server: str, tmp_path: Path, write: Any) -> None:
    with pytest.raises(NotFoundError):
        write(rest(mlflow_server, tmp_path))


def test_a_server_needs_no_mlflow_here(mlflow_server: str, project: Project) -> None:
    catalog_of(project, mlflow_server).register("light", project.package(1), Lineage())
    script = """
import sys
from mlx_platform.cli.main import main
for arguments in (["list", "light"], ["show", "light/1"], ["resolve", "light/1"], ["history", "light"],
    ["pull", "light/1", "-o", "out"],
    ["promote", "light/1", "--to", "staging"]):
    main([*arguments, "--json"])
assert not {"mlflow", "sqlalchemy", "requests", "pandas"} & sys.modules.keys(), sys.modules.keys()
"""
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=clean_environment(MLX_REGISTRY=mlflow_server, MLX_CACHE_DIR=str(project.folder / "cache")),
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr
    assert (project.folder / "out" / "manifest.json").exists()


@pytest.mark.parametrize("step", ["upload", "finish_model", "log", "create_version"])
def test_a_registration_that_is_interrupted_leaves_nothing_on_the_server(
    mlflow_server: str, project: Project, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from mlx_platform.registry import rest_files, rest_models, rest_runs

    def fail(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    name, catalog = f"interrupted-{step}", catalog_of(project, mlflow_server)
    with monkeypatch.context() as patch:
        owner = next(
            found for found in (rest_files.Files, rest_models.Models, rest_runs.Runs) if hasattr(found, step)
        )
        patch.setattr(owner, step, fail)
        with pytest.raises(KeyboardInterrupt):
            catalog.register(name, project.package(1), Lineage(params={"lr": "1"}))

    assert name not in {model.name for model in catalog.models()}
    version, created = catalog_of(project, mlflow_server).register(name, project.package(1), Lineage())
    assert (version.number, created) == (1, True)


# Where the bytes are


@pytest.fixture(scope="module")
def s3_servers(s3_endpoint: S3Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two servers over one S3 service: one hands the bytes out, the other says where they are."""
    folder, root = tmp_path_factory.mktemp("s3-servers"), f"s3://{s3_endpoint.bucket}"
    direct = ["--no-serve-artifacts", "--default-artifact-root", f"{root}/direct"]
    for name in ("proxied", "direct"):
        (folder / name).mkdir()
    with (
        serve_mlflow(
            folder / "proxied",
            f"sqlite:///{folder}/proxied.db",
            workers=1,
            artifacts=f"{root}/proxied",
            env=s3_endpoint.variables,
        ) as proxied,
        serve_mlflow(
            folder / "direct", f"sqlite:///{folder}/direct.db", *direct, workers=1, env=s3_endpoint.variables
        ) as unserved,
    ):
        yield {"proxied": proxied, "direct": unserved}


@pytest.mark.parametrize("way", ["proxied", "direct"])
def test_bytes_may_lie_in_s3(
    s3_endpoint: S3Endpoint,
    s3_servers: dict[str, str],
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    if way == "direct":
        s3_endpoint.use(monkeypatch)
    catalog = catalog_of(project, s3_servers[way], **{"cache.dir": str(project.folder / "cache")})
    version, _ = catalog.register("stored", project.package(1), Lineage())
    catalog.record(version, evidence_of(version))

    location = rest(s3_servers[way], project.folder).location("stored", 1)
    assert location.startswith("s3://" if way == "direct" else "mlflow-artifacts:/")
    assert catalog.fetch(version).digest == version.digest

    # Somebody deletes the bytes, but not the version.
    store = rest(s3_servers[way], project.folder)
    assert catalog.resolve("stored/1").number == 1
    store.erase(model_id_of(version.source))
    fresh = catalog_of(project, s3_servers[way], **{"cache.dir": str(project.folder / "other")})
    with pytest.raises(MlxError) as caught:
        fresh.fetch(version)
    assert caught.value.exit_code == 10


def test_a_registry_without_a_server_may_keep_its_bytes_in_s3(
    s3_endpoint: S3Endpoint, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = s3_endpoint.use(monkeypatch)
    uri = f"sqlite:///{project.database}"
    settings = {"registry.artifacts": root, "cache.dir": str(project.folder / "cache")}
    version, _ = catalog_of(project, uri, **settings).register("stored", project.package(1), Lineage())

    assert catalog_of(project, uri, **settings).fetch(version).digest == version.digest


def test_a_server_that_keeps_its_bytes_to_itself_takes_no_package(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, shared = tmp_path_factory.mktemp("unserved"), project.folder / "mlx-artifacts"
    options = ["--no-serve-artifacts", "--default-artifact-root", str(shared)]
    with serve_mlflow(folder, f"sqlite:///{project.database}", *options, workers=1) as uri:
        elsewhere = catalog_of(project, uri, **{"registry.artifacts": str(folder / "other")})
        with pytest.raises(UnavailableError, match="of its own machine, and hands none out"):
            elsewhere.register("letters", project.package(1), Lineage())
        with pytest.raises(IntegrityError, match="where no package may be"):
            elsewhere.fetch(elsewhere.resolve("digits/1"))
        assert [model.name for model in elsewhere.models()] == ["digits"]

        # Whoever sees the folder as well needs nobody to hand anything out.
        here = catalog_of(project, uri, **{"cache.dir": str(folder / "cache")})
        version, _ = here.register("letters", project.package(1), Lineage())
        here.record(version, evidence_of(version))
        assert here.fetch(version).digest == version.digest
        assert here.fetch(here.resolve("digits/1")).digest == here.resolve("digits/1").digest


@pytest.mark.parametrize(
    "location",
    [
        "mlflow-artifacts://elsewhere:5000/1/x",
        "http://elsewhere/api/2.0/mlflow-artifacts/artifacts/1/x",
        "http://127.0.0.1:5000/api/2.0/mlflow/runs/get",
    ],
)
def test_bytes_are_fetched_from_no_other_host(tmp_path: Path, location: str) -> None:
    with pytest.raises(IntegrityError):
        rest("http://127.0.0.1:5000", tmp_path, timeout=1).download(location, tmp_path, 10)


# Servers that are none


@pytest.mark.parametrize(
    "talk",
    [
        saying(200, b"<!doctype html><title>Welcome</title>", kind="text/html"),
        saying(404, b"<!doctype html><title>Not found</title>", kind="text/html"),
        saying(500, b"oops"),
        saying(200, b'{"model_version": {"name": '),
        saying(200, b'{"model_versions": [{"name": "digits", "version": "z"}], "registered_models": "none"}'),
        saying(200, b'{"model_versions": [1], "registered_models": [{"name": ["digits"]}]}'),
        saying(
            200, b'{"model_versions": {}, "registered_models": [{"name": "digits", "tags": [{"key": 1}]}]}'
        ),
        saying(401, b'{"error_code": "UNAUTHENTICATED", "message": "who are you?"}'),
    ],
)
def test_a_server_that_is_no_registry_is_unavailable(tmp_path: Path, talk: Talk) -> None:
    with peer(talk) as server:
        settings = load_settings(start=tmp_path, environment={}, overrides={"registry.uri": server.uri})
        catalog = Catalog(settings)

        for ask in (catalog.models, lambda: catalog.resolve("digits/1")):
            with pytest.raises(MlxError) as caught:
                ask()
            assert caught.value.exit_code in {9, 10}
            assert "\n" not in caught.value.message


def test_where_nobody_listens_the_database_is_unavailable(tmp_path: Path) -> None:
    overrides = {"registry.uri": "postgresql://ada:secret@127.0.0.1:1/mlx"}
    catalog = Catalog(load_settings(start=tmp_path, environment={}, overrides=overrides))

    with pytest.raises(UnavailableError) as caught:
        catalog.resolve("digits/1")

    assert "secret" not in caught.value.message


def test_a_rollout_works_over_http_and_a_look_costs_two_requests(
    mlflow_server: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(project, mlflow_server)
    for number in (1, 2):
        catalog.register("sounds", project.package(number), Lineage())
    catalog.move("sounds", "production", 1, kind="promote", actor="ada")
    see_a_rollout_through(catalog, "sounds")

    asked: list[str] = []
    api: Any = catalog._backend.store._api  # type: ignore[union-attr]
    read = api.read

    def counting(path: str, *arguments: Any) -> Any:
        asked.append(path)
        return read(path, *arguments)

    monkeypatch.setattr(api, "read", counting)
    catalog.sight("sounds")

    assert asked == ["registered-models/search", "model-versions/search"]
