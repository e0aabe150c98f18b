"""The one door to MLflow: everything that imports it, calls it, or knows its errors is in here.

Reading has the same methods as `SqliteReader`; writing is MLflow's own API throughout, so that every backend
it has can hold a registry, and its web page shows what was written.
"""

import hashlib
import json
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlx_platform.core.errors import ConflictError, IntegrityError, MlxError, NotFoundError
from mlx_platform.core.files import file_lock
from mlx_platform.registry.address import Address
from mlx_platform.registry.door import again, prepare_environment, probe, quiet, translate
from mlx_platform.registry.version import Row

EXPERIMENT = "mlx"
_PAGE = 1000
_FIRST_USE_SECONDS = 300.0  # a migration on a slow disk; the lock dies with its holder
_MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
_METRIC_FORBIDDEN = re.compile(r"[^A-Za-z0-9_./ -]")


class Store:
    """A registry behind MLflow's client.

    Args:
        address: where it is.
        timeout: seconds to wait for one that is locked or silent.
        artifacts: URI under which a registry without a server keeps its bytes.
    """

    def __init__(self, address: Address, *, timeout: float, artifacts: str) -> None:
        self._address = address
        self._timeout = timeout
        self._artifacts = artifacts
        self._connected: Any = None

    # Reading

    def names(self) -> tuple[str, ...]:
        """Every registered model by name, also those of the journal; prompts are left out."""
        client = self._client()
        found = self._pages(
            lambda token: client.search_registered_models(max_results=_PAGE, page_token=token),
            "list the models",
        )
        return tuple(sorted(str(model.name) for model in found))

    def count(self, name: str) -> int:
        return len(self.rows(name))

    def rows(
        self,
        name: str,
        *,
        numbers: Sequence[int] | None = None,
        limit: int | None = None,
        keys: Sequence[str] | None = None,  # noqa: ARG002 - MLflow sends every tag, wanted or not
    ) -> tuple[Row, ...]:
        """A model's versions with their tags, newest first: all, the given ones, or the last `limit`."""
        client = self._client()
        if numbers is not None:
            found = [self._version(name, number) for number in sorted(set(numbers), reverse=True)]
            return tuple(_row(version) for version in found if version is not None)
        size = _PAGE if limit is None else min(limit, _PAGE)
        versions = self._pages(
            lambda token: client.search_model_versions(
                f"name = '{name}'", max_results=size, order_by=["version_number DESC"], page_token=token
            ),
            f"list the versions of {name}",
            limit=limit,
        )
        return tuple(_row(version) for version in versions if version.status == "READY")

    def tagged(self, name: str, key: str, value: str) -> tuple[int, ...]:
        """The versions of a model that have a tag of exactly this value, newest first."""
        client = self._client()
        search = f"name = '{name}'"
        if not {"'", "`"} & {*key, *value}:
            search += f" AND tags.`{key}` = '{value}'"
        found = self._pages(
            lambda token: client.search_model_versions(
                search, max_results=_PAGE, order_by=["version_number DESC"], page_token=token
            ),
            f"search the versions of {name}",
        )
        return tuple(
            int(version.version)
            for version in found
            if version.status == "READY" and version.tags.get(key) == value
        )

    def aliases(self, name: str) -> dict[str, int]:
        """Who holds which alias, as MLflow has it."""
        client = self._client()
        with self._door(f"read the aliases of {name}"):
            found = client.search_registered_models(f"name = '{name}'", max_results=1)
            return {str(alias): int(number) for model in found for alias, number in model.aliases.items()}

    def model_tags(self, name: str) -> dict[str, str]:
        """The tags of a registered model; none when there is no such model."""
        client = self._client()
        with self._door(f"read the tags of {name}"):
            found = client.search_registered_models(f"name = '{name}'", max_results=1)
            return {str(key): str(value) for model in found for key, value in model.tags.items()}

    def location(self, name: str, number: int) -> str:
        """Where the bytes of a version are said to be; untrusted."""
        client = self._client()
        with self._door(f"find the bytes of {name}/{number}"):
            return str(client.get_model_version_download_uri(name, str(number)))

    def download(self, location: str, target: Path) -> None:
        """Fetch one file from a store that is not this machine's disk into an existing folder."""
        self._client()
        import mlflow.artifacts

        with self._door("download a package"):
            mlflow.artifacts.download_artifacts(
                artifact_uri=location, dst_path=str(target), tracking_uri=self._address.uri
            )

    # Writing

    def prepare(self) -> None:
        """Bring the registry to its first use: MLflow's tables, and the experiment that runs go to."""
        self._experiment()

    def publish(
        self,
        name: str,
        folder: Path,
        *,
        tags: Mapping[str, str],
        params: Mapping[str, str],
        metrics: Mapping[str, float],
        run_tags: Mapping[str, str],
        description: str,
    ) -> int:
        """Upload a package and make it a version.

        The version appears last and with all its tags, so whoever is killed before leaves nothing visible,
        and whoever is killed after leaves it whole.

        Returns:
            The version's number.
        """
        client, experiment = self._client(), self._experiment()
        from mlflow.entities import LoggedModelOutput

        with self._door("start a run"):
            run = client.create_run(experiment, run_name=f"register {name}", tags=dict(run_tags)).info.run_id
        model = ""
        try:
            with self._door("upload the package"):
                # MLflow's names for logged models know no dot.
                model = client.create_logged_model(
                    experiment,
                    name=name.replace(".", "_"),
                    source_run_id=run,
                    params=dict(params),
                    tags=dict(tags),
                ).model_id
                client.log_model_artifacts(model, str(folder))
                client.finalize_logged_model(model, "READY")
            self._log(run, model, params=params, metrics=metrics)
            self.ensure_model(name, tags={}, description="")
            number = self.create_version(
                name, f"models:/{model}", run=run, tags=tags, description=description, model=model
            )
        except BaseException:
            self._discard(run, model)
            raise
        with self._door(f"finish the run of {name}/{number}"):
            back_link = json.dumps([{"name": name, "version": number}])
            client.set_logged_model_tags(model, {"mlflow.modelVersions": back_link})
            client.log_outputs(run, [LoggedModelOutput(model, step=0)])
            client.set_terminated(run, "FINISHED")
        return number

    def ensure_model(self, name: str, *, tags: Mapping[str, str], description: str) -> None:
        """Create a registered model unless it is there."""
        client = self._client()
        with suppress(ConflictError), self._door(f"create the model {name}"):
            client.create_registered_model(name, tags=dict(tags), description=description or None)

    def create_version(
        self,
        name: str,
        source: str,
        *,
        tags: Mapping[str, str],
        description: str = "",
        run: str | None = None,
        model: str | None = None,
    ) -> int:
        """Append a version; the registry gives the number, each once and in order."""
        client = self._client()
        with self._door(f"create a version of {name}"), _tracking_uri(self._address.uri):
            version = client.create_model_version(
                name,
                source,
                run_id=run,
                tags=dict(tags),
                description=description or None,
                await_creation_for=int(max(1, self._timeout)),
                model_id=model,
            )
            return int(version.version)

    def delete_version(self, name: str, number: int) -> None:
        client = self._client()
        with self._door(f"delete {name}/{number}"):
            client.delete_model_version(name, str(number))

    def set_alias(self, name: str, alias: str, number: int | None) -> None:
        """Point an alias to a version, or take it away; whoever writes last wins."""
        client = self._client()

        def write() -> None:
            with self._door(f"write the alias {alias} of {name}"):
                if number is None:
                    client.delete_registered_model_alias(name, alias)
                else:
                    client.set_registered_model_alias(name, alias, str(number))

        again(write)

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None:
        client = self._client()

        def write() -> None:
            with self._door(f"write a tag of {name}/{number}"):
                for key, value in tags.items():
                    client.set_model_version_tag(name, str(number), key, value)

        again(write)

    def set_model_tags(self, name: str, tags: Mapping[str, str]) -> None:
        """Write tags of a registered model; each is a write of its own."""
        client = self._client()

        def write() -> None:
            with self._door(f"write a tag of {name}"):
                for key, value in tags.items():
                    client.set_registered_model_tag(name, key, value)

        again(write)

    def log_finding(
        self, title: str, *, model: str, metrics: Mapping[str, float], document: str, tags: Mapping[str, str]
    ) -> str:
        """Keep a document as `evidence.json` of a run of its own, its numbers on the run and on the model."""
        client, experiment = self._client(), self._experiment()
        with self._door("start a run"):
            run: str = client.create_run(experiment, run_name=title, tags=dict(tags)).info.run_id
        self._log(run, model, params={}, metrics=metrics)
        with self._door("write the evidence"):
            client.log_text(run, document, "evidence.json")
            client.set_terminated(run, "FINISHED")
        return run

    # Within

    def _client(self) -> Any:
        if self._connected is None:
            probe(self._address, self._timeout)
            prepare_environment(self._timeout)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from mlflow import MlflowClient

            with self._first_use(), self._door("open the registry"):
                client = MlflowClient(tracking_uri=self._address.uri, registry_uri=self._address.uri)
                if self._address.database:
                    # Opening both of MLflow's stores now migrates a new file while nobody else does.
                    client.search_experiments(max_results=1)
                    client.search_registered_models(max_results=1)
            self._connected = client
        return self._connected

    @contextmanager
    def _first_use(self) -> Iterator[None]:
        database = self._address.database
        if database is None:
            yield
            return
        lock = database.with_name(f".{database.name}.init.lock")
        with file_lock(lock, timeout=_FIRST_USE_SECONDS, purpose="creating the registry"):
            yield

    def _experiment(self) -> str:
        """The experiment that holds runs and bytes, with its bytes where the settings or the server say."""
        client = self._client()
        server = self._address.kind == "server"
        for name in (EXPERIMENT, self._other_experiment()):
            with self._door("open the experiment"):
                found = client.get_experiment_by_name(name)
            if found is None:
                return self._create_experiment(name, None if server else self._artifacts)
            place = found.artifact_location.rstrip("/")
            # A server may have been put over a file whose bytes it does not hand out.
            if place == self._artifacts or (server and urlsplit(place).scheme not in {"", "file"}):
                break
        return str(found.experiment_id)

    def _other_experiment(self) -> str:
        """Where new bytes go when the registry was moved, or the settings were, since the first ones."""
        if self._address.kind == "server":
            return f"{EXPERIMENT}-served"
        return f"{EXPERIMENT}-{hashlib.sha256(self._artifacts.encode()).hexdigest()[:8]}"

    def _create_experiment(self, name: str, location: str | None) -> str:
        client = self._client()
        try:
            with self._door("create the experiment"):
                return str(client.create_experiment(name, artifact_location=location))
        except ConflictError:
            with self._door("open the experiment"):
                return str(client.get_experiment_by_name(name).experiment_id)

    def _log(self, run: str, model: str, *, params: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        client = self._client()
        from mlflow.entities import Metric, Param

        now = int(time.time() * 1000)
        numbers = [
            Metric(_METRIC_FORBIDDEN.sub("_", key), value, now, 0, model_id=model or None, run_id=run)
            for key, value in metrics.items()
        ]
        texts = [Param(key, value) for key, value in params.items()]
        with self._door("log parameters and metrics"):
            for start in range(0, len(texts), 100):
                client.log_batch(run, params=texts[start : start + 100])
            for start in range(0, len(numbers), _PAGE):
                client.log_batch(run, metrics=numbers[start : start + _PAGE])

    def _discard(self, run: str, model: str) -> None:
        client = self._client()
        # What went wrong before is what the user must hear of.
        with suppress(MlxError), self._door("discard what was not finished"):
            if model:
                client.delete_logged_model(model)
                local = self._address.kind != "server" and "://" not in self._artifacts
                if local and _MODEL_ID.fullmatch(model):
                    shutil.rmtree(Path(self._artifacts) / "models" / model, ignore_errors=True)
            client.set_terminated(run, "FAILED")
            client.delete_run(run)

    def _version(self, name: str, number: int) -> Any:
        client = self._client()
        try:
            with self._door(f"read {name}/{number}"):
                version = client.get_model_version(name, str(number))
        except NotFoundError:
            return None
        return version if version.status == "READY" else None

    def _pages(
        self, search: Callable[[str | None], Any], doing: str, *, limit: int | None = None
    ) -> list[Any]:
        found: list[Any] = []
        token: str | None = None
        while True:
            with self._door(doing):
                page = search(token)
            found += list(page)
            token = page.token or None
            if token is None or (limit is not None and len(found) >= limit):
                return found[:limit]

    @contextmanager
    def _door(self, doing: str) -> Iterator[None]:
        """Let MLflow work in silence, and turn whatever comes out of it into an error of ours."""
        try:
            with quiet():
                yield
        except MlxError:
            raise
        except Exception as error:
            # MLflow lets the errors of requests, protobuf, SQLAlchemy, json and the disk through.
            from mlflow.exceptions import MlflowException, RestException

            code = error.error_code if isinstance(error, MlflowException) else ""
            # A server's refusal says so in MLflow's own form; anything else that comes back is no answer.
            answered = self._address.kind != "server" or isinstance(error, RestException)
            raise translate(error, code, answered=answered, doing=doing, shown=self._address.shown) from error


def _row(version: Any) -> Row:
    try:
        return Row(
            name=str(version.name),
            number=int(version.version),
            created_ms=int(version.creation_timestamp or 0),
            source=str(version.source or ""),
            run_id=str(version.run_id or ""),
            description=str(version.description or ""),
            tags={str(key): str(value) for key, value in version.tags.items()},
            stage=str(version.current_stage or ""),
        )
    except (TypeError, ValueError) as error:
        raise IntegrityError("The registry answers with a version that has no number.") from error


@contextmanager
def _tracking_uri(uri: str) -> Iterator[None]:
    # Creating a version from a logged model looks that model up under MLflow's process-wide URI.
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)
