"""Spans with OpenInference's attributes: calls of language and embedding models, traced by OpenTelemetry.

https://github.com/Arize-ai/openinference `spec/semantic_conventions.md`; spans as JSON objects, as OTLP in
JSON (https://opentelemetry.io/docs/specs/otlp/), and as tables with a column for each attribute.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.entry import Body, Document, Entry
from mlx_platform.traffic.readers.fields import first, mapping_of, moment_of, number_of, text_of

KIND = "openinference.span.kind"
_MODEL_CALLS = {"LLM", "EMBEDDING", "RERANKER"}
_EMBEDDING = re.compile(r"embedding\.embeddings\.([0-9]{1,6})\.embedding\.(text|vector)")
_MESSAGE = re.compile(r"llm\.(input|output)_messages\.([0-9]{1,6})\.message\.content")
_NANOSECONDS = 1_000_000_000
_PREFIX = "attributes."


def matches(document: Document) -> bool:
    if "resourceSpans" in document:
        return True
    attributes = document.get("attributes")
    if isinstance(attributes, Mapping):
        return KIND in attributes or isinstance(attributes.get("openinference"), Mapping)
    return f"{_PREFIX}{KIND}" in document or "span_kind" in document


class OpenInferenceReader:
    """Each span of a model's call is an entry; chains, tools and the like are none."""

    def __init__(self, zone: tzinfo | None, columns: tuple[str, ...] = ()) -> None:
        self._zone = zone
        self._columns = columns

    def read(self, document: Document, source: str) -> Iterator[Entry | None]:
        del source
        if "resourceSpans" in document:
            for span in _otlp_spans(document):
                yield self._entry(span)
        else:
            yield self._entry(document)

    def finish(self) -> Iterator[Entry]:
        return iter(())

    def _entry(self, span: Document) -> Entry | None:
        attributes = _attributes(span)
        kind = text_of(first(attributes, KIND) or span.get("span_kind")).upper()
        if kind not in _MODEL_CALLS:
            return None
        start = moment_of(_start(span), self._zone, ticks=_NANOSECONDS)
        end = first(span, "endTimeUnixNano", "end_time")
        spent = moment_of(end, self._zone, ticks=_NANOSECONDS) - start if end is not None else None
        return Entry(
            key=_key(span) or f"{start.isoformat()}/{text_of(span.get('name'))}/{_hash_of(attributes)}",
            request_id=text_of(first(span, "spanId", "span_id", "context.span_id")),
            time=start,
            origin=text_of(
                first(attributes, "llm.model_name", "embedding.model_name", "reranker.model_name")
            ),
            request=_request(attributes, kind, self._columns),
            response=_response(attributes, kind),
            status=500 if _failed(span) else 200,
            latency_ms=spent.total_seconds() * 1000 if spent is not None else None,
        )


def _hash_of(attributes: Mapping[str, Any]) -> str:
    """What tells spans apart that carry no id."""
    content = repr(sorted(attributes.items(), key=lambda pair: pair[0]))
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _key(span: Document) -> str:
    context = mapping_of(span.get("context"), "context")
    own = text_of(first(span, "spanId", "span_id", "context.span_id") or context.get("span_id"))
    trace = text_of(first(span, "traceId", "trace_id", "context.trace_id") or context.get("trace_id"))
    return f"{trace}/{own}" if own else ""


def _start(span: Document) -> Any:
    return first(span, "startTimeUnixNano", "start_time", "startTime")


def _failed(span: Document) -> bool:
    status = first(span, "status_code", "status")
    if isinstance(status, Mapping):
        status = first(status, "status_code", "code")
    return str(status).upper() in {"ERROR", "STATUS_CODE_ERROR", "STATUSCODE.ERROR", "2"}


def _attributes(span: Document) -> dict[str, Any]:
    """Attributes under their full names, however they are nested; lists of objects get their numbers."""
    found = span.get("attributes")
    if isinstance(found, list):
        pairs = [mapping_of(pair, "An attribute") for pair in found]
        found = {text_of(pair.get("key")): _otlp_value(pair.get("value")) for pair in pairs}
    elif found is None:
        found = {
            name.removeprefix(_PREFIX): value for name, value in span.items() if name.startswith(_PREFIX)
        }
    flat: dict[str, Any] = {}
    _flatten("", mapping_of(found, "attributes"), flat)
    return flat


def _flatten(name: str, value: Any, flat: dict[str, Any], depth: int = 0) -> None:
    if depth > 20:
        raise UsageError("Attributes are nested too deeply.")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten(f"{name}.{key}" if name else str(key), inner, flat, depth + 1)
    elif isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
        for number, inner in enumerate(value):
            _flatten(f"{name}.{number}", inner, flat, depth + 1)
    elif value is not None:
        flat[name] = value


def _otlp_spans(document: Document) -> Iterator[Document]:
    for resource in _objects(document.get("resourceSpans")):
        for scope in _objects(first(resource, "scopeSpans", "instrumentationLibrarySpans")):
            yield from _objects(scope.get("spans"))


def _objects(value: Any) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise UsageError("Spans are no list.")
    return [mapping_of(entry, "A span") for entry in value]


def _otlp_value(value: Any, depth: int = 0) -> Any:
    """A value as the protocol wraps it: by its type, whole numbers as text."""
    if not isinstance(value, Mapping) or depth > 20:
        return None
    for name in ("stringValue", "boolValue", "doubleValue"):
        if name in value:
            return value[name]
    if "intValue" in value:
        number = number_of(value["intValue"])
        return None if number is None else int(number)
    if "arrayValue" in value:
        cells = mapping_of(value["arrayValue"], "arrayValue").get("values") or []
        return [_otlp_value(cell, depth + 1) for cell in cells]
    return None


def _request(attributes: Mapping[str, Any], kind: str, columns: tuple[str, ...]) -> Body | None:
    """Texts under the name of the only column, else of the attribute; and the count of their tokens."""
    texts = _embedded(attributes, "text") if kind == "EMBEDDING" else []
    if not texts:
        value = attributes.get("input.value")
        if (
            isinstance(value, str)
            and len(columns) > 1
            and attributes.get("input.mime_type") == "application/json"
        ):
            return Body(value, "application/json")
        text = value if isinstance(value, str) else _messages(attributes, "input")
        texts = [] if text is None else [text]
    if not texts:
        return None
    found: dict[str, list[Any]] = {columns[0] if len(columns) == 1 else "input.value": texts}
    tokens = number_of(attributes.get("llm.token_count.prompt"))
    if len(texts) == 1 and tokens is not None:
        found["llm.token_count.prompt"] = [int(tokens)]
    return Body({"inputs": found})


def _response(attributes: Mapping[str, Any], kind: str) -> Body | None:
    if kind == "EMBEDDING":
        vectors = _embedded(attributes, "vector")
        return Body({"predictions": {"embedding": vectors}}) if vectors else None
    value = attributes.get("output.value")
    text = value if isinstance(value, str) else _messages(attributes, "output")
    if text is None:
        return None
    found: dict[str, list[Any]] = {"output.value": [text]}
    tokens = number_of(attributes.get("llm.token_count.completion"))
    if tokens is not None:
        found["llm.token_count.completion"] = [int(tokens)]
    return Body({"predictions": found})


def _embedded(attributes: Mapping[str, Any], what: str) -> list[Any]:
    numbered = {
        int(match[1]): value
        for name, value in attributes.items()
        if (match := _EMBEDDING.fullmatch(name)) and match[2] == what
    }
    return [_plain(numbered[number]) for number in sorted(numbered)]


def _plain(value: Any) -> Any:
    """Numbers of a vector as floats, so that a whole one among them changes no type."""
    if not isinstance(value, list):
        return value
    return [float(cell) if type(cell) is int else cell if type(cell) is float else math.nan for cell in value]


def _messages(attributes: Mapping[str, Any], side: str) -> str | None:
    numbered = {
        int(match[2]): value
        for name, value in attributes.items()
        if (match := _MESSAGE.fullmatch(name)) and match[1] == side and isinstance(value, str)
    }
    return "\n".join(numbered[number] for number in sorted(numbered)) if numbered else None
