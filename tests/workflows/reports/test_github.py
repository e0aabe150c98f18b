from pathlib import Path

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.workflows.reports.github import annotations, write_outputs, write_summary


def result(*checks: Check, verdict: Verdict = Verdict.FAIL) -> Result:
    return Result("eval", {}, Report("title", "sentence", checks=checks), verdict)


def failed(name: str = "accuracy", **changes: object) -> Check:
    return Check(name, Verdict.FAIL, "0.87", ">= 0.90", file="gates.toml", line=7, **changes)  # type: ignore[arg-type]


def test_an_annotation_points_at_the_line_that_asks_and_says_value_and_threshold() -> None:
    (line,) = annotations(result(failed()), {})

    assert line == (
        "::error file=gates.toml,line=7,title=accuracy >= 0.90::fail: accuracy is 0.87 (threshold >= 0.90)"
    )


def test_foreign_text_ends_neither_a_property_nor_the_command() -> None:
    (line,) = annotations(result(failed("a,line=1::b%0A\n::stop-commands::x\r", part="k=v,w:1")), {})

    properties, message = line.removeprefix("::error ").split("::", 1)
    assert "\n" not in line
    assert [entry.split("=")[0] for entry in properties.split(",")] == ["file", "line", "title"]
    assert "a%2Cline=1%3A%3Ab%250A" in properties
    assert "%250A" in message


def test_the_worst_ten_are_shown_and_the_rest_is_counted() -> None:
    open_ = [Check(f"open {index}", Verdict.UNDECIDED, "", "") for index in range(8)]
    lines = annotations(result(*open_, *(failed(f"bad {index}") for index in range(8))), {})

    assert len(lines) == 10
    assert [f"bad {index} " in line for index, line in enumerate(lines[:8])] == [True] * 8
    assert "and 7 checks more" in lines[-1]


def test_a_gate_that_only_warns_is_a_warning_and_what_was_left_out_is_none() -> None:
    warned = failed(skipped="level = warn")
    small = Check("accuracy", Verdict.UNDECIDED, "", ">= 0.9", skipped="too small")
    lines = annotations(result(warned, small, Check("fine", Verdict.PASS, "1", "1")), {})

    assert [line.split(" ")[0] for line in lines] == ["::warning"]


def test_a_file_is_named_as_seen_from_the_root_of_the_repository(tmp_path: Path) -> None:
    check = Check("a", Verdict.FAIL, "", "", file=str(tmp_path / "ml" / "gates.toml"))
    (line,) = annotations(result(check), {"GITHUB_WORKSPACE": str(tmp_path)})

    assert line.startswith("::error file=ml/gates.toml,title=a::")


def test_the_summary_of_a_step_never_grows_beyond_what_is_taken(tmp_path: Path) -> None:
    target = tmp_path / "summary.md"
    target.write_text("x" * (1024 * 1024 - 900))
    checks = [failed("n" * 500) for _ in range(200)]
    for _ in range(20):
        write_summary(result(*checks), target)

    assert target.stat().st_size <= 1024 * 1024
    assert target.read_text()[-3000:].count("### ❌ title") >= 1


def test_the_outputs_of_a_step_say_whether_it_passed(tmp_path: Path) -> None:
    for verdict in (Verdict.PASS, Verdict.UNDECIDED):
        write_outputs(result(verdict=verdict), tmp_path / "out")

    assert (tmp_path / "out").read_text().split() == [
        "pass=true", "verdict=pass", "pass=false", "verdict=undecided",
    ]  # fmt: skip


def test_a_summary_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for write in (write_summary, write_outputs):
        with pytest.raises(UsageError, match=str(tmp_path)):
            write(result(), tmp_path)
