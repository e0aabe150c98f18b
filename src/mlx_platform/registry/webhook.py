"""Telling an event over HTTP in the form of Standard Webhooks: an id, a time, and a signature over all of it.

The URL and the names of the variables that hold secrets come from the settings, everything in the body from
the registry, and nothing that comes back is trusted: redirects are not followed, and an answer is read only
so far.
"""

import base64
import binascii
import hmac
import ipaddress
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import SinkSettings
from mlx_platform.core.text import first_line, printable
from mlx_platform.core.version import VERSION
from mlx_platform.registry.outbox import ERROR_CAP, Answer, Message

_ANSWER_CAP = 4096  # bytes of an answer's body that are read
_SECRET_PREFIX = "whsec_"  # noqa: S105 - the mark of a secret that is base64, not a secret
_GONE = 410
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{1,4096}")
_OUR_HEADERS = {
    "host",
    "content-type",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "expect",
    "te",
    "trailer",
    "upgrade",
    "user-agent",
}


class Webhook:
    """A webhook with its secrets read.

    Raises:
        UsageError: the URL cannot be used, or a variable that shall hold a secret is not set.
    """

    def __init__(self, sink: SinkSettings, environment: Mapping[str, str]) -> None:
        self._url = _checked_url(sink)
        self._key = _key(sink, environment)
        self._headers = _extra_headers(sink, environment)

    def send(self, message: Message, *, timeout: float, now: datetime) -> Answer:
        """Post it once; `timeout` bounds everything from the name's look-up to the answer's last byte."""
        body = message.body
        stamp = str(int(now.timestamp()))
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "User-Agent": f"mlx/{VERSION}",
            "Connection": "close",
            "webhook-id": message.id,
            "webhook-timestamp": stamp,
        }
        if self._key:
            headers["webhook-signature"] = signature(self._key, message.id, stamp, body)
        exchange = _Exchange(self._url, body, headers, timeout, now)
        exchange.start()
        exchange.join(timeout)
        answer = exchange.answer
        if answer is None:
            exchange.abandon()
            answer = Answer(delivered=False, said=f"no answer within {timeout:.3g} s")
        return answer


def signature(key: bytes, id: str, stamp: str, body: bytes) -> str:  # noqa: A002 - the header's name
    """The signature of Standard Webhooks: HMAC-SHA256 over `id.stamp.body`, in base64 behind its version."""
    digest = hmac.digest(key, f"{id}.{stamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


class _Exchange(threading.Thread):
    """One request in a thread of its own: a name's look-up, for one, can be left but not stopped."""

    def __init__(
        self, url: SplitResult, body: bytes, headers: Mapping[str, str], timeout: float, now: datetime
    ) -> None:
        super().__init__(daemon=True, name="mlx-webhook")
        self._url, self._body, self._headers, self._now = url, body, headers, now
        self._abandoned = False
        self._connection = _connection(url, timeout)
        self.answer: Answer | None = None

    def run(self) -> None:
        try:
            self.answer = self._talk()
        except TimeoutError:
            self.answer = Answer(delivered=False, said="it did not answer in time")
        except (OSError, HTTPException, ValueError) as error:
            words = getattr(error, "strerror", None)
            said = words or f"{type(error).__name__}: {first_line(error, ERROR_CAP)}"
            self.answer = Answer(delivered=False, said=printable(said, ERROR_CAP))
        finally:
            self._connection.close()

    def abandon(self) -> None:
        """Stop waiting, and keep the thread from going on."""
        self._abandoned = True
        opened = self._connection.sock  # the thread may end, and take it away, at any moment
        if opened:
            with suppress(OSError):
                opened.shutdown(2)

    def _talk(self) -> Answer:
        self._connection.connect()
        if self._abandoned:
            return Answer(delivered=False, said="it was given up")
        path = self._url.path or "/"
        target = f"{path}?{self._url.query}" if self._url.query else path
        self._connection.request("POST", target, body=self._body, headers=dict(self._headers))
        with self._connection.getresponse() as response:
            return _read_answer(response, self._now)


def _connection(url: SplitResult, timeout: float) -> HTTPConnection:
    host = url.hostname or ""
    if url.scheme == "http":
        return HTTPConnection(host, url.port, timeout=timeout)
    import ssl

    return HTTPSConnection(host, url.port, timeout=timeout, context=ssl.create_default_context())


def _read_answer(response: HTTPResponse, now: datetime) -> Answer:
    status = response.status
    said = f"{status} {printable(response.reason or '', 60)}".strip()
    if 200 <= status < 300:
        return Answer(delivered=True, said=said)
    if 300 <= status < 400:
        return Answer(delivered=False, said=f"{said}, and redirects are not followed")
    with suppress(OSError, HTTPException, ValueError):
        text = " ".join(response.read(_ANSWER_CAP).decode(errors="replace").split())
        said = printable(f"{said}: {text}" if text else said, ERROR_CAP)
    return Answer(
        delivered=False,
        said=said,
        retry_after=retry_after(response.headers.get("Retry-After", ""), now),
        final=status == _GONE,
    )


def retry_after(text: str, now: datetime) -> float | None:
    """Seconds out of a Retry-After header, which holds them or a date; None when it holds neither."""
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        return float(text)
    with suppress(ValueError, TypeError, OverflowError):
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now).total_seconds())
    return None


def _checked_url(sink: SinkSettings) -> SplitResult:
    hint = "Write https://HOST/PATH, or http:// for this machine."
    try:
        url = urlsplit(sink.url)
        _ = url.port
    except ValueError as error:
        raise UsageError(f"The URL of the sink {sink.name!r} is none.", hint=hint) from error
    plain = all("\x21" <= char <= "\x7e" for char in sink.url)
    if not plain or url.scheme not in {"http", "https"} or not url.hostname or url.fragment:
        raise UsageError(f"The URL of the sink {sink.name!r} cannot be used.", hint=hint)
    if url.username is not None:
        raise UsageError(
            f"The URL of the sink {sink.name!r} holds a user or password.",
            hint="Send credentials with headers_env, which keeps them out of the file.",
        )
    if url.scheme == "http" and not sink.allow_http and not _is_loopback(url.hostname):
        raise UsageError(
            f"The sink {sink.name!r} would be told in plain text over the network.",
            hint="Use https, or set allow_http = true for a network that you trust.",
        )
    return url


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(sink: SinkSettings, environment: Mapping[str, str]) -> bytes:
    if not sink.secret_env:
        return b""
    secret = _variable(sink, sink.secret_env, environment)
    if not secret.startswith(_SECRET_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(
            f"The secret of the sink {sink.name!r} in {sink.secret_env} is no base64 behind {_SECRET_PREFIX}."
        ) from error
    if not key:
        raise UsageError(f"The secret of the sink {sink.name!r} in {sink.secret_env} is empty.")
    return key


def _extra_headers(sink: SinkSettings, environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, variable in sink.headers_env.items():
        if (
            not _HEADER_NAME.fullmatch(name)
            or name.lower() in _OUR_HEADERS
            or name.lower().startswith("webhook-")
        ):
            raise UsageError(f"The sink {sink.name!r} cannot set the header {printable(name, 80)!r}.")
        value = _variable(sink, variable, environment)
        if not _HEADER_VALUE.fullmatch(value):
            raise UsageError(
                f"The header {name} of the sink {sink.name!r} takes printable ASCII, which is not what "
                f"{printable(variable, 80)} holds."
            )
        found[name] = value
    return found


def _variable(sink: SinkSettings, name: str, environment: Mapping[str, str]) -> str:
    value = environment.get(name, "")
    if not value:
        raise UsageError(
            f"The sink {sink.name!r} needs the environment variable {printable(name, 80)}, which is not set.",
            hint="Set it to the secret; the settings hold only its name.",
        )
    return value
