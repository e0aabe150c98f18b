"""KServe's inference logger: CloudEvents of requests and of answers, and the blobs that it stores of them.

https://kserve.github.io/website/docs/model-serving/predictive-inference/logger and
https://github.com/kserve/kserve `pkg/logger`; events in the JSON form of CloudEvents 1.0, or as a sink keeps
the binary one: `headers` beside a `body`.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.entry import Body, Document, Entry, Half
from mlx_platform.traffic.readers.fields import first, mapping_of, moment_of, status_of, text_of
from mlx_platform.traffic.readers.pairing import Pairing

_REQUEST = "org.kubeflow.serving.inference.request"
_RESPONSE = "org.kubeflow.serving.inference.response"
_WHO = ("namespace", "inferenceservicename", "inferenceservice", "component", "endpoint")


def matches(document: Document) -> bool:
    if isinstance(document.get("headers"), Mapping):
        return _lowered(document["headers"]).get("type") in (_REQUEST, _RESPONSE)
    return first(document, "reqType", "type", "Ce-Type", "ce-type") in (_REQUEST, _RESPONSE)


@dataclass(frozen=True, slots=True)
class _Event:
    """The attributes of an event in lower case, without the prefix of headers, and its body."""

    attributes: Mapping[str, Any]
    body: Body


class KServeReader:
    """Joins the request and the answer of a call, in whatever order and file they come."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._pairing = Pairing()

    def read(self, document: Document, source: str) -> Iterator[Entry]:
        del source
        event = _event(document)
        found = event.attributes
        key, kind = text_of(found.get("id")), first(found, "reqtype", "type")
        if not key or kind not in (_REQUEST, _RESPONSE):
            raise UsageError("A logged event has no id, or is neither a request nor a response.")
        half: Half = "request" if kind == _REQUEST else "response"
        who = [text_of(found.get(name)) for name in _WHO]
        stamp = found.get("time")
        yield from self._pairing.add(
            Entry(
                key="/".join((*who, key)),
                half=half,
                request_id=_caller_id(found.get("metadata")) or key,
                time=moment_of(stamp, self._zone) if stamp else None,
                origin="/".join(part for part in who if part),
                request=event.body if half == "request" else None,
                response=event.body if half == "response" else None,
                status=status_of(found.get("statuscode")),
            )
        )

    def finish(self) -> Iterator[Entry]:
        return self._pairing.finish()


def _event(document: Document) -> _Event:
    if isinstance(document.get("headers"), Mapping):
        found = _lowered(document["headers"])
        return _Event(found, _body(document, found.get("content-type"), "body", "data"))
    found = _lowered(document)
    if "bytes" in found:
        kind = text_of(first(found, "contenttype", "content-type")) or "application/json"
        content = found["bytes"]
        return _Event(found, Body(content if isinstance(content, bytes) else _decoded(content), kind))
    return _Event(found, _body(found, first(found, "datacontenttype", "content-type"), "data", "body"))


def _body(document: Document, kind: Any, *names: str) -> Body:
    kind = text_of(kind) or "application/json"
    for name in names:
        if document.get(f"{name}_base64") is not None:
            return Body(_decoded(document[f"{name}_base64"]), kind)
    content = first(document, *names)
    if content is None:
        raise UsageError("A logged event has no body.")
    return Body(content, kind)


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UsageError("The bytes of a logged event are no base64.") from error


def _lowered(names: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name).lower().removeprefix("ce-"): value for name, value in names.items()}


def _caller_id(metadata: Any) -> str:
    """The id that the caller gave, among the headers that the logger was told to keep."""
    try:
        headers = mapping_of(metadata, "metadata")
    except UsageError:
        return ""
    for name, value in headers.items():
        if str(name).lower() == "x-request-id":
            return text_of(value[0] if isinstance(value, list) and value else value)
    return ""
