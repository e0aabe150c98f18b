"""Experiments, runs and logged models on a server: where a version comes from, as MLflow's pages show it."""

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mlx_platform.core.errors import ConflictError, IntegrityError, MlxError, NotFoundError
from mlx_platform.registry.rest_calls import Api, NoEndpointError
from mlx_platform.registry.rest_models import listed_pairs
from mlx_platform.registry.rest_parse import decimal, needed, pairs, part, table, tables, text
from mlx_platform.registry.runs import CONTEXT_TAG, DATA_CONTEXT, DATA_SOURCE, MetricData, RunRecord
from mlx_platform.registry.version import model_id_of

EXPERIMENT = "mlx"
METRIC_FORBIDDEN = re.compile(r"[^A-Za-z0-9_./ -]")
_BATCH = 100  # parameters in one call
_METRICS = 1000  # metrics in one call


@dataclass(frozen=True, slots=True)
class Place:
    """A run or a logged model: its `id`, and the URI below which its files belong."""

    id: str
    uri: str


class Runs:
    """Writes of the tracking side."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def experiment(self, name: str) -> Place:
        """The experiment of a name, created where the server says that its files belong."""
        found = self._experiment(name)
        if found is None:
            with suppress(ConflictError):
                self._api.write("experiments/create", {"name": name}, "create the experiment", repeat=True)
            found = self._experiment(name)
        if found is None:
            raise NotFoundError(f"The experiment {name} was created, and is not there.")
        return found

    def run(self, run_id: str) -> RunRecord | None:
        """A run with what was logged to it; None when there is none of this id."""
        try:
            run = table(self._api.read("runs/get", {"run_id": run_id}, f"read the run {run_id}"), "run")
        except NotFoundError:
            return None
        data, inputs, outputs = (part(run, key) for key in ("data", "inputs", "outputs"))
        return RunRecord(
            id=run_id,
            artifact_uri=text(table(run, "info"), "artifact_uri"),
            params=pairs(data, "params"),
            metrics={needed(item, "key"): decimal(item, "value") for item in tables(data, "metrics")},
            tags=pairs(data, "tags"),
            datasets=tuple(
                (
                    text(table(entry, "dataset"), "name"),
                    text(table(entry, "dataset"), "digest"),
                    pairs(entry, "tags").get(CONTEXT_TAG, ""),
                )
                for entry in tables(inputs, "dataset_inputs")
            ),
            models=tuple(needed(item, "model_id") for item in tables(outputs, "model_outputs")),
        )

    def logged_model(self, model_id: str) -> tuple[str, str]:
        """The name of one of MLflow's models and where its bytes are said to be; untrusted.

        Raises:
            NotFoundError: there is no such model.
        """
        info = self._model(model_id)
        return text(info, "name"), text(info, "artifact_uri")

    def maker(self, model_id: str) -> str:
        """The run that uploaded a model and has not ended, or nothing.

        Raises:
            NotFoundError: there is no such model.
        """
        run = text(self._model(model_id), "source_run_id")
        answer = self._api.read("runs/get", {"run_id": run}, f"read the run {run}") if run else {}
        running = text(part(part(answer, "run"), "info"), "status") == "RUNNING"
        return run if running else ""

    def start(self, experiment: str, title: str, tags: Mapping[str, str]) -> Place:
        """Start a run."""
        body = {
            "experiment_id": experiment,
            "run_name": title,
            "start_time": _now(),
            "tags": listed_pairs({"mlflow.runName": title, **tags}),
        }
        info = table(table(self._api.write("runs/create", body, "start a run"), "run"), "info")
        return Place(needed(info, "run_id"), needed(info, "artifact_uri").rstrip("/"))

    def log_inputs(self, run: str, *, model: str, data: MetricData | None) -> None:
        """Say on a run's page which rows it is about, and which model, where the server knows models."""
        doing = "write what the evidence is about"
        if data:
            source = json.dumps({"uri": data.name})
            dataset = {
                "name": data.name, "digest": data.digest, "source_type": DATA_SOURCE, "source": source,
            }  # fmt: skip
            tags = listed_pairs({CONTEXT_TAG: DATA_CONTEXT})
            body = {"run_id": run, "datasets": [{"dataset": dataset, "tags": tags}]}
            with suppress(NoEndpointError):  # MLflow knows inputs since 2.4
                self._api.write("runs/log-inputs", body, doing, repeat=True)
        if model:
            body = {"run_id": run, "models": [{"model_id": model}]}
            self._api.write("runs/log-inputs", body, doing, repeat=True)

    def log(
        self,
        run: str,
        *,
        params: Mapping[str, str],
        metrics: Mapping[str, float],
        model: str = "",
        data: MetricData | None = None,
    ) -> None:
        """Log parameters and metrics, the metrics also as the model's, and with the rows they are about."""
        now, doing = _now(), "log parameters and metrics"
        texts = listed_pairs(params)
        about = {"model_id": model} if model else {}
        if data:
            about |= {"dataset_name": data.name, "dataset_digest": data.digest}
        numbers = [
            {"key": METRIC_FORBIDDEN.sub("_", key), "value": value, "timestamp": now, "step": 0, **about}
            for key, value in metrics.items()
        ]
        for start in range(0, len(texts), _BATCH):
            body = {"run_id": run, "params": texts[start : start + _BATCH]}
            self._api.write("runs/log-batch", body, doing, repeat=True)
        for start in range(0, len(numbers), _METRICS):
            body = {"run_id": run, "metrics": numbers[start : start + _METRICS]}
            self._api.write("runs/log-batch", body, doing, repeat=True)

    def finish(self, run: str, status: str = "FINISHED") -> None:
        body = {"run_id": run, "status": status, "end_time": _now()}
        self._api.write("runs/update", body, "finish the run", repeat=True)

    def discard(self, run: str, model: str) -> None:
        """Delete what was not finished, as far as that is possible."""
        with suppress(MlxError):
            if model:
                self.delete_model(model)
            self.finish(run, "FAILED")
            self._api.write("runs/delete", {"run_id": run}, "discard a run")

    def create_model(
        self, experiment: str, name: str, run: str, *, params: Mapping[str, str], tags: Mapping[str, str]
    ) -> Place | None:
        """Create a logged model; None where the server knows none, as before MLflow 3."""
        texts = listed_pairs(params)
        body = {
            "experiment_id": experiment,
            "name": name.replace(".", "_"),  # MLflow's names for logged models know no dot
            "source_run_id": run,
            "params": texts[:_BATCH],
            "tags": listed_pairs(tags),
        }
        try:
            answer = self._api.write("logged-models", body, "create a logged model")
        except NoEndpointError:
            return None
        info = table(table(answer, "model"), "info")
        model = Place(needed(info, "model_id"), needed(info, "artifact_uri").rstrip("/"))
        if not model_id_of(f"models:/{model.id}"):
            raise IntegrityError("The registry gives its models ids that no registry gives.")
        for start in range(_BATCH, len(texts), _BATCH):
            more = {"model_id": model.id, "params": texts[start : start + _BATCH]}
            self._api.write(f"logged-models/{model.id}/params", more, "log parameters", repeat=True)
        return model

    def finish_model(self, model: str) -> None:
        """Say that all of a logged model's files are there."""
        body = {"model_id": model, "status": "LOGGED_MODEL_READY"}
        self._api.write(
            f"logged-models/{model}", body, "finish the logged model", method="PATCH", repeat=True
        )

    def delete_model(self, model: str) -> None:
        """Delete a logged model; its files stay."""
        self._api.write(f"logged-models/{model}", {"model_id": model}, "delete a model", method="DELETE")

    def link(self, run: str, model: str, name: str, number: int) -> None:
        """Tie a logged model to the version made of it, and to its run."""
        doing = f"finish the run of {name}/{number}"
        link = {"mlflow.modelVersions": json.dumps([{"name": name, "version": number}])}
        body = {"model_id": model, "tags": listed_pairs(link)}
        self._api.write(f"logged-models/{model}/tags", body, doing, method="PATCH", repeat=True)
        outputs = {"run_id": run, "models": [{"model_id": model, "step": 0}]}
        self._api.write("runs/outputs", outputs, doing, repeat=True)

    def _model(self, model_id: str) -> dict[str, Any]:
        answer = self._api.read(f"logged-models/{quote(model_id, safe='')}", {}, f"find the model {model_id}")
        return table(table(answer, "model"), "info")

    def _experiment(self, name: str) -> Place | None:
        query = {"experiment_name": name}
        try:
            answer = self._api.read("experiments/get-by-name", query, "open the experiment")
        except NotFoundError:
            return None
        found = table(answer, "experiment")
        return Place(needed(found, "experiment_id"), text(found, "artifact_location").rstrip("/"))


def _now() -> int:
    return int(time.time() * 1000)
