"""What a command has to say, free of how it is drawn.

A workflow returns a `Result`: data for machines and a `Report` for people. The terminal, HTML, JUnit and
Markdown writers each draw the same report.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Check, Verdict

SCHEMA = "mlx/v1"


@frozen
class Fact:
    """A labelled value of the report's head, such as `version: digits/3`."""

    label: str
    value: str


@frozen
class Table:
    """Cells are text or verdicts; `numeric` holds the indices of right-aligned columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Verdict, ...], ...]
    numeric: tuple[int, ...] = ()


@frozen
class Series:
    name: str
    values: tuple[float, ...]


@frozen
class Bars:
    """Grouped bars: every series has one value per label."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    unit: str = ""


@frozen
class Lines:
    """A line per series over shared x labels; NaN leaves a gap."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    unit: str = ""


@frozen
class Matrix:
    """Counts with named rows and columns, such as a confusion matrix."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


@frozen
class Text:
    title: str
    body: str


@frozen
class Span:
    """A value with its interval, and what it is seen against; NaN leaves a mark out.

    `text` says in words what is drawn, and `note` what there is to say beside it.
    """

    name: str
    value: float
    lower: float = math.nan
    upper: float = math.nan
    baseline: float = math.nan
    threshold: float = math.nan
    text: str = ""
    note: str = ""
    verdict: Verdict | None = None


@frozen
class Spans:
    """Dots with whiskers, a line each. `shared` puts all of them on one scale, else each has its own."""

    title: str
    spans: tuple[Span, ...]
    shared: bool = False
    note: str = ""


@frozen
class Points:
    """A series of a plot: [n] coordinates, and the ends of an upright whisker at each point if there are.

    `labels` are written beside the dots, where there are any.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()


@frozen
class Plot:
    """Points over two numeric axes; `counts` are bars below, each (from, to, how many).

    `guide` is a dashed line from one point to another, such as that of no skill.
    """

    title: str
    x: str
    y: str
    series: tuple[Points, ...]
    kind: Literal["line", "dots"] = "line"
    guide: tuple[tuple[float, float], tuple[float, float]] | None = None
    counts: tuple[tuple[float, float, int], ...] = ()
    note: str = ""


@frozen
class HeatMap:
    """A number for each row and column, the darker the higher; NaN leaves a cell empty.

    `darkest` is the number from which a cell gets no darker. The numbers are written into the cells, so that
    nobody needs the colours to read them.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    darkest: float
    note: str = ""


@frozen
class Gauge:
    """A number for tools that follow it over time; labels tell its samples apart."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


Section = Table | Bars | Lines | Matrix | Text
Drawing = Spans | Plot | HeatMap


@frozen
class Report:
    """A page: a head, one sentence that says it all, sections, checks, and the next commands to run.

    `details` are left out on a terminal, where a page must stay short; `brief` stands there alone, for what
    `details` draw in full. `lines` are values for scripts: where there are any, they are all that is printed.
    """

    title: str
    summary: str
    facts: tuple[Fact, ...] = ()
    sections: tuple[Section, ...] = ()
    checks: tuple[Check, ...] = ()
    brief: tuple[Section, ...] = ()
    details: tuple[Section | Drawing, ...] = ()
    next_steps: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    gauges: tuple[Gauge, ...] = ()


@frozen
class Result:
    """What a workflow returns: `data` is JSON-ready, `report` is for people.

    `code` is the exit code where the verdict's own does not say it.
    """

    command: str
    data: Mapping[str, Any]
    report: Report
    verdict: Verdict | None = None
    warnings: tuple[str, ...] = ()
    code: int | None = None

    @property
    def exit_code(self) -> int:
        if self.code is not None:
            return self.code
        return self.verdict.exit_code if self.verdict else 0

    def document(self) -> dict[str, Any]:
        """The JSON document that `--json` prints and every report folder holds."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "verdict": str(self.verdict) if self.verdict else None,
            "exit_code": self.exit_code,
            "data": dict(self.data),
            "warnings": list(self.warnings),
        }
