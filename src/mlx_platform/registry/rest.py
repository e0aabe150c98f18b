"""A registry behind an MLflow server, by its documented REST API and without MLflow.

Importing MLflow takes two seconds, and its client waits minutes for a server that hangs. What it does with a
server is a handful of small JSON calls; only bytes in a store that the server does not hand out itself need
MLflow's own code, which is imported for them alone.
"""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mlx_platform.core.errors import NotFoundError
from mlx_platform.registry.address import Address
from mlx_platform.registry.reader import number_of
from mlx_platform.registry.refusals import append_version
from mlx_platform.registry.rest_calls import Api
from mlx_platform.registry.rest_files import Files
from mlx_platform.registry.rest_login import login
from mlx_platform.registry.rest_models import Models
from mlx_platform.registry.rest_runs import EXPERIMENT, Place, Runs
from mlx_platform.registry.runs import MetricData, RunRecord

_IN_RUN = "model"  # the folder of a package among the files of its run


class RestStore(Models):
    """Has the methods of `Store`.

    Args:
        address: the server's.
        timeout: seconds for one call; bytes have more, as long as they move.
        artifacts: URI or folder of the settings, which may be written to without the server.

    Raises:
        UsageError: the address or a credential of the environment cannot be used.
    """

    def __init__(self, address: Address, *, timeout: float, artifacts: str) -> None:
        api = Api(login(address.uri, os.environ), shown=address.shown, timeout=timeout)
        super().__init__(api)
        self._runs = Runs(api)
        self._files = Files(api, address, timeout=timeout, artifacts=artifacts)

    def prepare(self) -> None:
        """Create the experiment that runs and bytes go to."""
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
        and whoever is killed after leaves it whole. A server of MLflow 2 keeps the package among the files of
        its run, because it has no logged models.

        Returns:
            The version's number.
        """
        experiment = self._experiment()
        if not self._files.writable(experiment.uri):
            raise self._files.refuse(experiment.uri)
        run = self._runs.start(experiment.id, f"register {name}", run_tags)
        model = ""
        try:
            logged = self._runs.create_model(experiment.id, name, run.id, params=params, tags=tags)
            model = logged.id if logged else ""
            place = logged.uri if logged else f"{run.uri}/{_IN_RUN}"
            self._files.upload(place, folder)
            if model:
                self._runs.finish_model(model)
            self._runs.log(run.id, params=params, metrics=metrics, model=model)
            self.ensure_model(name, tags={}, description="")
        except BaseException:
            self._runs.discard(run.id, model)
            raise
        source = f"models:/{model}" if model else place
        number = self._create(name, source, tags=tags, description=description, run=run.id, model=model)
        if model:
            self._runs.link(run.id, model, name, number)
        self._runs.finish(run.id)
        return number

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
        run = self._runs.start(self._experiment().id, title, tags)
        self._runs.log_inputs(run.id, model=model, data=data)
        self._runs.log(run.id, params={}, metrics=metrics, model=model, data=data)
        with tempfile.TemporaryDirectory(prefix="mlx-") as folder:
            Path(folder, "evidence.json").write_text(document)
            self._files.upload(run.uri, Path(folder))
        self._runs.finish(run.id)
        return run.id

    def download(self, location: str, target: Path, cap: int) -> None:
        """Fetch one file of at most `cap` bytes into an existing folder.

        Raises:
            NotFoundError: there is no such file.
        """
        self._files.download(location, target, cap)

    def run(self, run_id: str) -> RunRecord | None:
        """A run with what was logged to it; None when there is none of this id."""
        return self._runs.run(run_id)

    def logged_model(self, model_id: str) -> tuple[str, str]:
        """The name of one of MLflow's models and where its bytes are said to be; untrusted.

        Raises:
            NotFoundError: there is no such model.
        """
        return self._runs.logged_model(model_id)

    def erase(self, model: str) -> None:
        """Delete a logged model with its bytes, and leave its run; one that is gone already is as good."""
        with suppress(NotFoundError):
            _, location = self._runs.logged_model(model)
            if model in location.split("/"):
                # The bytes first: without the model nobody would know where they are.
                self._files.remove(location)
            self._runs.delete_model(model)

    def discard_model(self, model: str) -> None:
        """Delete an uploaded model with its bytes, and the run that uploaded it if that never ended."""
        run = self._runs.maker(model)
        self.erase(model)
        if run:
            self._runs.discard(run, "")

    def _create(
        self, name: str, source: str, *, tags: Mapping[str, str], description: str, run: str, model: str
    ) -> int:
        return append_version(
            lambda: self.create_version(
                name, source, tags=tags, description=description, run=run, model=model
            ),
            find=lambda: number_of(self, name, source),
            discard=lambda: self._runs.discard(run, model),
        )

    def _experiment(self) -> Place:
        found = self._runs.experiment(EXPERIMENT)
        # A server may have been put over a file whose bytes it does not hand out.
        return found if self._files.writable(found.uri) else self._runs.experiment(f"{EXPERIMENT}-served")
