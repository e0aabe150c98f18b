import math
import re

import pytest

from mlx_platform.cli.page import Page
from mlx_platform.core.report import Bars, Fact, Lines, Matrix, Report, Result, Series, Table, Text
from mlx_platform.core.verdict import Check, Verdict


def drawn(
    report: Report, verdict: Verdict | None = None, *, width: int | None = None, colour: bool = False
) -> str:
    return Page(width, colour).draw(Result("eval", {}, report, verdict))


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


def test_a_table_fits_the_terminal_as_long_as_its_cells_keep_some_columns() -> None:
    rows = (("a long first cell", "short", "many words that can be broken at their spaces"),) * 2
    page = drawn(Report("", "", sections=(Table("t", ("one", "two", "three"), rows),)), width=40)

    assert max(map(len, page.splitlines())) <= 40
    assert "short" in page
    assert " ".join(page.split()).count("spaces") == 2


def test_characters_of_two_columns_and_of_none_keep_the_columns_straight() -> None:
    rows = (("模型", "1"), ("e\u0301", "1"), ("name", "1"))
    page = drawn(Report("", "", sections=(Table("", ("model", "n"), rows, numeric=(1,)),)))

    ends = [page.splitlines()[index] for index in (4, 5, 6)]
    assert ends == [" 模型    1", " e\u0301       1", " name    1"]


def test_colour_surrounds_words_and_never_what_aligns_them() -> None:
    check = Check("accuracy", Verdict.FAIL, "0.87", ">= 0.9")
    report = Report("title", "sentence", facts=(Fact("label", "value"),), checks=(check,))
    page = drawn(report, Verdict.FAIL, colour=True)

    assert page.startswith("\x1b[1;31mFAIL\x1b[0m sentence")
    assert "\x1b[1;31mfail\x1b[0m" in page
    assert re.sub(r"\x1b\[[0-9;]*m", "", page) == drawn(report, Verdict.FAIL)


def test_parts_are_one_empty_line_apart() -> None:
    table = Table("t", ("a",), (("b",),))
    page = drawn(Report("", "s", facts=(Fact("l", "v"),), sections=(table, table), next_steps=("mlx list",)))

    assert "\n\n\n" not in page
    assert page.count("\n\n") == 5


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
    assert "and 19 more;" in page


def test_checks_come_worst_first_and_say_which_rows_they_are_about() -> None:
    page = drawn(
        Report(
            "",
            "",
            checks=(
                Check("small", Verdict.UNDECIDED, "", ">= 1", skipped="too small"),
                Check("fine", Verdict.PASS, "1", "1"),
                Check("open", Verdict.UNDECIDED, "1", "1"),
                Check("bad", Verdict.FAIL, "0", "1", part="lang=de"),
            ),
        )
    )

    words = [line.split()[0] for line in page.splitlines() if line.startswith(" ") and "─" not in line]
    assert words == ["check", "bad", "open", "fine", "small"]
    assert "bad [lang=de]" in page


def test_of_many_parts_only_those_that_give_trouble_are_shown() -> None:
    parts = [Check("accuracy", Verdict.PASS, "1", "1", part=f"lang={index}") for index in range(30)]
    whole = Check("accuracy", Verdict.FAIL, "1", "1 by lang")
    bad = Check("accuracy", Verdict.FAIL, "0", "1", part="lang=de")
    page = drawn(Report("", "", checks=(whole, *parts, bad, Check("f1", Verdict.PASS, "1", "1"))))

    assert [line.split()[:2] for line in page.splitlines()[4:7]] == [
        ["accuracy", "fail"],
        ["accuracy", "[lang=de]"],
        ["f1", "pass"],
    ]
    assert "and 30 more;" in page


def test_the_rest_of_many_bad_checks_is_counted() -> None:
    page = drawn(
        Report("", "", checks=tuple(Check(f"bad{index}", Verdict.FAIL, "0", "1") for index in range(15)))
    )

    assert "and 3 more, 3 of them not passed" in page


def test_what_stands_in_for_details_is_shown_on_a_terminal_and_the_details_are_not() -> None:
    page = drawn(Report("", "", brief=(Text("short", "a"),), details=(Text("long", "b"),)))

    assert "short" in page
    assert "long" not in page


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
