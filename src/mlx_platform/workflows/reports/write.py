"""Where a result's files go: a report folder for people and machines, and a JUnit file for CI."""

import os
from pathlib import Path

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.report import Result
from mlx_platform.workflows.reports.html import html_page
from mlx_platform.workflows.reports.junit import junit_xml
from mlx_platform.workflows.reports.markdown import markdown_summary


def write_reports(
    result: Result, *, report: Path | None = None, junit: Path | None = None
) -> tuple[Path, ...]:
    """Write what was asked for and return the paths.

    Args:
        result: what the command found out.
        report: a folder that gets `report.html`, `report.json` and `junit.xml`.
        junit: a file for the JUnit XML alone.

    In GitHub Actions the Markdown summary is appended to the step summary as well.

    Raises:
        UsageError: a path cannot be written.
    """
    files: dict[Path, str | bytes] = {}
    if report:
        if report.exists() and not report.is_dir():
            raise UsageError(f"{report} is a file; --report takes a folder.")
        files[report / "report.html"] = html_page(result)
        files[report / "report.json"] = orjson.dumps(result.document(), option=orjson.OPT_INDENT_2)
        files[report / "junit.xml"] = junit_xml(result)
    if junit:
        files[junit] = junit_xml(result)
    for path, content in files.items():
        write_atomic(path, content)
    _append_step_summary(result)
    return tuple(files)


def _append_step_summary(result: Result) -> None:
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target and result.verdict:
        try:
            with Path(target).open("a", encoding="utf-8") as file:
                file.write(markdown_summary(result))
        except OSError as error:
            raise UsageError(f"Cannot write the step summary {target}: {error.strerror}.") from error
