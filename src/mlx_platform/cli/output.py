"""The only place that prints: results on stdout, everything else on stderr."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mlx_platform.core.errors import MlxError
from mlx_platform.core.progress import Advance, Progress, Silent
from mlx_platform.core.text import printable

if TYPE_CHECKING:
    from mlx_platform.cli.page import Page
    from mlx_platform.core.report import Result


class Output:
    """Prints one result, as a document for machines or as a page for people."""

    def __init__(self, *, json: bool, quiet: bool, no_color: bool) -> None:
        self._json = json
        self._quiet = quiet
        self._no_color = no_color or bool(os.environ.get("NO_COLOR"))
        self._document_printed = False
        self._lasting = ExitStack()
        self.logs_json = False
        """Whether stderr has JSON lines only, as long as the log is written."""

    @property
    def wants_json(self) -> bool:
        return self._json

    def log(self, style: Literal["text", "json"]) -> None:
        """Write the log of this process to stderr until `close`; in JSON, notices are lines of it as well."""
        from mlx_platform.core.logs import log_lines

        self._lasting.enter_context(log_lines(style))
        self.logs_json = style == "json"

    def close(self) -> None:
        """End what lasts longer than one call."""
        self.logs_json = False
        self._lasting.close()

    def render(self, result: "Result") -> None:
        """Print a command's result; a sentence on stderr where its document was printed before."""
        for warning in result.warnings:
            self.notice(f"warning: {warning}", warns=True)
        if in_actions() and result.verdict:
            self._annotate(result)
        if self._json:
            if self._document_printed:
                self.notice(result.report.summary)
            else:
                self.document(result.document())
        elif result.report.lines:
            for line in result.report.lines:
                print_line(printable(line, limit=100_000))
        elif self._quiet:
            print_line(result.report.summary)
        else:
            print_line(self._page().draw(result))

    def drawn(self, result: "Result") -> str:
        """A result as a page for people, its warnings above it."""
        warnings = [_inert(printable(f"warning: {warning}", limit=4096)) for warning in result.warnings]
        return "\n".join((*warnings, self._page().draw(result)))

    def document(self, document: dict[str, Any]) -> None:
        """Print the one JSON document of this command."""
        self._document_printed = True
        print_line(to_json(document))

    def notice(self, text: str, facts: Mapping[str, Any] | None = None, *, warns: bool = False) -> None:
        """Tell people something beside the result; `facts` say the same to machines that read the log."""
        if self.logs_json:
            import logging

            level = logging.WARNING if warns else logging.INFO
            logging.getLogger(__name__).log(level, text, extra={"fields": dict(facts or {})})
            return
        sys.stderr.write(_inert(printable(text, limit=4096)) + "\n")
        sys.stderr.flush()

    def progress(self) -> Progress:
        """A progress display on a terminal, silence elsewhere."""
        if self._quiet or not sys.stderr.isatty():
            return Silent()
        return _TerminalProgress(no_color=self._no_color)

    def _annotate(self, result: "Result") -> None:
        from mlx_platform.workflows.reports.github import annotations

        # The runner looks for commands on stderr as well, and stdout may hold a document.
        for line in annotations(result):
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def _page(self) -> "Page":
        from mlx_platform.cli.page import Page

        terminal = sys.stdout.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
        colour = (terminal or bool(os.environ.get("FORCE_COLOR"))) and not self._no_color
        return Page(shutil.get_terminal_size().columns if sys.stdout.isatty() else None, colour)


class _TerminalProgress:
    def __init__(self, *, no_color: bool) -> None:
        self._no_color = no_color

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True, no_color=self._no_color)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(name, total=total, left="" if total is None else "left")
            yield lambda units: progress.advance(task, units)


def in_actions() -> bool:
    """Whether a runner of GitHub Actions, or of something like it, reads what is printed."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


_COMMAND = re.compile(r"^(\s*)::", re.MULTILINE)


def _inert(text: str) -> str:
    """The text without what a runner would take for a command; foreign words may start a line.

    No line of a JSON document starts with colons, and a hash in one may be written as its code.
    """
    if not in_actions():
        return text
    return _COMMAND.sub("\\1:\u200b:", text).replace("##[", "\\u0023#[")


def print_line(text: str) -> None:
    """Print to stdout and flush, so that a pipe that is gone is noticed here."""
    sys.stdout.write(_inert(text) + "\n")
    sys.stdout.flush()


def to_json(document: dict[str, Any]) -> str:
    """One JSON document; NaN and infinity, which JSON has not, become null."""
    try:
        return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document), indent=2, ensure_ascii=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124 - NaN
        return None
    return value


def error_document(error: MlxError, command: str) -> dict[str, Any]:
    """The JSON document of a command that ended with an error."""
    from mlx_platform.core.report import SCHEMA

    return {
        "schema": SCHEMA,
        "command": command,
        "verdict": "error",
        "exit_code": error.exit_code,
        "data": None,
        "warnings": [],
        "error": {"code": error.code, "message": error.message, "hint": error.hint, **error.details},
    }


def print_error(error: MlxError) -> None:
    """One sentence on stderr, and the next step when there is one."""
    sys.stderr.write(f"error: {printable(error.message, limit=4096)}\n")
    for line in (*error.details.get("excerpt", ()), *error.details.get("problems", ())):
        sys.stderr.write(_inert(f"       {printable(line)}") + "\n")
    if error.hint:
        sys.stderr.write(f"       {printable(error.hint, limit=4096)}\n")
