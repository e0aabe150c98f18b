import math

import pytest

from mlx_platform.core.report import HeatMap, Matrix, Plot, Points, Report, Result, Span, Spans
from mlx_platform.workflows.reports.charts import heat, heat_cells, is_large, matrix_map
from mlx_platform.workflows.reports.html import html_page
from mlx_platform.workflows.reports.plot import draw_plot
from mlx_platform.workflows.reports.spans import WIDTH, draw_spans


def test_spans_on_one_scale_can_be_compared_by_eye() -> None:
    low, high = draw_spans(
        Spans("t", (Span("a", 0.2, 0.1, 0.3), Span("b", 0.8, 0.7, 0.9)), shared=True)
    ).lines

    assert low.upper is not None
    assert high.lower is not None
    assert low.upper < high.lower
    assert not low.ticks


def test_spans_of_their_own_scale_fill_their_line_and_say_its_ends() -> None:
    spans = (Span("share", 0.9, 0.88, 0.92, threshold=0.85), Span("ms", 900.0, 800.0, 1000.0))

    for line in draw_spans(Spans("t", spans)).lines:
        assert line.upper is not None
        assert line.upper > WIDTH * 0.85
        assert len(line.ticks) == 2


def test_a_mark_that_is_no_number_is_left_out() -> None:
    drawn = draw_spans(Spans("t", (Span("a", math.nan), Span("b", 0.5, math.nan, math.inf))))

    assert [line.value is None for line in drawn.lines] == [True, False]
    assert all(line.lower is line.upper is line.baseline is None for line in drawn.lines)
    assert not drawn.baseline
    assert not drawn.threshold


def test_a_plot_keeps_its_points_in_the_frame_and_breaks_lines_at_gaps() -> None:
    points = Points("model", (0.0, 0.5, math.nan, 0.9, 1.0), (0.0, 1.0, 0.5, 0.4, 0.2))
    drawn = draw_plot(Plot("t", "x", "y", (points,), guide=((0, 0), (1, 1))))

    assert drawn.series[0].path.count("M") == 2
    assert drawn.guide == pytest.approx((drawn.left, drawn.bottom, drawn.right, drawn.top))
    assert (drawn.x_ticks[0].text, drawn.x_ticks[-1].text) == ("0.0", "1.0")


def test_a_point_of_a_line_that_stands_alone_is_a_dot() -> None:
    nan = math.nan
    points = Points("one", x=(0.0, 1.0, 2.0, 3.0, 4.0), y=(1.0, nan, 2.0, 3.0, nan))
    (series,) = draw_plot(Plot("t", "x", "y", (points,))).series

    assert [dot.title for dot in series.dots] == ["one: 0, 1"]
    assert series.path.count("M") == 2


def test_dots_have_whiskers_where_their_ends_are_known_and_counts_have_bars() -> None:
    points = Points("m", (0.25, 0.75), (0.2, 0.7), lower=(0.1, math.nan), upper=(0.3, math.nan))
    drawn = draw_plot(Plot("t", "x", "y", (points,), kind="dots", counts=((0, 0.5, 200), (0.5, 1.0, 2))))

    first, second = drawn.series[0].dots
    assert first.top is not None
    assert first.bottom is not None
    assert first.top < first.y < first.bottom
    assert second.top is None
    assert drawn.columns[0].height > 20 * drawn.columns[1].height
    assert drawn.most == 200
    assert drawn.columns[1].title == "0.5 to 1: 2"


def test_a_large_matrix_is_a_map_of_its_cells_that_hold_something() -> None:
    names = tuple(f"class {index}" for index in range(60))
    values = tuple(
        tuple(90 if row == column else int(column == 0) for column in range(60)) for row in range(60)
    )
    section = Matrix("t", names, names, values)
    drawn = matrix_map(section)

    assert is_large(section)
    assert len(drawn.cells) == 60 + 59
    assert sum(cell.right for cell in drawn.cells) == 60
    assert max(cell.x for cell in drawn.cells) + drawn.side <= drawn.width
    assert drawn.cells[1].title == "class 1 → class 0: 1"


def test_few_of_many_are_still_to_be_seen_in_a_row() -> None:
    assert heat(0, [0, 0]) == "0"
    assert float(heat(1, [1, 99])) == pytest.approx(0.1)
    assert float(heat(5, [5])) == 1.0


def test_labels_stand_beside_their_dots_on_the_side_with_more_room() -> None:
    points = Points("series", (0.0, 1.0), (0.5, 0.6), labels=("first", "second"))

    (series,) = draw_plot(Plot("t", "x", "y", (points,), kind="dots")).series

    assert [(dot.label, dot.anchor) for dot in series.dots] == [("first", "start"), ("second", "end")]
    assert series.dots[0].title.startswith("first: 0")


def test_labels_of_dots_that_are_close_stand_below_each_other() -> None:
    points = Points("series", (0.0, 0.01, 1.0), (0.5, 0.5, 0.0), labels=("first one", "second one", "far"))

    (series,) = draw_plot(Plot("t", "x", "y", (points,), kind="dots")).series

    first, second, far = series.dots
    assert first.y == second.y
    assert abs(first.line - second.line) >= 12
    assert far.line == far.y


def test_a_heat_map_writes_its_numbers_and_grows_no_darker_than_its_darkest() -> None:
    section = HeatMap("t", ("a",), ("1", "2", "3", "4"), ((0.0, 0.25, 9.0, math.nan),), darkest=0.5)

    cells = heat_cells(section, 0)

    assert [(cell.share, cell.text) for cell in cells] == [
        ("0.000", "0.00"),
        ("0.500", "0.25"),
        ("1.000", "9.00"),
        ("0", ""),
    ]


def test_a_heat_map_is_a_table_of_the_page() -> None:
    section = HeatMap("Heat", ("<b>",), ("w1",), ((0.125,),), darkest=0.5, note="a note")
    result = Result("c", {}, Report("t", "s", details=(section,)))

    page = html_page(result)

    assert "&lt;b&gt;" in page
    assert "--h:0.250" in page
    assert ">0.12<" in page
    assert "a note" in page
