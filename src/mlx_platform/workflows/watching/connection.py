"""A connection to a server's address, as somebody writes it."""

import http.client
from urllib.parse import urlsplit

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable

_HINT = "Give the first address that mlx serve prints."


def connection_to(url: str, timeout: float) -> http.client.HTTPConnection:
    """A connection that is not open yet; each attempt on it waits for so many seconds.

    Raises:
        UsageError: it is no address of a server.
    """
    shown = printable(url, 200)
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{shown!r} is no URL.", hint=_HINT) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{shown!r} is no URL of a server.", hint=_HINT)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, port, timeout=timeout)
