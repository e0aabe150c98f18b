"""Registered models and their versions on a server: reading them, and the light writes."""

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from mlx_platform.core.errors import ConflictError, IntegrityError, MlxError, NotFoundError
from mlx_platform.registry.reader import name_filter
from mlx_platform.registry.refusals import again
from mlx_platform.registry.rest_calls import Api, Method
from mlx_platform.registry.rest_parse import needed, pairs, ready, table, tables, text, version_row, whole
from mlx_platform.registry.row import Row
from mlx_platform.registry.sight import Glance
from mlx_platform.registry.version import PROMPT

_PAGE = 500  # versions with all their tags: some megabytes
_PAGES = 2000
_SINGLY = 8  # versions, above which a range is cheaper than one request each


class Models:
    """The registry's rows; see `Reader` and `Writer` for what each method does."""

    def __init__(self, api: Api) -> None:
        self._api = api

    # Reading

    def names(self) -> tuple[str, ...]:
        """Every registered model by name, also those of the journal; prompts are left out."""
        found = self._pages("registered-models/search", "registered_models", {}, "list the models", _PAGE)
        return tuple(
            sorted(text(model, "name") for model in found if pairs(model, "tags").get(PROMPT, "") != "true")
        )

    def count(self, name: str) -> int:
        """How many versions a model has, without reading them where the server's pages can be skipped."""
        newest = self.rows(name, limit=1)
        if not newest:
            return 0
        highest = newest[0].number
        try:
            return _last(lambda place: self._reaches(name, place), highest - 1) + 1
        except MlxError:
            # Somebody else's page tokens: then every page is read.
            return len(self.rows(name))

    def rows(
        self,
        name: str,
        *,
        numbers: Sequence[int] | None = None,
        limit: int | None = None,
        keys: Sequence[str] | None = None,  # noqa: ARG002 - the API sends every tag
    ) -> tuple[Row, ...]:
        """A model's versions with their tags, newest first: all, the given ones, or the last `limit`."""
        if numbers is not None:
            return self._given(name, sorted({number for number in numbers if number > 0}, reverse=True))
        size = _PAGE if limit is None else max(1, min(limit, _PAGE))
        found = (
            version_row(version)
            for version in self._search(name, "", size)
            if ready(version) and text(version, "name") == name
        )
        return tuple(islice(found, limit))

    def tagged(self, name: str, key: str, value: str) -> tuple[int, ...]:
        """The versions of a model that have a tag of exactly this value, newest first."""
        condition = "" if {"'", "`"} & {*key, *value} else f" AND tags.`{key}` = '{value}'"
        found = self._search(name, condition, _PAGE)
        rows = [version_row(version) for version in found if ready(version)]
        return tuple(row.number for row in rows if row.name == name and row.tags.get(key) == value)

    def aliases(self, name: str) -> dict[str, int]:
        """Who holds which alias, as MLflow has it."""
        model = self._model(name, f"read the aliases of {name}")
        return {needed(item, "alias"): whole(item, "version") for item in tables(model, "aliases")}

    def model_tags(self, name: str) -> dict[str, str]:
        """The tags of a registered model; none when there is no such model."""
        return pairs(self._model(name, f"read the tags of {name}"), "tags")

    def glance(self, name: str, journal: str) -> Glance:
        """Aliases and tags, and behind them the end of the journal: two requests."""
        model = self._model(name, f"look at {name}")
        aliases = {needed(item, "alias"): whole(item, "version") for item in tables(model, "aliases")}
        newest = self.rows(journal, limit=1)
        return Glance(aliases, pairs(model, "tags"), newest[0].number if newest else 0)

    def location(self, name: str, number: int) -> str:
        """Where the bytes of a version are said to be; untrusted."""
        doing = f"find the bytes of {name}/{number}"
        query = {"name": name, "version": str(number)}
        try:
            return text(self._api.read("model-versions/get-download-uri", query, doing), "artifact_uri")
        except NotFoundError:
            return ""

    # Writing

    def ensure_model(self, name: str, *, tags: Mapping[str, str], description: str) -> None:
        """Create a registered model unless it is there."""
        body = {"name": name, "tags": listed_pairs(tags), "description": description}
        with suppress(ConflictError):
            self._api.write("registered-models/create", body, f"create the model {name}", repeat=True)

    def create_version(
        self,
        name: str,
        source: str,
        *,
        tags: Mapping[str, str],
        description: str = "",
        run: str = "",
        model: str = "",
    ) -> int:
        """Append a version; the registry gives the number, each once and in order."""
        body = {"name": name, "source": source, "tags": listed_pairs(tags), "description": description}
        body |= {"run_id": run} if run else {}
        body |= {"model_id": model} if model else {}
        # Only what the server itself says it did not do for want of a number is tried again.
        answer = again(lambda: self._api.write("model-versions/create", body, f"create a version of {name}"))
        number = whole(table(answer, "model_version"), "version")
        if number < 1:
            raise IntegrityError(f"The registry created a version of {name} without a number.")
        return number

    def delete_version(self, name: str, number: int) -> None:
        body = {"name": name, "version": str(number)}
        self._api.write("model-versions/delete", body, f"delete {name}/{number}", method="DELETE")

    def set_alias(self, name: str, alias: str, number: int | None) -> None:
        """Point an alias to a version, or take it away; whoever writes last wins."""
        doing = f"write the alias {alias} of {name}"
        body = {"name": name, "alias": alias}
        if number is None:
            self._set("registered-models/alias", body, doing, method="DELETE")
        else:
            self._set("registered-models/alias", body | {"version": str(number)}, doing)

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None:
        """Write tags of a version; each is a write of its own."""
        for key, value in tags.items():
            body = {"name": name, "version": str(number), "key": key, "value": value}
            self._set("model-versions/set-tag", body, f"write a tag of {name}/{number}")

    def set_model_tags(self, name: str, tags: Mapping[str, str]) -> None:
        """Write tags of a registered model; each is a write of its own."""
        for key, value in tags.items():
            body = {"name": name, "key": key, "value": value}
            self._set("registered-models/set-tag", body, f"write a tag of {name}")

    def delete_model_tags(self, name: str, keys: Collection[str]) -> None:
        """Take tags of a registered model away; each is a write of its own."""
        for key in keys:
            body = {"name": name, "key": key}
            self._set("registered-models/delete-tag", body, f"delete a tag of {name}", method="DELETE")

    # Within

    def _set(self, path: str, body: Mapping[str, str], doing: str, *, method: Method = "POST") -> None:
        def write() -> None:
            self._api.write(path, body, doing, method=method, repeat=True)

        again(write)

    def _model(self, name: str, doing: str) -> Mapping[str, Any]:
        # Asking for the model itself makes the server load every version of it.
        query = {"filter": name_filter(name), "max_results": 1}
        found = tables(self._api.read("registered-models/search", query, doing), "registered_models")
        return next((model for model in found if text(model, "name") == name), {})

    def _given(self, name: str, numbers: Sequence[int]) -> tuple[Row, ...]:
        if len(numbers) <= _SINGLY:
            found = [version for number in numbers for version in self._version(name, number)]
        else:
            between = f" AND version_number >= {numbers[-1]} AND version_number <= {numbers[0]}"
            found = list(self._search(name, between, min(_PAGE, numbers[0] - numbers[-1] + 1)))
        rows = (version_row(version) for version in found if ready(version))
        return tuple(row for row in rows if row.name == name and row.number in numbers)

    def _version(self, name: str, number: int) -> list[dict[str, Any]]:
        query = {"name": name, "version": str(number)}
        try:
            answer = self._api.read("model-versions/get", query, f"read {name}/{number}")
        except NotFoundError:
            return []
        return [table(answer, "model_version")]

    def _search(self, name: str, condition: str, size: int) -> Iterator[dict[str, Any]]:
        query = {"filter": name_filter(name) + condition, "order_by": ["version_number DESC"]}
        doing = f"list the versions of {name}"
        return self._pages("model-versions/search", "model_versions", query, doing, size)

    def _pages(
        self, path: str, key: str, query: Mapping[str, Any], doing: str, size: int
    ) -> Iterator[dict[str, Any]]:
        token = ""
        for _ in range(_PAGES):
            asked = {**query, "max_results": size} | ({"page_token": token} if token else {})
            page = self._api.read(path, asked, doing)
            yield from tables(page, key)
            before, token = token, text(page, "next_page_token")
            if not token:
                return
            if token == before:
                break
        raise IntegrityError(f"Could not {doing}: the registry's list has no end.")

    def _reaches(self, name: str, place: int) -> bool:
        """Whether there is a version at this place, from 0, in the order of their numbers."""
        query = {
            "filter": name_filter(name),
            "order_by": ["version_number ASC"],
            "max_results": 1,
            "page_token": base64.b64encode(json.dumps({"offset": place}).encode()).decode(),
        }
        found = tables(
            self._api.read("model-versions/search", query, f"count the versions of {name}"), "model_versions"
        )
        if found and whole(found[0], "version") <= place:
            raise IntegrityError(f"Could not count the versions of {name}: the registry skips none.")
        return bool(found)


def listed_pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    """A mapping as the API takes it."""
    return [{"key": key, "value": value} for key, value in values.items()]


def _last(reaches: Callable[[int], bool], place: int) -> int:
    """The last place that is reached, at most `place`; the places before it all are, and 0 is."""
    step, beyond = 1, place + 1
    while place > 0 and not reaches(place):
        beyond, place, step = place, max(0, place - step), step * 2
    while beyond - place > 1:
        middle = (place + beyond) // 2
        if reaches(middle):
            place = middle
        else:
            beyond = middle
    return place
