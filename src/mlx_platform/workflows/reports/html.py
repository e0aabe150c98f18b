"""One self-contained HTML page per result: no network, no script, charts as inline SVG."""

from mlx_platform.core.clock import both_zones, system_clock
from mlx_platform.core.report import (
    Bars,
    Drawing,
    HeatMap,
    Lines,
    Matrix,
    Plot,
    Result,
    Section,
    Spans,
    Table,
    Text,
)
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict, worst_first
from mlx_platform.core.version import VERSION
from mlx_platform.workflows.reports.charts import (
    bar_chart,
    heat,
    heat_cells,
    is_large,
    line_chart,
    matrix_map,
)
from mlx_platform.workflows.reports.plot import draw_plot
from mlx_platform.workflows.reports.spans import HEIGHT, WIDTH, draw_spans

_CHECKS = 12  # that are open to see; those that passed beyond them are folded away
_SHORT = 36  # characters of a name where there is little room
_KINDS: dict[type, str] = {
    Table: "table",
    Bars: "bars",
    Lines: "lines",
    Matrix: "matrix",
    Text: "text",
    Spans: "spans",
    Plot: "plot",
    HeatMap: "heat_map",
}


def html_page(result: Result) -> str:
    """Draw the result. Every foreign string is escaped; the page forbids scripts and network by policy."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mlx_platform.workflows.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["kind"] = _kind
    environment.filters["shown"] = _shown
    environment.filters["short"] = lambda text: printable(str(text), limit=_SHORT)
    environment.filters["verdict"] = lambda cell: str(cell) if isinstance(cell, Verdict) else ""
    environment.filters["place"] = lambda value: f"{value:.1f}"
    environment.globals.update(
        bar_chart=bar_chart,
        line_chart=line_chart,
        matrix_map=matrix_map,
        is_large=is_large,
        heat=heat,
        heat_cells=heat_cells,
        draw_plot=draw_plot,
        draw_spans=draw_spans,
        span_width=WIDTH,
        span_height=HEIGHT,
    )
    checks, more = _split(worst_first(result.report.checks))
    return environment.get_template("report.html.j2").render(
        result=result,
        report=result.report,
        checks=checks,
        more_checks=more,
        parts=(*result.report.sections, *result.report.details),
        written=both_zones(system_clock()),
        version=VERSION,
    )


def _split(checks: tuple[Check, ...]) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """What is open to see, and what is folded away: of many checks the passed ones, parts first."""
    bad = [check for check in checks if not check.skipped and check.verdict is not Verdict.PASS]
    fine = [check for check in checks if check not in bad]
    whole = [check for check in fine if not check.part]
    room = max(_CHECKS - len(bad), 0)
    seen = fine if len(checks) <= _CHECKS else whole[:room]
    return (*bad, *seen), tuple(check for check in fine if check not in seen)


def _shown(text: object) -> str:
    return printable(str(text), limit=20_000)


def _kind(section: Section | Drawing) -> str:
    return _KINDS[type(section)]
