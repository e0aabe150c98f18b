from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.reports import write
from mlx_platform.workflows.reports.write import check_targets, write_reports

MakeResult = Callable[[str], Result]


@pytest.fixture(autouse=True)
def outside_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def passed() -> Result:
    return Result("eval", {"value": 1.0}, Report("t", "s"), Verdict.PASS)


def test_a_report_folder_holds_the_page_the_document_and_junit(
    make_result: MakeResult, tmp_path: Path
) -> None:
    result = make_result("plain")
    told = write_reports(
        result, report=tmp_path / "out", junit=tmp_path / "other.xml", metrics=tmp_path / "metrics.txt"
    )

    assert told == result
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"junit.xml", "report.html", "report.json"}
    assert (tmp_path / "other.xml").read_text() == (tmp_path / "out" / "junit.xml").read_text()
    assert (tmp_path / "metrics.txt").read_text().endswith("# EOF\n")
    document = orjson.loads((tmp_path / "out" / "report.json").read_bytes())
    assert (document["verdict"], document["exit_code"]) == ("fail", 5)


def test_places_that_can_hold_no_report_are_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="takes a folder"):
        check_targets(report=tmp_path / "file")
    with pytest.raises(UsageError, match="--junit takes a file"):
        check_targets(junit=tmp_path)
    with pytest.raises(UsageError, match="--gitlab-metrics takes a file"):
        check_targets(metrics=tmp_path)
    check_targets(report=tmp_path / "new", junit=tmp_path / "new.xml")


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.PASS])
def test_a_file_that_cannot_be_written_never_hides_a_verdict(
    passed: Result, tmp_path: Path, verdict: Verdict
) -> None:
    (tmp_path / "file").write_text("")
    told = write_reports(replace(passed, verdict=verdict), junit=tmp_path / "file" / "junit.xml")

    assert told.exit_code == verdict.exit_code
    assert "Cannot write" in told.warnings[0]


def test_a_pass_without_the_report_that_was_asked_for_is_no_success(passed: Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = write_reports(passed, report=tmp_path / "out", junit=tmp_path / "file" / "junit.xml")
    document = orjson.loads((tmp_path / "out" / "report.json").read_bytes())

    assert told.verdict is Verdict.PASS
    assert told.exit_code == UsageError.exit_code
    assert (document["exit_code"], document["warnings"]) == (told.exit_code, list(told.warnings))
    assert (tmp_path / "out" / "report.html").exists()


def test_even_a_writer_that_breaks_leaves_the_verdict_and_the_other_files(
    passed: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_result: Result) -> str:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(write, "html_page", broken)
    good, bad = (
        write_reports(replace(passed, verdict=verdict), report=tmp_path / verdict)
        for verdict in (Verdict.PASS, Verdict.FAIL)
    )

    assert (good.exit_code, bad.exit_code) == (1, 5)
    assert good.warnings == ("A report could not be written: ZeroDivisionError: division by zero.",)
    assert (tmp_path / "fail" / "junit.xml").exists()


def test_in_actions_the_step_gets_a_summary_and_outputs(
    passed: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    write_reports(passed)
    write_reports(replace(passed, verdict=None))

    assert (tmp_path / "summary.md").read_text().count("###") == 1
    assert (tmp_path / "output").read_text() == "pass=true\nverdict=pass\n"


def test_the_outputs_of_a_step_know_of_a_report_that_is_missing(
    passed: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    write_reports(passed, junit=tmp_path)

    assert (tmp_path / "output").read_text() == "pass=false\nverdict=pass\n"
