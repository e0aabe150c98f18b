"""One number from a Prometheus server, for a metric that is judged beside those of the server's own."""

import http.client
import math
import ssl
from urllib.parse import quote, urlsplit

import orjson

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.core.version import VERSION
from mlx_platform.registry.rest_wire import Deadline, Peer, Request, TooLargeError, Wire

_ANSWER_CAP = 1 << 20  # bytes


def ask_prometheus(address: str, query: str, *, timeout: float) -> float | None:
    """The value of an instant query that has one; None where it has none, or NaN.

    Args:
        address: of the server, such as `http://prometheus:9090`; what is behind the host is kept.
        query: in PromQL.
        timeout: seconds for all of it, from looking up the name to the last byte.

    Raises:
        UnavailableError: no answer, none that can be read, or one with several values.
        UsageError: the address is none.
    """
    place = urlsplit(address)
    if place.scheme not in {"http", "https"} or not place.hostname:
        raise UsageError(f"{printable(address, 200)} is no address of a Prometheus server.")
    secure = place.scheme == "https"
    wire = Wire(
        Peer(
            place.hostname,
            place.port or (443 if secure else 80),
            ssl.create_default_context if secure else None,
            None,
        )
    )
    target = f"{place.path.rstrip('/')}/api/v1/query?query={quote(query, safe='')}"
    headers = {"Accept": "application/json", "Connection": "close", "User-Agent": f"mlx/{VERSION}"}
    try:
        answer = wire.exchange(Request("GET", target, headers), Deadline(timeout), cap=_ANSWER_CAP)
    except TimeoutError as error:
        raise UnavailableError(f"Prometheus did not answer within {timeout:g} s.") from error
    except (OSError, http.client.HTTPException, TooLargeError) as error:
        said = printable(str(error) or type(error).__name__, 200)
        raise UnavailableError(f"Prometheus cannot be asked: {said}.") from error
    return _value(answer.status, answer.body)


def _value(status: int, body: bytes) -> float | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UnavailableError(f"Prometheus answered {status}, and no JSON.") from error
    try:
        if document["status"] != "success":
            raise UnavailableError(f"Prometheus refused the query: {printable(str(document['error']), 200)}.")
        kind, result = document["data"]["resultType"], document["data"]["result"]
        if kind == "vector" and len(result) > 1:
            raise UnavailableError(f"The query has {len(result)} values, and must have one.")
        if kind == "vector":
            pair = result[0]["value"] if result else None
        elif kind == "scalar":
            pair = result
        else:
            raise UnavailableError(f"The query has a {printable(str(kind), 40)} for a value, not a number.")
        value = math.nan if pair is None else float(pair[1])
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UnavailableError("Prometheus answered with something else than a number.") from error
    return None if math.isnan(value) else value
