import re
from collections.abc import Callable
from dataclasses import replace

from mlx_platform.core.report import Report, Result, Table
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.workflows.reports.markdown import markdown_summary

MakeResult = Callable[[str], Result]


def tables(result: Result) -> list[str]:
    return markdown_summary(result).partition("Next:")[0].splitlines()


def test_tables_keep_their_columns_whatever_the_cells_hold(make_result: MakeResult) -> None:
    plain, hostile = (
        [line.replace("\\\\", "").replace("\\|", "").count("|") for line in tables(one)]
        for one in (make_result("plain"), make_result("a|b\\|<c>\n`|`"))
    )

    assert hostile == plain


def test_no_foreign_text_becomes_a_link_a_mention_an_image_or_markup(make_result: MakeResult) -> None:
    text = "<b> [x](javascript:y) ![i](http://h) @team *x* #1 http://h &lt;"
    page = "\n".join(tables(make_result(text))).removeprefix("### ")

    assert "<b>" not in page
    assert "&amp;lt;" in page
    assert "http://" not in page
    assert not re.search(r"(?<!\\)[\[@#]|(?<![\\*])\*(?!\*)", page)


def test_checks_come_worst_first_with_value_threshold_and_reason() -> None:
    checks = (
        Check("fine", Verdict.PASS, "1", "1"),
        Check("bad", Verdict.FAIL, "0.87", ">= 0.9", "why", part="lang=de"),
    )
    page = markdown_summary(Result("eval", {}, Report("t", "s", checks=checks), Verdict.FAIL))

    assert page.index("bad") < page.index("fine")
    assert "| bad \\[lang=de] | ❌ fail | 0.87 | >= 0.9 | why |" in page


def test_tables_give_way_before_the_sentence_does(make_result: MakeResult) -> None:
    rows = tuple((f"row {index}", "x" * 100) for index in range(1000))
    result = make_result("plain")
    result = replace(result, report=replace(result.report, brief=(Table("big", ("a", "b"), rows),)))

    full, less, head = (markdown_summary(result, room=room) for room in (None, 5000, 120))
    assert "and 900 more" in full
    assert len(less.encode()) <= 5000
    assert "row 0" in less
    assert "plain" in head
    assert markdown_summary(result, room=5) == ""


def test_of_many_slices_those_that_pass_are_only_counted() -> None:
    parts = tuple(Check("accuracy", Verdict.PASS, "1", "1", part=f"lang={index}") for index in range(20))
    bad = Check("accuracy", Verdict.FAIL, "0", "1", part="lang=de")
    page = markdown_summary(Result("eval", {}, Report("t", "s", checks=(*parts, bad)), Verdict.FAIL))

    assert "lang=de" in page
    assert "lang=3" not in page
    assert "| and 20 more |" in page
