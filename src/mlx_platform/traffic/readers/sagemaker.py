"""Amazon SageMaker's data capture: one JSON line for each call of an endpoint.

https://docs.aws.amazon.com/sagemaker/latest/dg/model-monitor-data-capture.html
"""

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.entry import Body, Document, Entry
from mlx_platform.traffic.readers.fields import mapping_of, moment_of, text_of

_HOUR = re.compile(r"/([0-9]{4}/[0-9]{2}/[0-9]{2}/[0-9]{2})/[^/]+$")


def matches(document: Document) -> bool:
    return "captureData" in document and "eventMetadata" in document


def hour_of(path: Path) -> datetime | None:
    """The hour (UTC) that the folders of a file name, as `ENDPOINT/VARIANT/2026/03/08/06/`; None without."""
    named = _HOUR.search(path.as_posix())
    try:
        return datetime.strptime(named[1], "%Y/%m/%d/%H").replace(tzinfo=UTC) if named else None
    except ValueError:
        return None


class SageMakerReader:
    """Each line stands for itself; either side may have been left out by the capture's options."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone

    def read(self, document: Document, source: str) -> Iterator[Entry]:
        del source
        captured = mapping_of(document.get("captureData"), "captureData")
        event = mapping_of(document.get("eventMetadata"), "eventMetadata")
        key = text_of(event.get("eventId"))
        if not key:
            raise UsageError("A captured call has no eventId.")
        request = _body(mapping_of(captured.get("endpointInput"), "endpointInput"))
        response = _body(mapping_of(captured.get("endpointOutput"), "endpointOutput"))
        if request is None and response is None:
            raise UsageError("A captured call has neither input nor output.")
        yield Entry(
            key=key,
            half="both" if request and response else "request" if request else "response",
            request_id=text_of(event.get("inferenceId")) or key,
            time=moment_of(event.get("inferenceTime"), self._zone),
            request=request,
            response=response,
        )

    def finish(self) -> Iterator[Entry]:
        return iter(())


def _body(side: Document) -> Body | None:
    if side.get("data") is None:
        return None
    data = side["data"]
    if not isinstance(data, str):
        raise UsageError("Captured data are no text.")
    encoding, kind = text_of(side.get("encoding")).upper(), text_of(side.get("observedContentType"))
    match encoding:
        case "BASE64":
            try:
                return Body(base64.b64decode(data, validate=True), kind)
            except (binascii.Error, ValueError) as error:
                raise UsageError("Captured data are no base64.") from error
        case "CSV":
            return Body(data, "text/csv")
        case "JSON":
            return Body(data, kind if "json" in kind.lower() else "application/json")
        case _:
            raise UsageError("Captured data have an encoding that is not known.")
