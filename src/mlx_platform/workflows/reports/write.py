"""Where a result's files go: a report folder for people and machines, and files for CI.

What the command found out outranks a file that cannot be written: every writer gets its turn, a failure
becomes a warning, and only a pass loses its exit code, because a report that was asked for is missing.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import orjson

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.report import Result
from mlx_platform.core.text import first_line
from mlx_platform.workflows.reports.github import write_outputs, write_summary
from mlx_platform.workflows.reports.html import html_page
from mlx_platform.workflows.reports.junit import junit_xml
from mlx_platform.workflows.reports.metrics_text import metrics_text

Writer = Callable[[], None]


def check_targets(
    *,
    report: Path | None = None,
    junit: Path | None = None,
    metrics: Path | None = None,
    metrics_flag: str = "--gitlab-metrics",
) -> None:
    """Refuse places that can hold no report, before anything is worked out for nothing.

    Raises:
        UsageError: a folder is asked for where a file is, or the other way round.
    """
    if report and report.exists() and not report.is_dir():
        raise UsageError(f"{report} is a file; --report takes a folder.")
    for path, flag in ((junit, "--junit"), (metrics, metrics_flag)):
        if path and path.is_dir():
            raise UsageError(f"{path} is a folder; {flag} takes a file.")


def write_reports(
    result: Result, *, report: Path | None = None, junit: Path | None = None, metrics: Path | None = None
) -> Result:
    """Write what was asked for.

    Args:
        result: what the command found out.
        report: a folder that gets `report.html`, `report.json` and `junit.xml`.
        junit: a file for the JUnit XML alone.
        metrics: a file for the numbers as OpenMetrics text.

    In GitHub Actions the step's summary and outputs are appended to as well.

    Returns:
        The result, with a warning for each file that could not be written; a pass then has the exit code of
        the failure.
    """
    for writer in _writers(result, report, junit, metrics):
        result = attempt(result, writer)
    # Last, so that they say how the others went.
    if report:
        content = orjson.dumps(result.document(), option=orjson.OPT_INDENT_2)
        result = attempt(result, lambda: write_atomic(report / "report.json", content))
    outputs = os.environ.get("GITHUB_OUTPUT")
    if outputs and result.verdict:
        known = result
        result = attempt(result, lambda: write_outputs(known, Path(outputs)))
    return result


def _writers(
    result: Result, report: Path | None, junit: Path | None, metrics: Path | None
) -> Iterable[Writer]:
    if report:
        yield lambda: write_atomic(report / "report.html", html_page(result))
        yield lambda: write_atomic(report / "junit.xml", junit_xml(result))
    if junit:
        yield lambda: write_atomic(junit, junit_xml(result))
    if metrics:
        yield lambda: write_atomic(metrics, metrics_text(result.report.gauges))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and result.verdict:
        yield lambda: write_summary(result, Path(summary))


def attempt(result: Result, writer: Writer) -> Result:
    """Write something; the result then says what could not be written, and a pass has its exit code."""
    try:
        writer()
    except MlxError as error:
        return _missing(result, error.message, error.exit_code)
    except Exception as error:  # noqa: BLE001 - whatever breaks while drawing, the verdict must be told
        message = f"A report could not be written: {type(error).__name__}: {first_line(error)}."
        return _missing(result, message, MlxError.exit_code)
    return result


def _missing(result: Result, message: str, code: int) -> Result:
    return replace(result, warnings=(*result.warnings, message), code=result.exit_code or code)
