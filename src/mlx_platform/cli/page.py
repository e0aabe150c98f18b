"""A result drawn on a terminal or into a pipe. Foreign text is shown as it is: no control characters.

It is drawn by hand, because the library for it takes longer to load than most commands run.
"""

import re
import unicodedata
from collections.abc import Sequence

from mlx_platform.core.report import Bars, Lines, Matrix, Result, Section, Table, Text
from mlx_platform.core.text import printable, spark
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Check, Verdict, worst_first

_STYLES = {
    Verdict.PASS: "32",  # green
    Verdict.FAIL: "1;31",  # bold red
    Verdict.UNDECIDED: "33",  # yellow
    Verdict.ERROR: "35",  # magenta
}
_EMPTY_LINES = re.compile(r"\n{3,}")
_BOLD, _DIM = "1", "2"
_GAP = "   "
_NARROWEST = 4  # columns that a cell keeps when a table is too wide for the terminal
_LONGEST = 4096  # characters of a foreign text
_MOST_CHECKS = 12  # a terminal page stays short; those that did not pass come first


@frozen
class Page:
    """Draws results for a terminal of `width` columns (None: nobody watches, lines are never broken)."""

    width: int | None = None
    colour: bool = False

    def draw(self, result: Result) -> str:
        """The sentence, the facts, the sections, the checks and what to do next."""
        report = result.report
        head = _shown(report.summary)
        if result.verdict:
            head = f"{self._styled(result.verdict.upper(), _STYLES[result.verdict])} {head}"
        parts = [head]
        if report.facts:
            parts.append(self._facts(result))
        parts += [self._section(section) for section in (*report.sections, *report.brief)]
        if len(report.checks) > _MOST_CHECKS and report.sections:
            # The sections say it shorter already.
            parts.append(f" {len(report.checks)} checks; --report and --json have them all")
        elif report.checks:
            parts.append(self._checks(report.checks))
        if report.next_steps:
            steps = (f"  {_shown(step)}" for step in report.next_steps)
            parts += ["", self._styled("Next:", _BOLD), *steps]
        return _EMPTY_LINES.sub("\n\n", "\n".join(parts))

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style and text.strip() else text

    def _facts(self, result: Result) -> str:
        facts = [(_shown(fact.label), _shown(fact.value)) for fact in result.report.facts]
        label_width = max(_columns(label) for label, _ in facts)
        room = None if self.width is None else max(_NARROWEST, self.width - label_width - 4)
        lines = []
        for label, value in facts:
            head = f"  {self._styled(label, _DIM)}{' ' * (label_width - _columns(label))}"
            for index, line in enumerate(_folded(value, room)):
                lines.append(f"{head if index == 0 else ' ' * (label_width + 2)}  {line}".rstrip())
        return "\n".join(lines)

    def _section(self, section: Section) -> str:
        match section:
            case Table():
                return self._titled(
                    section.title, self._table(section.columns, section.rows, section.numeric)
                )
            case Bars() | Lines():
                highest = max((value for one in section.series for value in one.values), default=0.0) or 1.0
                rows = [
                    (series.name, spark(value / highest for value in series.values))
                    for series in section.series
                ]
                return self._titled(section.title, self._table(("", ""), rows))
            case Matrix():
                counts = [
                    (name, *map(str, values))
                    for name, values in zip(section.rows, section.values, strict=True)
                ]
                numeric = tuple(range(1, len(section.columns) + 1))
                return self._titled(section.title, self._table(("", *section.columns), counts, numeric))
            case Text():
                lines = [f"  {_shown(line)}" for line in section.body.splitlines()]
                return "\n".join((self._styled(printable(section.title), _BOLD), *lines))

    def _titled(self, title: str, table: str) -> str:
        return f"\n{self._styled(printable(title), _BOLD)}\n{table}" if title else table

    def _table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str | Verdict]],
        numeric: Sequence[int] = (),
    ) -> str:
        """Cells below their heads between two empty lines; what does not fit is folded, never cut."""
        heads = [printable(column) for column in columns]
        texts = [[_shown(str(cell)) for cell in row] for row in rows]
        widths = [
            max((_columns(row[index]) for row in (heads, *texts) if index < len(row)), default=0)
            for index in range(len(heads))
        ]
        if self.width is not None:
            widths = _squeezed(widths, self.width - len(_GAP) * (len(widths) - 1) - 2)
        lines = ["", *self._row(heads, [_BOLD] * len(heads), widths, numeric)]
        lines.append(" " + "─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
        for row, cells in zip(rows, texts, strict=True):
            styles = [_STYLES[cell] if isinstance(cell, Verdict) else "" for cell in row]
            lines += self._row(cells, styles, widths, numeric)
        return "\n".join((*lines, ""))

    def _row(
        self, cells: Sequence[str], styles: Sequence[str], widths: Sequence[int], numeric: Sequence[int]
    ) -> list[str]:
        folded = [_folded(cell, width) for cell, width in zip(cells, widths, strict=False)]
        lines = []
        for place in range(max(map(len, folded), default=0)):
            parts = []
            for index, pieces in enumerate(folded):
                text = pieces[place] if place < len(pieces) else ""
                space = " " * (widths[index] - _columns(text))
                shown = self._styled(text, styles[index])
                parts.append(space + shown if index in numeric else shown + space)
            lines.append(f" {_GAP.join(parts)}".rstrip())
        return lines

    def _checks(self, checks: tuple[Check, ...]) -> str:
        shown = worst_first(checks)
        if len(checks) > _MOST_CHECKS:
            # What all rows together say matters more than the parts of them that give no trouble.
            shown = tuple(check for check in shown if not check.part or _bad(check))[:_MOST_CHECKS]
        rows = [
            (
                f"{check.name} [{check.part}]" if check.part else check.name,
                "skipped" if check.skipped else check.verdict,
                check.measured,
                check.threshold,
                check.skipped or check.message,
            )
            for check in shown
        ]
        table = self._table(("check", "verdict", "measured", "threshold", ""), rows)
        rest, bad = len(checks) - len(shown), sum(map(_bad, checks)) - sum(map(_bad, shown))
        if not rest:
            return table
        count = f"{rest} more, {bad} of them not passed" if bad else f"{rest} more"
        return f"{table} and {count}; --report and --json have all"


def _bad(check: Check) -> bool:
    return not check.skipped and check.verdict is not Verdict.PASS


def _shown(text: str) -> str:
    return printable(text, limit=_LONGEST)


def _columns(text: str) -> int:
    """How many columns a terminal gives to a text."""
    if text.isascii():
        return len(text)
    return sum(_char_columns(char) for char in text)


def _char_columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _folded(text: str, width: int | None) -> list[str]:
    """The text in lines of at most `width` columns, broken at spaces where there are some."""
    if width is None or _columns(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if _columns(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *full, line = _chopped(word, width)
        lines += full
    return [*lines, line]


def _chopped(word: str, width: int) -> list[str]:
    pieces, piece, used = [], "", 0
    for char in word:
        columns = _char_columns(char)
        if piece and used + columns > width:
            pieces.append(piece)
            piece, used = "", 0
        piece += char
        used += columns
    return [*pieces, piece]


def _squeezed(widths: Sequence[int], room: int) -> list[int]:
    """Take columns from the widest ones until all fit, as far as they can."""
    found = list(widths)
    while sum(found) > room and max(found) > _NARROWEST:
        widest = max(found)
        second = max([width for width in found if width < widest], default=_NARROWEST)
        count = found.count(widest)
        excess = sum(found) - room
        target = max(second, widest - -(-excess // count), _NARROWEST)
        found = [target if width == widest else width for width in found]
    return found
