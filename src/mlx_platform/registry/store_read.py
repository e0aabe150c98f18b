"""Reading a registry through MLflow's client, with the same methods as `SqliteReader`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from mlx_platform.core.errors import IntegrityError, NotFoundError
from mlx_platform.registry.reader import name_filter
from mlx_platform.registry.row import Row
from mlx_platform.registry.runs import CONTEXT_TAG, RunRecord
from mlx_platform.registry.sight import Glance

PAGE = 1000


class StoreReader:
    """The half of `Store` that reads."""

    def names(self) -> tuple[str, ...]:
        """Every registered model by name, also those of the journal; prompts are left out."""
        client = self._client()
        found = self._pages(
            lambda token: client.search_registered_models(max_results=PAGE, page_token=token),
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
        size = PAGE if limit is None else min(limit, PAGE)
        versions = self._pages(
            lambda token: client.search_model_versions(
                name_filter(name), max_results=size, order_by=["version_number DESC"], page_token=token
            ),
            f"list the versions of {name}",
            limit=limit,
            wanted=_ready,
        )
        return tuple(_row(version) for version in versions)

    def tagged(self, name: str, key: str, value: str) -> tuple[int, ...]:
        """The versions of a model that have a tag of exactly this value, newest first."""
        client = self._client()
        search = name_filter(name)
        if not {"'", "`"} & {*key, *value}:
            search += f" AND tags.`{key}` = '{value}'"
        found = self._pages(
            lambda token: client.search_model_versions(
                search, max_results=PAGE, order_by=["version_number DESC"], page_token=token
            ),
            f"search the versions of {name}",
        )
        return tuple(
            int(version.version) for version in found if _ready(version) and version.tags.get(key) == value
        )

    def aliases(self, name: str) -> dict[str, int]:
        """Who holds which alias, as MLflow has it."""
        client = self._client()
        with self._door(f"read the aliases of {name}"):
            found = client.search_registered_models(name_filter(name), max_results=1)
            return {str(alias): int(number) for model in found for alias, number in model.aliases.items()}

    def model_tags(self, name: str) -> dict[str, str]:
        """The tags of a registered model; none when there is no such model."""
        client = self._client()
        with self._door(f"read the tags of {name}"):
            found = client.search_registered_models(name_filter(name), max_results=1)
            return {str(key): str(value) for model in found for key, value in model.tags.items()}

    def glance(self, name: str, journal: str) -> Glance:
        """Aliases and tags, and behind them the end of the journal."""
        client = self._client()
        with self._door(f"look at {name}"):
            found = client.search_registered_models(name_filter(name), max_results=1)
        aliases = {str(alias): int(number) for model in found for alias, number in model.aliases.items()}
        tags = {str(key): str(value) for model in found for key, value in model.tags.items()}
        newest = self.rows(journal, limit=1)
        return Glance(aliases, tags, newest[0].number if newest else 0)

    def location(self, name: str, number: int) -> str:
        """Where the bytes of a version are said to be; untrusted."""
        client = self._client()
        with self._door(f"find the bytes of {name}/{number}"):
            return str(client.get_model_version_download_uri(name, str(number)))

    def run(self, run_id: str) -> RunRecord | None:
        """A run with what was logged to it; None when there is none of this id."""
        client = self._client()
        try:
            with self._door(f"read the run {run_id}"):
                found = client.get_run(run_id)
        except NotFoundError:
            return None
        inputs = found.inputs.dataset_inputs if found.inputs else ()
        outputs = found.outputs.model_outputs if found.outputs else ()
        return RunRecord(
            id=run_id,
            artifact_uri=str(found.info.artifact_uri or ""),
            params={str(key): str(value) for key, value in found.data.params.items()},
            metrics={str(key): float(value) for key, value in found.data.metrics.items()},
            tags={str(key): str(value) for key, value in found.data.tags.items()},
            datasets=tuple(
                (
                    str(entry.dataset.name),
                    str(entry.dataset.digest or ""),
                    next((tag.value for tag in entry.tags if tag.key == CONTEXT_TAG), ""),
                )
                for entry in inputs
            ),
            models=tuple(str(output.model_id) for output in outputs),
        )

    def logged_model(self, model_id: str) -> tuple[str, str]:
        """The name of one of MLflow's models and where its bytes are said to be; untrusted.

        Raises:
            NotFoundError: there is no such model.
        """
        client = self._client()
        with self._door(f"find the model {model_id}"):
            found = client.get_logged_model(model_id)
            return str(found.name), str(found.artifact_location)

    # Within

    def _client(self) -> Any:
        """MLflow's client, connected."""
        raise NotImplementedError

    def _door(self, doing: str) -> AbstractContextManager[None]:
        """Where MLflow works; `doing` completes the sentence "Could not ..."."""
        raise NotImplementedError

    def _version(self, name: str, number: int) -> Any:
        client = self._client()
        try:
            with self._door(f"read {name}/{number}"):
                version = client.get_model_version(name, str(number))
        except NotFoundError:
            return None
        return version if _ready(version) else None

    def _pages(
        self,
        search: Callable[[str | None], Any],
        doing: str,
        *,
        limit: int | None = None,
        wanted: Callable[[Any], bool] = lambda _: True,
    ) -> list[Any]:
        found: list[Any] = []
        token: str | None = None
        while True:
            with self._door(doing):
                page = search(token)
            found += filter(wanted, page)
            token = page.token or None
            if token is None or (limit is not None and len(found) >= limit):
                return found[:limit]


def _ready(version: Any) -> bool:
    return bool(version.status == "READY")


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
