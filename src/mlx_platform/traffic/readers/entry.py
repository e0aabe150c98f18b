"""What the parser of a format makes of its rows, before any body is looked into."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

Document = Mapping[str, Any]
"""A JSON object, or a row of a table by column."""
Half = Literal["both", "request", "response"]


@dataclass(frozen=True, slots=True)
class Body:
    """A payload as it was logged: bytes, text, or JSON that has been parsed already."""

    content: Any
    content_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A request, its answer, or both.

    Attributes:
        key: what makes the entry the same as another one that was delivered again.
        half: which sides the log keeps of this request; `request` or `response` alone are counted unpaired.
        request_id: as the caller knows it.
        time: with a zone; None in formats that keep no time of day.
        origin: who answered, in the words of the log.
        request: its body; None when it was not logged, or too large.
        response: the same.
        status: of the answer.
        sampling: the share of requests that were logged.
        latency_ms: how long the answer took; None when the log does not say.
        truncated: a body was too large for the log.
        error: what the log says went wrong.
        repeated: this very half was delivered before.
    """

    key: str
    half: Half = "both"
    request_id: str = ""
    time: datetime | None = None
    origin: str = ""
    request: Body | None = None
    response: Body | None = None
    status: int = 200
    sampling: float = 1.0
    latency_ms: float | None = None
    truncated: bool = False
    error: str = ""
    repeated: bool = False


class Reader(Protocol):
    """Makes entries of documents; keeps what belongs to documents that have not come yet."""

    def read(self, document: Document, source: str) -> Iterator[Entry | None]:
        """The entries that a document completes; None for each part of it that is no request to a model.

        Raises:
            UsageError: the document is not one of the format.
        """
        ...

    def finish(self) -> Iterator[Entry]:
        """What is left when the log has ended."""
        ...
