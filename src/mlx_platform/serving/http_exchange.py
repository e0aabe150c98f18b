"""A request and a response as the routes see them, apart from ASGI."""

import secrets
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from re import compile as pattern
from typing import Any

import orjson

from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.refusal import Refusal, malformed

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
_REQUEST_ID = pattern(rb"[A-Za-z0-9-]{1,64}")
_JSON_LIKE = pattern(rb"(?:application|text)/(?:[a-z0-9.+-]+\+)?json|application/octet-stream")
# zlib's window argument for each encoding; "deflate" is a zlib stream (RFC 9110, 8.4.1.2).
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


class ClientGoneError(Exception):
    """The client left before its request was complete."""


@dataclass(slots=True)
class Request:
    """A complete request; header names are lower case, `parameters` come from the path.

    `counted` is where it is counted, when it is another place than that of all who name no version.
    """

    method: str
    headers: dict[bytes, bytes]
    body: bytes
    parameters: Mapping[str, str]
    scope: Scope
    id: str
    counted: Metrics | None = None


@dataclass(slots=True)
class Response:
    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: list[Header] = field(default_factory=list)
    error: str = ""
    identity: bytes = b""  # header lines of who answered, where that is not the stable version


def header_lines(headers: Iterable[Header]) -> bytes:
    """Headers as they stand in a response. Values are our own, and hold no line breaks."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def json_response(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status)


def error_response(refusal: Refusal) -> Response:
    """The error object of the Open Inference Protocol, which its clients expect on every route."""
    headers = [(b"retry-after", b"%d" % refusal.retry_after)] if refusal.retry_after else []
    body = orjson.dumps({"error": refusal.message})
    return Response(body, refusal.status, headers=headers, error=refusal.message)


class RequestIds:
    """Names requests: after the client's own id where that is harmless, else one by one."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = count(1)

    def choose(self, headers: Mapping[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
        return f"{self._prefix}-{next(self._numbers):x}"


async def read_body(receive: Receive) -> bytes:
    """All of a request's body; the connection has its limits in `http_protocol`.

    Raises:
        ClientGoneError: it will never be complete.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        whole: bytes = message["body"]
        return whole
    chunks: list[bytes] = []
    while message["type"] == "http.request":
        chunks.append(message["body"])
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()
    raise ClientGoneError


def check_content_type(headers: Mapping[bytes, bytes]) -> None:
    """Take JSON under any name it goes by, or none; clients of the protocol send none.

    Raises:
        Refusal: 415; the body says that it is something else, such as a form.
    """
    content_type = headers.get(b"content-type")
    if content_type is None or content_type == JSON:
        return
    kind = content_type.partition(b";")[0].strip().lower()
    if kind and not _JSON_LIKE.fullmatch(kind):
        raise Refusal(415, "The body must be JSON: send it with Content-Type: application/json.")


def is_image(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the body says that it is an image; which kind, the decoder sees for itself."""
    content_type = headers.get(b"content-type")
    return content_type is not None and content_type[:6].lower() == b"image/"


def decode_body(body: bytes, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """Undo the Content-Encoding, up to `limit` bytes.

    Raises:
        Refusal: 413 beyond the limit, 415 for an encoding that is not known, 400 when it is damaged.
    """
    encoding = headers.get(b"content-encoding")
    if encoding is None:
        return body
    name = encoding.strip().lower()
    if name in {b"", b"identity"}:
        return body
    if name not in _WINDOWS:
        raise Refusal(415, "The Content-Encoding must be gzip, deflate or identity.")
    inflater = zlib.decompressobj(_WINDOWS[name])
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise malformed("The body is not what its Content-Encoding says.") from error
    if len(plain) > limit:
        raise Refusal(413, f"The body of a request takes at most {limit:,} bytes.")
    if not inflater.eof or inflater.unused_data:
        raise malformed("The compressed body ends too early or too late.")
    return plain
