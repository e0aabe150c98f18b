"""Models and versions as servers tell them that are old, or that tell what no registry tells."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from peers import Talk, answer, peer
from projects import Project, evidence_of

from mlx_platform.core.errors import IntegrityError, UnavailableError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry.address import parse_address
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.rest import RestStore
from mlx_platform.registry.rest_calls import Api
from mlx_platform.registry.rest_files import Files
from mlx_platform.registry.rest_login import login
from mlx_platform.registry.rest_models import _last
from mlx_platform.registry.version import Lineage

Document = dict[str, Any]


class OldServer:
    """What a server of MLflow 2.9 answers to the calls that mlx makes; it has no logged models."""

    def __init__(self) -> None:
        self.models: dict[str, Document] = {}
        self.versions: dict[str, list[Document]] = {}
        self.runs: dict[str, Document] = {}
        self.experiments: dict[str, Document] = {}
        self.files: dict[str, bytes] = {}

    def talk(self, connection: Any, head: str, body: bytes) -> None:
        connection.sendall(self.answer(head, body))

    def answer(self, head: str, body: bytes) -> bytes:
        method, target, _ = head.split(maxsplit=2)
        parts = urlsplit(target)
        path, query = unquote(parts.path), parse_qs(parts.query)
        if (stored := path.removeprefix("/api/2.0/mlflow-artifacts/artifacts/")) != path:
            return self._file(method, stored, body)
        noun = path.removeprefix("/api/2.0/mlflow/").replace("/", "_").replace("-", "_")
        handle = getattr(self, f"_{method.lower()}_{noun}", None)
        if handle is None:
            return answer(404, b"<!doctype html>\n<title>404 Not Found</title>", kind="text/html")
        try:
            given = {key: values[0] for key, values in query.items()} if method == "GET" else json.loads(body)
            return answer(200, json.dumps(handle(given)).encode())
        except KeyError as error:
            refusal = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"{error} not found"}
            return answer(404, json.dumps(refusal).encode())

    def _file(self, method: str, path: str, body: bytes) -> bytes:
        if method == "PUT":
            self.files[path] = body
            return answer(200, b"{}")
        if path in self.files:
            return answer(200, self.files[path])
        refusal = {"error_code": "INTERNAL_ERROR", "message": "Failed:\n[Errno 2] No such file or directory"}
        return answer(500, json.dumps(refusal).encode())

    def _get_experiments_get_by_name(self, given: Document) -> Document:
        return {"experiment": self.experiments[given["experiment_name"]]}

    def _post_experiments_create(self, given: Document) -> Document:
        place = {"experiment_id": "1", "artifact_location": "mlflow-artifacts:/1"}
        self.experiments[given["name"]] = place
        return {"experiment_id": "1"}

    def _post_runs_create(self, given: Document) -> Document:
        run = f"{len(self.runs) + 1:032x}"
        info = {"run_id": run, "artifact_uri": f"mlflow-artifacts:/1/{run}/artifacts", "status": "RUNNING"}
        self.runs[run] = {"info": info, "data": {"tags": given["tags"], "params": [], "metrics": []}}
        return {"run": self.runs[run]}

    def _get_runs_get(self, given: Document) -> Document:
        return {"run": self.runs[given["run_id"]]}

    def _post_runs_log_batch(self, given: Document) -> Document:
        for kind in ("params", "metrics"):
            self.runs[given["run_id"]]["data"][kind] += given.get(kind, [])
        return {}

    def _post_runs_update(self, given: Document) -> Document:
        self.runs[given["run_id"]]["info"]["status"] = given["status"]
        return {}

    def _post_registered_models_create(self, given: Document) -> Document:
        self.models.setdefault(given["name"], {"name": given["name"], "tags": given["tags"], "aliases": []})
        self.versions.setdefault(given["name"], [])
        return {"registered_model": self.models[given["name"]]}

    def _get_registered_models_search(self, given: Document) -> Document:
        wanted = given.get("filter", "").removeprefix("name = ").strip("'")
        return {"registered_models": [model for name, model in self.models.items() if wanted in {"", name}]}

    def _post_registered_models_set_tag(self, given: Document) -> Document:
        tags = self.models[given["name"]]["tags"]
        tags[:] = [tag for tag in tags if tag["key"] != given["key"]]
        tags.append({"key": given["key"], "value": given["value"]})
        return {}

    def _post_registered_models_alias(self, given: Document) -> Document:
        aliases = self.models[given["name"]]["aliases"]
        aliases[:] = [entry for entry in aliases if entry["alias"] != given["alias"]]
        aliases.append({"alias": given["alias"], "version": given["version"]})
        return {}

    def _post_model_versions_create(self, given: Document) -> Document:
        versions = self.versions[given["name"]]
        number = str(len(versions) + 1)
        versions.append(
            {**given, "version": number, "creation_timestamp": 1_700_000_000_000, "status": "READY"}
        )
        return {"model_version": versions[-1]}

    def _version(self, given: Document) -> Document:
        return {found["version"]: found for found in self.versions[given["name"]]}[given["version"]]

    def _get_model_versions_get(self, given: Document) -> Document:
        return {"model_version": self._version(given)}

    def _get_model_versions_get_download_uri(self, given: Document) -> Document:
        return {"artifact_uri": self._version(given)["source"]}

    def _get_model_versions_search(self, given: Document) -> Document:
        name = given["filter"].split("'")[1]
        found = self.versions.get(name, [])[:: -1 if "DESC" in given["order_by"] else 1]
        start = json.loads(base64.b64decode(given.get("page_token", "eyJvZmZzZXQiOjB9")))["offset"]
        return {"model_versions": found[start : start + int(given["max_results"])]}

    def _post_model_versions_set_tag(self, given: Document) -> Document:
        tags = self._version(given)["tags"]
        tags[:] = [tag for tag in tags if tag["key"] != given["key"]]
        tags.append({"key": given["key"], "value": given["value"]})
        return {}


def test_a_server_of_mlflow_2_keeps_the_package_with_its_run(project: Project) -> None:
    old = OldServer()
    with peer(old.talk) as server:
        settings = {"registry.uri": server.uri, "cache.dir": str(project.folder / "cache")}
        catalog = Catalog(load_settings(start=project.folder, environment={}, overrides=settings))

        version, _ = catalog.register("digits", project.variant("old"), Lineage(params={"lr": "1"}))
        second, _ = catalog.register("digits", project.package(2), Lineage())
        assert version.source == f"mlflow-artifacts:/1/{version.run_id}/artifacts/model"
        assert f"1/{version.run_id}/artifacts/model/manifest.json" in old.files
        assert old.runs[version.run_id]["info"]["status"] == "FINISHED"
        for expect, to in ((None, 1), (1, 2)):
            catalog.move("digits", "production", to, expect=expect, kind="promote", actor="ada")
        catalog.move("digits", "production", 1, expect=2, kind="rollback", actor="ada")

        assert catalog.resolve("digits@production").number == 1
        assert [event.kind for event in catalog.history("digits")] == ["rollback", "promote", "promote"]
        assert catalog.differences("digits") == ()
        assert catalog.fetch(version).digest == version.digest
        assert {model.name: model.versions for model in catalog.models()} == {"digits": 2}
        catalog.record(version, evidence_of(version))
        assert catalog.evidence(version)["evaluation"].verdict == "pass"
        run_id = catalog.evidence(version)["evaluation"].run_id
        assert json.loads(old.files[f"1/{run_id}/artifacts/evidence.json"])["verdict"] == "pass"

        for path in [path for path in old.files if second.run_id in path]:
            del old.files[path]
        with pytest.raises(IntegrityError, match="missing in the store"):
            catalog.fetch(second)


@pytest.mark.parametrize("made", [True, False])
def test_a_version_whose_answer_was_lost_is_found_and_keeps_its_bytes(project: Project, made: bool) -> None:
    old, lost = OldServer(), []

    def talk(connection: Any, head: str, body: bytes) -> bool:
        if "/model-versions/create" in head and not lost:
            lost.append(head)
            if made:
                old.answer(head, body)
            return False
        connection.sendall(old.answer(head, body))
        return True

    with peer(talk) as server:
        settings = {"registry.uri": server.uri, "cache.dir": str(project.folder / "cache")}
        catalog = Catalog(load_settings(start=project.folder, environment={}, overrides=settings))
        if not made:
            with pytest.raises(UnavailableError):
                catalog.register("digits", project.package(1), Lineage())
        version, created = catalog.register("digits", project.package(1), Lineage())

        assert (version.number, created) == (1, True)
        assert [found.number for found in catalog.versions("digits")] == [1]
        assert catalog.fetch(version).digest == version.digest


# Answers of no registry


def store_at(uri: str) -> RestStore:
    return RestStore(parse_address(uri, Path("/")), timeout=5, artifacts="/nowhere")


def telling(*documents: Document) -> Talk:
    """Give each request the next of some documents, and the last for ever."""
    left = list(documents)

    def talk(connection: Any, _head: str, _body: bytes) -> None:
        connection.sendall(answer(200, json.dumps(left.pop(0) if len(left) > 1 else left[0]).encode()))

    return talk


def version(number: object, **more: object) -> Document:
    return {"name": "digits", "version": number, "status": "READY", "creation_timestamp": 1, **more}


@pytest.mark.parametrize(
    "strange",
    [
        version("0"),
        version(-1),
        version(1.5),
        version(True),
        version("9" * 40),
        version(None),
        version("1", creation_timestamp="yesterday"),
        version("1", source=["s3://x"]),
        version("1", tags={"a": "b"}),
        version("1", tags=[{"key": "a", "value": 1}]),
        version("1", status=3),
    ],
)
def test_a_version_that_no_registry_has_is_refused(strange: Document) -> None:
    documents = {"model_versions": [strange], "model_version": strange}
    with peer(telling(documents)) as server:
        for ask in (
            lambda: store_at(server.uri).rows("digits"),
            lambda: store_at(server.uri).rows("digits", numbers=(1,)),
        ):
            with pytest.raises(IntegrityError, match="that no registry has"):
                ask()


def test_only_what_was_asked_for_is_taken() -> None:
    found = [
        version("3", name="Digits"),
        version("2", tags=[{"key": "k", "value": "\ud800"}]),
        version("1", status="PENDING_REGISTRATION"),
    ]
    with peer(telling({"model_versions": found, "model_version": version("7")})) as server:
        store = store_at(server.uri)

        (row,) = store.rows("digits")
        assert (row.number, row.tags) == (2, {"k": "?"})
        assert store.rows("digits", numbers=(2,)) == ()


def test_the_newest_version_that_is_ready_is_found_behind_some_that_are_not() -> None:
    pending = {"model_versions": [version("3", status="PENDING_REGISTRATION")], "next_page_token": "a"}
    with peer(telling(pending, {"model_versions": [version("2")], "next_page_token": "b"})) as server:
        assert [row.number for row in store_at(server.uri).rows("digits", limit=1)] == [2]
        assert len(server.requests) == 2


def test_a_list_without_an_end_is_refused() -> None:
    page = {"model_versions": [], "registered_models": [], "next_page_token": "again"}
    with peer(telling(page)) as server:
        for ask in (store_at(server.uri).names, lambda: store_at(server.uri).rows("digits")):
            with pytest.raises(IntegrityError, match="has no end"):
                ask()


def test_where_pages_cannot_be_skipped_they_are_all_read() -> None:
    def talk(connection: Any, head: str, _body: bytes) -> None:
        newest = "max_results=1&" not in head and not head.split()[1].endswith("max_results=1")
        found = [version("9"), version("4"), version("2")] if newest else [version("9")]
        if "ASC" in head:
            found = [version("2")]  # whatever the page token says
        connection.sendall(answer(200, json.dumps({"model_versions": found}).encode()))

    with peer(talk) as server:
        assert store_at(server.uri).count("digits") == 3


@pytest.mark.parametrize("count", [1, 2, 3, 7, 500, 999, 1000])
def test_the_last_place_is_found_in_few_steps(count: int) -> None:
    asked: list[int] = []

    def reaches(place: int) -> bool:
        asked.append(place)
        return place < count

    assert _last(reaches, 999) == count - 1
    assert len(asked) <= 20


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.aliases("digits"),
        lambda store: store.create_version("digits", "models:/a/1", tags={}),
        lambda store: store.run("1" * 32),
        lambda store: store.prepare(),
        lambda store: store.logged_model("m-1"),
    ],
)
def test_other_answers_of_no_registry_are_refused(ask: Callable[[RestStore], object]) -> None:
    strange = {
        "registered_models": [{"name": "digits", "aliases": [{"alias": "production", "version": "one"}]}],
        "model_version": {"version": "0"},
        "run": {"info": {}, "data": {"metrics": [{"key": "f1", "value": "much"}]}},
        "experiment": {"experiment_id": 1},
        "model": [],
    }
    with peer(telling(strange)) as server, pytest.raises(IntegrityError):
        ask(store_at(server.uri))


def test_numbers_of_a_run_may_be_no_numbers() -> None:
    metrics = [{"key": "loss", "value": "NaN"}, {"key": "rows", "value": 5}]
    with peer(telling({"run": {"info": {}, "data": {"metrics": metrics}}})) as server:
        run = store_at(server.uri).run("1" * 32)

    assert run is not None
    assert run.metrics["loss"] != run.metrics["loss"]
    assert run.metrics["rows"] == 5.0


def test_no_place_outside_of_a_model_is_deleted(tmp_path: Path) -> None:
    model = tmp_path / "1" / "models" / "m-1" / "artifacts"
    model.mkdir(parents=True)
    server = Api(login("http://127.0.0.1:1", {}), shown="", timeout=1)
    address = parse_address("http://127.0.0.1:1", tmp_path)
    files = Files(server, address, timeout=1, artifacts=str(tmp_path))

    for location in (f"{model}/../..", f"file://{model}/../../../../x", str(tmp_path.parent)):
        with pytest.raises(UnavailableError):
            files.remove(location)
    assert model.is_dir()

    files.remove(str(model))
    assert not model.exists()
