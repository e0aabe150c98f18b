"""One look at the metrics of a server, over HTTP, in the Prometheus text format."""

import http.client
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from mlx_platform.core.errors import NotFoundError, UnavailableError, UsageError
from mlx_platform.core.text import first_line, printable

_TIMEOUT = 5.0
_MOST_BYTES = 32 * 1024 * 1024
_ADMIN_HINT = "Give the address that mlx serve prints for metrics and health."

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of a moment: `time` is on `time.monotonic`, values are by name and then by labels."""

    time: float
    samples: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)

    def rows(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """The samples of a name that have these labels."""
        for found, value in self.samples.get(name, ()):
            if labels.items() <= found.items():
                yield found, value

    def total(self, name: str, **labels: str) -> float:
        """Their sum, over all processes of the server."""
        return sum(value for _, value in self.rows(name, **labels))

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Sums for each value of a label."""
        sums: dict[str, float] = {}
        for found, value in self.rows(name, **labels):
            if label in found:
                sums[found[label]] = sums.get(found[label], 0.0) + value
        return sums


def scrape(url: str, token: str = "") -> Scrape:
    """Ask a server for its metrics.

    Args:
        url: of its admin listener, with or without `/metrics`.
        token: what that asks for, if anything.

    Raises:
        UnavailableError: it does not answer.
        UsageError: the URL is none, or the token is missing or wrong.
        NotFoundError: whoever answers has no metrics of ours.
    """
    place = _place(url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.hostname or "", place.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", place.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"{printable(url)} does not answer: {first_line(error)}.", hint="Is mlx serve running there?"
        ) from error
    finally:
        connection.close()
    if answer.status in {401, 403}:
        raise UsageError(
            f"{printable(url)} wants a token.", hint="Put the server's token into MLX_ADMIN_TOKEN."
        )
    if answer.status != 200 or b"mlx_ready" not in body:
        raise NotFoundError(f"{printable(url)} has no metrics of mlx serve.", hint=_ADMIN_HINT)
    return parse(body)


def parse(page: bytes) -> Scrape:
    """Read a page of metrics; the model's name and version are all that is foreign text in it."""
    from prometheus_client.parser import text_string_to_metric_families

    samples: dict[str, list[tuple[Labels, float]]] = {}
    try:
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except ValueError as error:
        raise UnavailableError(f"The server's metrics cannot be read: {first_line(error)}.") from error
    return Scrape(time.monotonic(), {name: tuple(found) for name, found in samples.items()})


def token_of(variable: str) -> str:
    """The token for admin listeners, from the environment."""
    return os.environ.get(variable, "") if variable else ""


def _place(url: str) -> "_Place":
    shown = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(shown)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{printable(url)!r} is no URL.", hint=_ADMIN_HINT) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{printable(url)!r} is no URL of a server.", hint=_ADMIN_HINT)
    path = parts.path.rstrip("/")
    return _Place(
        parts.scheme, parts.hostname, port, path if path.endswith("/metrics") else f"{path}/metrics"
    )


@dataclass(frozen=True, slots=True)
class _Place:
    scheme: str
    hostname: str
    port: int | None
    path: str
