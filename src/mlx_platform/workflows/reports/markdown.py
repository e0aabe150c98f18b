"""A short Markdown summary for pull requests and CI step summaries."""

from mlx_platform.core.report import Result
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.UNDECIDED: "❔", Verdict.ERROR: "⚠️"}
_ROWS = 100  # step summaries are capped at 1 MiB


def markdown_summary(result: Result) -> str:
    """The title, the sentence, and a table of the checks, worst first."""
    report = result.report
    mark = f"{_MARKS[result.verdict]} " if result.verdict else ""
    lines = [f"### {mark}{_cell(report.title)}", "", _cell(report.summary), ""]
    if report.checks:
        lines += ["| check | verdict | measured | threshold |", "|---|---|---|---|"]
        ranked = sorted(report.checks, key=lambda check: check.verdict is Verdict.PASS)
        lines += [_row(check) for check in ranked[:_ROWS]]
        if len(ranked) > _ROWS:
            lines.append(f"| and {len(ranked) - _ROWS} more | | | |")
        lines.append("")
    return "\n".join(lines) + "\n"


def _row(check: Check) -> str:
    verdict = "skipped" if check.skipped else f"{_MARKS[check.verdict]} {check.verdict}"
    return f"| {_cell(check.name)} | {verdict} | {_cell(check.measured)} | {_cell(check.threshold)} |"


def _cell(text: str) -> str:
    safe = printable(text).replace("\\", "\\\\").replace("|", "\\|")
    return safe.replace("<", "&lt;").replace("[", "\\[").replace("`", "\\`")
