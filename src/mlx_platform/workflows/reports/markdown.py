"""A short Markdown summary for pull requests and CI step summaries."""

from collections.abc import Iterable, Sequence

from mlx_platform.core.report import Result, Table
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict, worst_first

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.UNDECIDED: "❔", Verdict.ERROR: "⚠️"}
_ROWS = 100
_FEW = 12  # checks that are all shown
_FEWER = (_ROWS, 20, 5, 0)


def markdown_summary(result: Result, *, room: int | None = None) -> str:
    """The title, the sentence, the checks, worst first, what is noteworthy, and what to do next.

    Args:
        result: what the command found out.
        room: how many bytes it may take; tables give way first, and where not even the title fits, nothing
            is left.
    """
    for most in _FEWER:
        text = _page(result, most)
        if room is None or len(text.encode()) <= room:
            return text
    head = _head(result)
    return head if len(head.encode()) <= (room or 0) else ""


def _page(result: Result, most: int) -> str:
    report = result.report
    parts = [_head(result)]
    if report.facts:
        parts.append("".join(f"- {_cell(fact.label)}: {_cell(fact.value)}\n" for fact in report.facts))
    parts += [f"> ⚠️ {_cell(warning)}\n" for warning in result.warnings[: max(most, 1)]]
    if report.checks and most:
        parts.append(_checks(report.checks, most))
    for section in (*report.sections, *report.brief):
        if isinstance(section, Table) and most:
            rows = [[str(cell) for cell in row] for row in section.rows]
            parts.append(
                f"**{_cell(section.title)}**\n\n{_table(section.columns, rows, most, section.numeric)}"
            )
    if report.next_steps and most:
        parts.append("Next:\n\n" + "".join(f"    {printable(step)}\n" for step in report.next_steps))
    return "\n".join(parts) + "\n"


def _head(result: Result) -> str:
    mark = f"{_MARKS[result.verdict]} " if result.verdict else ""
    return f"### {mark}{_cell(result.report.title)}\n\n{_cell(result.report.summary)}\n"


def _checks(checks: Sequence[Check], most: int) -> str:
    ranked = worst_first(checks)
    if len(checks) > _FEW:
        # Of many slices only those are shown that give trouble.
        ranked = tuple(
            check
            for check in ranked
            if not check.part or not (check.skipped or check.verdict is Verdict.PASS)
        )
    rows = [
        [
            f"{check.name} [{check.part}]" if check.part else check.name,
            "skipped" if check.skipped else f"{_MARKS[check.verdict]} {check.verdict}",
            check.measured,
            check.threshold,
            check.skipped or check.message,
        ]
        for check in ranked
    ]
    return _table(("check", "verdict", "measured", "threshold", ""), rows, most, of=len(checks))


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    most: int,
    numeric: Sequence[int] = (),
    of: int | None = None,
) -> str:
    rule = "|".join("--:" if index in numeric else "---" for index in range(len(columns)))
    lines = [_row(columns), f"|{rule}|", *(_row(row) for row in rows[:most])]
    more = (len(rows) if of is None else of) - min(len(rows), most)
    if more:
        lines.append(_row([f"and {more:,} more", *[""] * (len(columns) - 1)]))
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "".join(f"| {_cell(cell)} " for cell in cells) + "|"


def _cell(text: str) -> str:
    safe = printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("&", "&amp;")
    for mark in "`*_~[@#":
        safe = safe.replace(mark, f"\\{mark}")
    return safe.replace("<", "&lt;").replace("://", ":\u200b//")
