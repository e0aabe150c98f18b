"""A result drawn on a terminal. Foreign text is shown as it is: no markup, no control characters."""

from typing import Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text as RichText

from mlx_platform.core.report import Bars, Lines, Matrix, Result, Section, Table, Text
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict

_STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.ERROR: "magenta",
}
_BARS = "▁▂▃▄▅▆▇█"
_MOST_CHECKS = 12  # a terminal page stays short; those that did not pass come first


def draw_page(console: Console, result: Result) -> None:
    """Print the sentence, the facts, the sections, the checks and what to do next."""
    report = result.report
    head = RichText()
    if result.verdict:
        head.append(f"{result.verdict.upper()} ", style=_STYLES[result.verdict])
    head.append(printable(report.summary, limit=4096))
    parts: list[RenderableType] = [head]
    if report.facts:
        parts.append(_facts(result))
    parts += [_section(section) for section in report.sections]
    if len(report.checks) > _MOST_CHECKS and report.sections:
        # The sections say it shorter already.
        parts.append(RichText(f" {len(report.checks)} checks; --report and --json have them all"))
    elif report.checks:
        parts.append(_checks(report.checks))
    if report.next_steps:
        parts.append(RichText("\nNext:", style="bold"))
        parts += [RichText(f"  {printable(step, limit=4096)}") for step in report.next_steps]
    console.print(Group(*parts), soft_wrap=False)


def _facts(result: Result) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for fact in result.report.facts:
        grid.add_row(RichText(f"  {printable(fact.label)}"), RichText(printable(fact.value, limit=4096)))
    return grid


def _titled(title: str, table: RichTable) -> RenderableType:
    # Not the table's own title, which Rich would wrap to the width of a narrow table.
    return Group(RichText(f"\n{printable(title)}", style="bold"), table) if title else table


def _table(columns: tuple[str, ...], numeric: tuple[int, ...] = ()) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify: Literal["right", "left"] = "right" if index in numeric else "left"
        table.add_column(RichText(printable(column)), justify=justify, overflow="fold")
    return table


def _cell(cell: str | Verdict) -> RichText:
    if isinstance(cell, Verdict):
        return RichText(str(cell), style=_STYLES[cell])
    return RichText(printable(cell, limit=4096))


def _section(section: Section) -> RenderableType:
    match section:
        case Table():
            table = _table(section.columns, section.numeric)
            for row in section.rows:
                table.add_row(*(_cell(cell) for cell in row))
            return _titled(section.title, table)
        case Bars() | Lines():
            return _sparklines(section)
        case Matrix():
            numeric = tuple(range(1, len(section.columns) + 1))
            table = _table(("", *section.columns), numeric)
            for name, values in zip(section.rows, section.values, strict=True):
                table.add_row(RichText(printable(name)), *(RichText(str(value)) for value in values))
            return _titled(section.title, table)
        case Text():
            lines = [RichText(f"  {printable(line, limit=4096)}") for line in section.body.splitlines()]
            return Group(RichText(printable(section.title), style="bold"), *lines)


def _sparklines(section: Bars | Lines) -> RenderableType:
    table = _table(("", ""))
    highest = max((value for series in section.series for value in series.values), default=0.0) or 1.0
    for series in section.series:
        marks = (_mark(value / highest) for value in series.values)
        table.add_row(RichText(printable(series.name)), RichText("".join(marks)))
    return _titled(section.title, table)


def _mark(share: float) -> str:
    if not 0 <= share <= 1:
        return " "
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]


def _checks(checks: tuple[Check, ...]) -> RenderableType:
    table = _table(("check", "verdict", "measured", "threshold", ""))
    ranked = (
        sorted(checks, key=lambda check: check.verdict is Verdict.PASS)
        if len(checks) > _MOST_CHECKS
        else checks
    )
    for check in ranked[:_MOST_CHECKS]:
        verdict: str | Verdict = "skipped" if check.skipped else check.verdict
        cells = (check.name, verdict, check.measured, check.threshold, check.skipped or check.message)
        table.add_row(*(_cell(cell) for cell in cells))
    rest = len(checks) - _MOST_CHECKS
    return Group(table, RichText(f" and {rest} more; --report and --json have all")) if rest > 0 else table
