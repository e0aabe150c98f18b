"""Log lines on stderr: one JSON object each for machines, or a sentence with its time for people."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.text import printable

LogFormat = Literal["text", "json"]
_TRACEBACK = 16 * 1024  # characters; a message has fewer
_OURS = "mlx_platform"


class JsonLines(logging.Formatter):
    """Each record as an object with its moment in UTC and in local time; no foreign text breaks the line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": rfc3339(moment),
            "local_time": moment.astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
            "pid": record.process,
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line["fields"] = {str(key): _plain(value) for key, value in fields.items()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-_TRACEBACK:]
        return json.dumps(line, ensure_ascii=True)


class PlainLines(logging.Formatter):
    """The moment in both zones, the level and the message; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        message = printable(record.getMessage(), 4096)
        line = f"{both_zones(moment)} {record.levelname.lower()}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@contextmanager
def log_lines(style: LogFormat) -> Iterator[None]:
    """Write the log of this process to stderr while it lasts; JSON has also what is no warning.

    Python's own warnings are log lines as well then, so that nothing else stands between the objects.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else PlainLines())
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    level = ours.level
    root.addHandler(handler)
    if style == "json":
        ours.setLevel(logging.INFO)
        logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        if style == "json":
            logging.captureWarnings(capture=False)
            ours.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool) or value is None else printable(str(value))
