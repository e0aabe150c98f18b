"""The one door to MLflow: everything that imports it, calls it, or knows its errors is in here.

Writing is MLflow's own API throughout, so that every backend it has can hold a registry, and its web page
shows what was written.
"""

import hashlib
import json
import re
import shutil
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import ConflictError, IntegrityError, MlxError, NotFoundError, UnavailableError
from mlx_platform.core.text import printable
from mlx_platform.registry.address import Address
from mlx_platform.registry.door import prepare_environment, probe, quiet
from mlx_platform.registry.first_use import first_use
from mlx_platform.registry.reader import number_of
from mlx_platform.registry.refusals import again, append_version, translate
from mlx_platform.registry.runs import CONTEXT_TAG, DATA_CONTEXT, DATA_SOURCE, MetricData
from mlx_platform.registry.store_read import PAGE, StoreReader

EXPERIMENT = "mlx"
_MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
_ABSENT = re.compile(r"\(404\)|NoSuchKey|No such file|not found", re.IGNORECASE)
_METRIC_FORBIDDEN = re.compile(r"[^A-Za-z0-9_./ -]")


class Store(StoreReader):
    """A registry in a database, behind MLflow's client; of a server only the bytes that it does not hand out.

    Args:
        address: where it is.
        timeout: seconds to wait for one that is locked or silent.
        artifacts: URI under which the registry keeps its bytes.
    """

    def __init__(self, address: Address, *, timeout: float, artifacts: str) -> None:
        self._address = address
        self._timeout = timeout
        self._artifacts = artifacts
        self._connected: Any = None

    # Bytes of other stores

    def download(self, location: str, target: Path, cap: int) -> None:
        """Fetch one file of at most `cap` bytes from a store that is not this machine's disk into a folder.

        Raises:
            NotFoundError: there is no such file.
        """
        folder, _, name = location.rpartition("/")
        with self._bytes(folder, "download a package") as store:
            announced = [entry.file_size for entry in store.list_artifacts() if entry.path == name]
            if any(size and size > cap for size in announced):
                raise _too_large(name, cap)
            store.download_artifacts(name, str(target))
        # Not every store says how large its files are, and none is bound by what it says.
        if (target / name).stat().st_size > cap:
            raise _too_large(name, cap)

    def upload(self, location: str, folder: Path) -> None:
        """Copy every file of a folder into a store that is not this machine's disk."""
        with self._bytes(location, "upload the package") as store:
            store.log_artifacts(str(folder))

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
        except BaseException:
            self._discard(run, model)
            raise
        number = self._append(name, model, run, tags=tags, description=description)
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

        def write() -> int:
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

        return again(write)

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

    def delete_model_tags(self, name: str, keys: Collection[str]) -> None:
        """Take tags of a registered model away; each is a write of its own."""
        client = self._client()
        with self._door(f"delete a tag of {name}"):
            for key in keys:
                client.delete_registered_model_tag(name, key)

    def log_finding(
        self,
        title: str,
        *,
        model: str,
        metrics: Mapping[str, float],
        data: MetricData | None,
        document: str,
        tags: Mapping[str, str],
    ) -> str:
        """Keep a document as `evidence.json` of a run of its own, its numbers on the run and on the model.

        `data` says what rows the numbers are about: on each of them, and among the inputs of the run.
        """
        client, experiment = self._client(), self._experiment()
        with self._door("start a run"):
            run: str = client.create_run(experiment, run_name=title, tags=dict(tags)).info.run_id
        self._log_inputs(run, model, data)
        self._log(run, model, params={}, metrics=metrics, data=data)
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

            with self._door("open the registry"), first_use(self._address):
                client = MlflowClient(tracking_uri=self._address.uri, registry_uri=self._address.uri)
                if self._address.kind != "server":
                    # Opening both of MLflow's stores now migrates a new database while nobody else does.
                    client.search_experiments(max_results=1)
                    client.search_registered_models(max_results=1)
            self._connected = client
        return self._connected

    def _experiment(self) -> str:
        """The experiment that holds runs and bytes, with its bytes where the settings say."""
        client = self._client()
        # A name of its own for where new bytes go when the registry or its folder was moved since the first.
        other = f"{EXPERIMENT}-{hashlib.sha256(self._artifacts.encode()).hexdigest()[:8]}"
        for name in (EXPERIMENT, other):
            with self._door("open the experiment"):
                found = client.get_experiment_by_name(name)
            if found is None:
                return self._create_experiment(name)
            if found.artifact_location.rstrip("/") == self._artifacts:
                break
        return str(found.experiment_id)

    def _create_experiment(self, name: str) -> str:
        client = self._client()
        try:
            with self._door("create the experiment"):
                return str(client.create_experiment(name, artifact_location=self._artifacts))
        except ConflictError:
            with self._door("open the experiment"):
                return str(client.get_experiment_by_name(name).experiment_id)

    def _log_inputs(self, run: str, model: str, data: MetricData | None) -> None:
        """Say on a run's page which rows it is about, and which model."""
        client = self._client()
        from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput

        datasets = []
        if data:
            dataset = Dataset(data.name, data.digest, DATA_SOURCE, json.dumps({"uri": data.name}))
            datasets.append(DatasetInput(dataset, [InputTag(CONTEXT_TAG, DATA_CONTEXT)]))
        models = [LoggedModelInput(model)] if model else None
        with self._door("write what the evidence is about"):
            client.log_inputs(run, datasets=datasets, models=models)

    def _log(
        self,
        run: str,
        model: str,
        *,
        params: Mapping[str, str],
        metrics: Mapping[str, float],
        data: MetricData | None = None,
    ) -> None:
        client = self._client()
        from mlflow.entities import Metric, Param

        now = int(time.time() * 1000)
        about = {"dataset_name": data.name, "dataset_digest": data.digest} if data else {}
        numbers = [
            Metric(
                _METRIC_FORBIDDEN.sub("_", key), value, now, 0, model_id=model or None, run_id=run, **about
            )
            for key, value in metrics.items()
        ]
        texts = [Param(key, value) for key, value in params.items()]
        with self._door("log parameters and metrics"):
            for start in range(0, len(texts), 100):
                client.log_batch(run, params=texts[start : start + 100])
            for start in range(0, len(numbers), PAGE):
                client.log_batch(run, metrics=numbers[start : start + PAGE])

    def discard_model(self, model: str) -> None:
        """Delete an uploaded model with its bytes, and the run that uploaded it if it never came to an end.

        Raises:
            NotFoundError: there is no such model.
        """
        client = self._client()
        with self._door(f"delete {model}"):
            run = client.get_run(client.get_logged_model(model).source_run_id).info
            self._delete_model(model)
            if run.status == "RUNNING":
                client.set_terminated(run.run_id, "FAILED")
                client.delete_run(run.run_id)

    def erase(self, model: str) -> None:
        """Delete a logged model with its bytes, and leave its run; one that is gone already is as good."""
        client = self._client()
        with suppress(NotFoundError):
            _, location = self.logged_model(model)
            # The bytes first: without the model nobody would know where they are.
            if "://" not in self._artifacts and _MODEL_ID.fullmatch(model):
                shutil.rmtree(Path(self._artifacts) / "models" / model, ignore_errors=True)
            else:
                self.remove(location)
            with self._door(f"delete {model}"):
                client.delete_logged_model(model)

    def remove(self, location: str) -> None:
        """Delete the files below a URI."""
        with suppress(NotFoundError), self._bytes(location, "delete a package") as store:
            store.delete_artifacts()

    def _append(self, name: str, model: str, run: str, *, tags: Mapping[str, str], description: str) -> int:
        source = f"models:/{model}"
        try:
            return append_version(
                lambda: self.create_version(
                    name, source, run=run, tags=tags, description=description, model=model
                ),
                find=lambda: number_of(self, name, source),
                discard=lambda: self._discard(run, model),
            )
        except MlxError:
            raise
        except BaseException:
            # Ctrl-C may come after the version was made, and then its bytes are in use.
            if number_of(self, name, source) is None:
                self._discard(run, model)
            raise

    def _discard(self, run: str, model: str) -> None:
        client = self._client()
        # What went wrong before is what the user must hear of.
        with suppress(MlxError), self._door("discard what was not finished"):
            if model:
                self._delete_model(model)
            client.set_terminated(run, "FAILED")
            client.delete_run(run)

    def _delete_model(self, model: str) -> None:
        self._client().delete_logged_model(model)
        if "://" not in self._artifacts and _MODEL_ID.fullmatch(model):
            shutil.rmtree(Path(self._artifacts) / "models" / model, ignore_errors=True)

    @contextmanager
    def _bytes(self, location: str, doing: str) -> Iterator[Any]:
        """MLflow's way into an artifact store; the registry itself is not asked."""
        prepare_environment(self._timeout)
        try:
            with self._door(doing):
                from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

                yield get_artifact_repository(location, tracking_uri=self._address.uri)
        except UnavailableError as error:
            # The errors of the stores' own libraries, which nothing here imports, say it in their text alone.
            if _ABSENT.search(str(error.__cause__)):
                raise NotFoundError(error.message) from error
            raise

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


def _too_large(name: str, cap: int) -> IntegrityError:
    return IntegrityError(f"{printable(name, 200)} in the store has more than {cap:,} bytes.")


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
