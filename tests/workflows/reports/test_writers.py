import math
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Bars, Fact, Lines, Matrix, Report, Result, Series, Table, Text
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.workflows.reports.html import html_page
from mlx_platform.workflows.reports.junit import junit_xml
from mlx_platform.workflows.reports.markdown import markdown_summary
from mlx_platform.workflows.reports.write import write_reports

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></script><script>alert(2)</script>",
    "{{7*7}}",
    "${7*7}",
    "\x1b[2J",
    "\u202egnp",
    "a|b `c` [d](javascript:alert(1))",
    "[bold red]PASS[/]",
    "\x00\x0b",
]


def result(text: str = "plain") -> Result:
    return Result(
        command="eval",
        data={"value": 1.0},
        verdict=Verdict.FAIL,
        warnings=(text,),
        report=Report(
            title=text,
            summary=text,
            facts=(Fact(text, text),),
            sections=(
                Table(text, (text, "n"), ((text, "1"), (Verdict.PASS, "2")), numeric=(1,)),
                Bars(text, (text, "b"), (Series(text, (0.5, math.nan)),), unit=text),
                Lines(text, (text, "b", "c"), (Series(text, (1.0, math.nan, 3.0)),)),
                Matrix(text, (text,), (text,), ((3,),)),
                Text(text, text),
            ),
            checks=(
                Check(text, Verdict.FAIL, "0.87", ">= 0.90", text),
                Check("drop", Verdict.UNDECIDED, "-0.2 pp", "<= 1 pp", "3,090 rows would decide"),
                Check("later", Verdict.PASS, "-", "-", skipped="no baseline yet"),
                Check("fine", Verdict.PASS, "1", "1"),
            ),
            next_steps=(text,),
        ),
    )


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_foreign_text_becomes_markup_in_the_page(text: str) -> None:
    plain, hostile = Page(), Page()
    plain.feed(html_page(result("plain")))
    hostile.feed(html_page(result(text)))

    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert "script" not in hostile.tags


def test_the_page_needs_no_network_and_no_script() -> None:
    page = html_page(result())

    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page.replace("default-src", "").replace("style-src", "").replace("img-src", "")


def test_a_chart_leaves_a_gap_where_a_value_is_missing() -> None:
    page = html_page(result())

    assert page.count("<rect") == 1
    assert 'd="M' in page
    assert "nan" not in page.lower().replace("undefined", "")


@pytest.mark.parametrize("text", HOSTILE)
def test_junit_stays_well_formed_and_counts_what_was_not_a_pass(text: str) -> None:
    suite = ET.fromstring(junit_xml(result(text)).split("\n", 1)[1])  # noqa: S314 - our own text

    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["4", "1", "1", "1"]


def test_junit_puts_the_measured_value_beside_the_threshold() -> None:
    suite = ET.fromstring(junit_xml(result()).split("\n", 1)[1])  # noqa: S314 - our own text
    message = suite.find(".//failure").get("message")  # type: ignore[union-attr]

    assert "0.87" in str(message)
    assert ">= 0.90" in str(message)


def test_markdown_keeps_its_table_whatever_the_cells_hold() -> None:
    lines = markdown_summary(result("a|b<c>")).splitlines()
    rows = [line for line in lines if line.startswith("| ") and "---" not in line]

    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
    assert not any("<c>" in row for row in rows)


def test_a_report_folder_holds_the_page_the_document_and_junit(tmp_path: Path) -> None:
    paths = write_reports(result(), report=tmp_path / "out", junit=tmp_path / "other.xml")

    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == [
        "junit.xml",
        "report.html",
        "report.json",
    ]
    assert (tmp_path / "other.xml") in paths
    document = orjson.loads((tmp_path / "out" / "report.json").read_bytes())
    assert (document["verdict"], document["exit_code"]) == ("fail", 5)


def test_a_report_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="takes a folder"):
        write_reports(result(), report=tmp_path / "file")


def test_in_actions_the_summary_of_the_step_gets_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    write_reports(result())

    assert "0.87" in (tmp_path / "summary.md").read_text()
