"""`POST /feedback`: what became of requests; counted for the rollout that goes on, and kept in files."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from mlx_platform.core.clock import Clock, system_clock
from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import FeedbackSettings, ServingSettings
from mlx_platform.core.text import first_line
from mlx_platform.serving.json_body import count_marks, load_object, refuse_repeated_names
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.refusal import Refusal, malformed, queue_full
from mlx_platform.serving.rollout.outcomes import FATES
from mlx_platform.traffic.feedback import MOST_OUTCOMES, Feedback, FeedbackWriter

_MEMBERS = frozenset(("feedback", "source"))
_MOST_WAITING = 16  # requests whose entries are being written
_ENTRY_MARKS = {b"{": 2, b":": 6 + MOST_OUTCOMES, b"[": 1}  # that one entry can have; `[` only the whole
_logger = logging.getLogger(__name__)


class Counts(Protocol):
    """Whoever counts what is told."""

    def take(self, entry: Feedback) -> str:
        """Count an entry; what became of it, one of `FATES`."""


class FeedbackDesk:
    """Takes feedback in; lives on the event loop.

    Args:
        counts: of the rollout that goes on.
        writer: of the files beside the traffic log; None keeps nothing.
        settings: how much is taken at once.
        clock: for entries that name no time.
    """

    def __init__(
        self,
        counts: Counts,
        writer: FeedbackWriter | None,
        settings: FeedbackSettings,
        clock: Clock = system_clock,
    ) -> None:
        self.kept = 0
        self.lost = 0
        self._counts = counts
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._waiting = 0
        self._trouble = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlx-feedback")

    @classmethod
    def of(cls, settings: ServingSettings, counts: Counts) -> "FeedbackDesk":
        """The desk of a server, which keeps what it is told beside its traffic log, if it has one."""
        folder = settings.traffic
        disk_bytes = settings.feedback.disk_bytes
        writer = FeedbackWriter(Path(folder), disk_bytes=disk_bytes) if folder else None
        return cls(counts, writer, settings.feedback)

    async def take(self, body: bytes) -> dict[str, Any]:
        """Keep and count the entries of a request; what became of them.

        Raises:
            Refusal: 400, 413; nothing of it was taken. 429; too much is being written.
        """
        entries = parse_feedback(body, self._settings, self._clock)
        if self._waiting >= _MOST_WAITING:
            raise queue_full(1)
        kept = await self._keep(entries)
        fates = Counter(map(self._counts.take, entries))
        return {
            "received": len(entries),
            "kept": len(entries) if kept else 0,
            "fates": {fate: fates[fate] for fate in FATES},
        }

    def samples(self) -> Iterator[Sample]:
        """What was written, and what was not."""
        yield Sample("mlx_feedback_kept", "Entries of feedback that were written.", self.kept)
        yield Sample("mlx_feedback_lost", "Entries that could not be written.", self.lost)

    def close(self) -> None:
        """Write what waits, and let go of the file."""
        self._thread.shutdown(wait=True)
        if self._writer is not None:
            self._writer.close()

    async def _keep(self, entries: list[Feedback]) -> bool:
        if self._writer is None:
            return False
        self._waiting += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.append, entries)
        except (OSError, RuntimeError) as error:  # a full disk, or the server is shutting down
            self.lost += len(entries)
            if not self._trouble:
                _logger.warning("Feedback is not being kept: %s", first_line(error))
            self._trouble = first_line(error)
            return False
        finally:
            self._waiting -= 1
        self.kept += len(entries)
        if self._trouble:
            _logger.warning("Feedback is kept again.")
        self._trouble = ""
        return True


def parse_feedback(body: bytes, settings: FeedbackSettings, clock: Clock = system_clock) -> list[Feedback]:
    """Read the body of a request, all of it or nothing.

    Raises:
        Refusal: 413; it is too long. 400; it is not what the route takes, and which entry is not.
    """
    if len(body) > settings.max_body_bytes:
        raise Refusal(413, f"Feedback takes at most {settings.max_body_bytes:,} bytes.")
    _check_marks(body, settings.max_entries)
    document = load_object(body)
    entries = document.get("feedback")
    if type(entries) is list and len(entries) > settings.max_entries:
        raise malformed(f"Feedback takes at most {settings.max_entries:,} entries.")
    refuse_repeated_names(body, document)
    if type(entries) is not list or not entries or not document.keys() <= _MEMBERS:
        raise malformed(
            "The body takes feedback, a list of entries, and if you like a source of all of them."
        )
    source = _source(document)
    now = clock()
    return [_entry(index, entry, source, now) for index, entry in enumerate(entries)]


def _check_marks(body: bytes, entries: int) -> None:
    """Refuse at the speed of a byte search what would take long to parse and is then refused."""
    for mark, each in _ENTRY_MARKS.items():
        limit = 2 + each * (entries if mark != b"[" else 1) + 1000
        if body.count(mark) > limit and count_marks(body, mark) > limit:
            raise malformed(f"The body holds more than {entries:,} entries of feedback can.")


def _source(document: dict[str, Any]) -> str:
    if "source" not in document:
        return ""
    try:
        return Feedback.source_of(document["source"])
    except UsageError as error:
        raise malformed(error.message) from error


def _entry(index: int, document: Any, source: str, now: datetime) -> Feedback:
    try:
        return Feedback.of(document, now=now, source=source)
    except UsageError as error:
        raise malformed(f"Entry {index}: {error.message}") from error
