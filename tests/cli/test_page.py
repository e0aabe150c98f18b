import io
import math

import pytest
from rich.console import Console

from mlx_platform.cli.page import draw_page
from mlx_platform.core.report import Bars, Fact, Lines, Matrix, Report, Result, Series, Table, Text
from mlx_platform.core.verdict import Check, Verdict


def drawn(report: Report, verdict: Verdict | None = None, *, width: int = 10_000) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, no_color=True)
    draw_page(console, Result("eval", {}, report, verdict))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["x [bold red]FAKE PASS[/]", "[link=file:///x]y[/link]", "\x1b[2J", "a\nb"])
def test_foreign_text_is_neither_markup_nor_control(text: str) -> None:
    section = Table(text, (text,), ((text,),))
    page = drawn(Report(text, text, facts=(Fact(text, text),), sections=(section, Text(text, "body"))))

    assert "\x1b" not in page
    assert text.replace("\x1b", "\\u001b").replace("\n", "\\u000a") in page


def test_an_identifier_is_never_cut_however_narrow_the_terminal() -> None:
    digest = "0123456789abcdef" * 4
    page = drawn(Report("", "", sections=(Table("t", ("digest",), ((digest,),)),)), width=40)

    assert digest in "".join(page.split())
    assert "…" not in page


def test_a_verdict_leads_and_checks_show_value_beside_threshold() -> None:
    check = Check("accuracy", Verdict.FAIL, "0.87", ">= 0.9", "too low")
    page = drawn(Report("title", "sentence", checks=(check,), next_steps=("mlx show x",)), Verdict.FAIL)

    assert page.startswith("FAIL sentence")
    assert " ".join(next(line for line in page.splitlines() if "0.87" in line).split()).startswith(
        "accuracy fail 0.87 >= 0.9 too low"
    )
    assert page.rstrip().endswith("mlx show x")


def test_of_many_checks_those_that_did_not_pass_come_first() -> None:
    checks = [Check(f"fine{index}", Verdict.PASS, "1", "1") for index in range(30)]
    page = drawn(Report("", "", checks=(*checks, Check("bad", Verdict.FAIL, "0", "1"))))

    assert "bad" in page
    assert "and 19 more" in page


def test_charts_become_lines_of_marks_with_gaps_where_values_are_missing() -> None:
    page = drawn(
        Report(
            "",
            "",
            sections=(
                Bars("bars", ("a", "b"), (Series("window", (1.0, 0.0)),)),
                Lines("lines", ("a", "b"), (Series("psi", (math.nan, 2.0)),)),
                Matrix("matrix", ("yes",), ("yes", "no"), ((3, 4),)),
            ),
        )
    )

    assert "█▁" in page
    assert " █" in page
    assert "3" in page
