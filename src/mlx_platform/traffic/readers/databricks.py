"""Databricks' inference tables, in the three forms they have had; a batch of rows is one row of the table.

https://docs.databricks.com/aws/en/machine-learning/model-serving/inference-tables (the first form),
https://docs.databricks.com/aws/en/ai-gateway/inference-tables (the second); the third renames columns.
"""

from collections.abc import Iterator
from datetime import tzinfo
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.entry import Body, Document, Entry
from mlx_platform.traffic.readers.fields import (
    first,
    mapping_of,
    moment_of,
    number_of,
    status_of,
    text_of,
)

_IDS = ("databricks_request_id", "invocation_id")
_TIMES = ("event_time", "request_time", "timestamp_ms")
_LATENCIES = ("latency_ms", "execution_duration_ms", "execution_time_ms")
_TOO_LARGE = "SIZE_EXCEEDED"


def matches(document: Document) -> bool:
    return (
        any(name in document for name in _IDS)
        and any(name in document for name in _TIMES)
        and "request" in document
        and "response" in document
    )


class DatabricksReader:
    """Each row stands for itself; a payload that is null was too large for the table."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone

    def read(self, document: Document, source: str) -> Iterator[Entry]:
        del source
        key = text_of(first(document, *_IDS))
        if not key:
            raise UsageError("A row of an inference table has no request id.")
        status = status_of(document.get("status_code"))
        codes = [str(code) for code in _listed(document.get("logging_error_codes"))]
        request, response = _body(document.get("request")), _body(document.get("response"))
        failed = status != 200
        yield Entry(
            key=key,
            request_id=text_of(document.get("client_request_id")) or key,
            time=moment_of(first(document, *_TIMES), self._zone),
            origin=_origin(document),
            request=request,
            response=response,
            status=status,
            sampling=_sampling(document.get("sampling_fraction")),
            latency_ms=number_of(first(document, *_LATENCIES)),
            truncated=any(_TOO_LARGE in code for code in codes)
            or request is None
            or (response is None and not failed),
            error=", ".join(codes),
        )

    def finish(self) -> Iterator[Entry]:
        return iter(())


def _body(value: Any) -> Body | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str | bytes | dict | list):
        raise UsageError("A payload of an inference table is no text.")
    return Body(value, "application/json")


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _sampling(value: Any) -> float:
    if value is None:
        return 1.0
    share = number_of(value)
    if share is None or not 0 < share <= 1:
        raise UsageError("A sampling fraction is no number above 0 and up to 1.")
    return share


def _origin(document: Document) -> str:
    served = text_of(document.get("served_entity_id"))
    if served:
        return served
    metadata = mapping_of(document.get("request_metadata"), "request_metadata")
    parts = (text_of(metadata.get("model_name")), text_of(metadata.get("model_version")))
    return "/".join(part for part in parts if part)
