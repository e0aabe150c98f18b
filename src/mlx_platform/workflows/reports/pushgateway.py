"""Numbers for a Prometheus Pushgateway, for jobs that end before anybody scrapes them."""

from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import quote, urlsplit

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.core.text import first_line, printable

_TIMEOUT = 10.0
_ANSWER_CAP = 500


def check_gateway(url: str) -> None:
    """Refuse what is no address of a Pushgateway.

    Raises:
        UsageError: it is none.
    """
    parts = urlsplit(url)
    try:
        known = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment:
        raise UsageError(
            f"--pushgateway takes an address, not {printable(url, 80)!r}.",
            hint="Such as http://pushgateway:9091",
        )


def push(url: str, text: str, job: str, grouping: Mapping[str, str]) -> None:
    """Replace the samples of a group by these.

    Args:
        url: of the gateway.
        text: samples in Prometheus' text format.
        job: the group's job.
        grouping: its other labels.

    Raises:
        UnavailableError: it cannot be reached, or refuses them.
    """
    check_gateway(url)
    parts = urlsplit(url)
    names = "".join(f"/{name}/{quote(value, safe='')}" for name, value in grouping.items() if value)
    path = f"{parts.path.rstrip('/')}/metrics/job/{quote(job, safe='')}{names}"
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request("PUT", path, text.encode(), {"Content-Type": "text/plain; version=0.0.4"})
        answer = connection.getresponse()
        said = answer.read(_ANSWER_CAP).decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        raise UnavailableError(
            f"The Pushgateway {printable(url, 200)} cannot be reached: {first_line(error)}."
        ) from error
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise UnavailableError(
            f"The Pushgateway {printable(url, 200)} answered {answer.status}: {printable(said.strip(), 200)}."
        )
