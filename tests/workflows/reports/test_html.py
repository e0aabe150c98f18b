from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hostile import MARKUP

from mlx_platform.core.report import Report, Result
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.workflows.reports.html import html_page

MakeResult = Callable[[str], Result]


class Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.mark.parametrize("text", MARKUP)
def test_no_foreign_text_becomes_markup_in_the_page(make_result: MakeResult, text: str) -> None:
    plain, hostile = (Page(html_page(make_result(word))) for word in ("plain", text))

    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert "script" not in hostile.tags


def test_the_page_needs_no_network_and_no_script(make_result: MakeResult) -> None:
    page = html_page(make_result("plain"))

    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "src=" not in page.replace("default-src", "").replace("style-src", "").replace("img-src", "")


def test_no_drawing_holds_a_place_that_is_not_a_number(make_result: MakeResult) -> None:
    page = html_page(make_result("plain")).lower()

    assert 'd="m' in page
    assert "nan" not in page
    assert "none" not in page.partition("</style>")[2].replace('fill="none"', "")


def test_every_check_that_did_not_pass_is_open_to_see() -> None:
    checks = [Check(f"fine {index}", Verdict.PASS, "1", "1") for index in range(20)]
    checks += [Check(f"bad {index}", Verdict.FAIL, "0", "1") for index in range(20)]
    page = html_page(Result("eval", {}, Report("t", "s", checks=tuple(checks)), Verdict.FAIL))

    seen, folded = page.split("<details>")
    assert all(f"bad {index}<" in seen for index in range(20))
    assert all(f"fine {index}<" in folded for index in range(20))


def test_what_a_terminal_shows_for_the_details_is_not_said_twice(make_result: MakeResult) -> None:
    report = make_result("plain").report
    page = html_page(Result("eval", {}, replace(report, brief=(replace(report.brief[0], title="short"),))))

    assert "<h2>short</h2>" not in page
