"""What GitHub Actions reads of a command: annotations, the summary of the step, and the step's outputs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Check, Verdict, worst_first
from mlx_platform.workflows.reports.junit import message_of
from mlx_platform.workflows.reports.markdown import markdown_summary

_SHOWN = 10  # annotations of a kind that a step shows; the rest would be dropped without a word
_SUMMARY_BYTES = 1024 * 1024  # of a step; a larger summary is refused as a whole
_LONGEST = 2000


def annotations(result: Result, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Workflow commands that put what did not pass beside the line that asked for it, worst first."""
    checks = worst_first(result.report.checks)
    errors = [check for check in checks if not check.skipped and check.verdict is not Verdict.PASS]
    warned = [check for check in checks if check.skipped and check.verdict in (Verdict.FAIL, Verdict.ERROR)]
    root = environment.get("GITHUB_WORKSPACE", "")
    return (*_commands("error", errors, root), *_commands("warning", warned, root))


def _commands(kind: str, checks: Sequence[Check], root: str) -> list[str]:
    shown = checks if len(checks) <= _SHOWN else checks[: _SHOWN - 1]
    lines = [_command(kind, check, root) for check in shown]
    if len(checks) > len(shown):
        more = plural(len(checks) - len(shown), "check")
        lines.append(f"::{kind} title=and more::and {more} more; the report and the summary have them")
    return lines


def _command(kind: str, check: Check, root: str) -> str:
    place = {"file": _in_repository(check.file, root)} if check.file else {}
    if place and check.line:
        place["line"] = str(check.line)
    fields = {**place, "title": check.title}
    text = ",".join(f"{name}={_property(value)}" for name, value in fields.items())
    return f"::{kind} {text}::{_message(message_of(check))}"


def _in_repository(file: str, root: str) -> str:
    """The file as seen from the root of the repository, where it lies within."""
    whole = Path(file).resolve()
    return str(whole.relative_to(root)) if root and whole.is_relative_to(root) else file


def _message(text: str) -> str:
    return printable(text, limit=_LONGEST).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def write_summary(result: Result, target: Path) -> None:
    """Append to the summary of the step what still fits.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        used = target.stat().st_size if target.exists() else 0
        with target.open("a", encoding="utf-8") as file:
            file.write(markdown_summary(result, room=_SUMMARY_BYTES - used))
    except OSError as error:
        raise UsageError(f"Cannot write the step summary {target}: {error.strerror}.") from error


def write_outputs(result: Result, target: Path) -> None:
    """Append `pass` and `verdict` to the outputs of the step.

    Raises:
        UsageError: the file cannot be written.
    """
    passed = "true" if result.exit_code == 0 else "false"
    try:
        with target.open("a", encoding="utf-8") as file:
            file.write(f"pass={passed}\nverdict={result.verdict}\n")
    except OSError as error:
        raise UsageError(f"Cannot write the step's outputs {target}: {error.strerror}.") from error
