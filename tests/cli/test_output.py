import json
import math

import pytest

from mlx_platform.cli.output import Output, to_json
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.verdict import Check, Verdict

RESULT = Result("resolve", {"version": 2}, Report("title", "digits/2"), warnings=("careful",))


def output(**options: bool) -> Output:
    return Output(**({"json": False, "quiet": False, "no_color": False} | options))


def test_json_is_one_document_on_stdout_and_warnings_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output(json=True).render(RESULT)
    captured = capsys.readouterr()

    assert json.loads(captured.out)["data"] == {"version": 2}
    assert captured.err == "warning: careful\n"


def test_what_follows_the_document_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    printer = output(json=True)
    printer.document({"data": "ready"})
    printer.render(RESULT)

    captured = capsys.readouterr()

    assert json.loads(captured.out) == {"data": "ready"}
    assert captured.err == "warning: careful\ndigits/2\n"


def test_quiet_prints_the_result_line_alone(capsys: pytest.CaptureFixture[str]) -> None:
    output(quiet=True).render(RESULT)

    assert capsys.readouterr().out == "digits/2\n"


def test_no_colour_reaches_a_pipe_or_whoever_asked_for_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output().render(RESULT)

    assert "\x1b" not in capsys.readouterr().out


def test_colour_that_is_forced_reaches_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result("resolve", {}, Report("title", "x", next_steps=("mlx list",)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    output().render(result)
    output(no_color=True).render(result)
    coloured, plain = capsys.readouterr().out.split("x\n", 1)[1].split("x\n")

    assert "\x1b[1mNext:" in coloured
    assert "\x1b" not in plain


def test_numbers_that_json_has_not_become_null() -> None:
    text = to_json({"a": [math.nan, (1.5, -math.inf)], "b": {"c": math.inf}, "d": 2.0})

    assert json.loads(text) == {"a": [None, [1.5, None]], "b": {"c": None}, "d": 2.0}


CHECKED = Result(
    "eval",
    {"label": "##[error]x"},
    Report(
        "title",
        "  ::stop-commands::x",
        facts=(Fact("::error::", "##[error]x"),),
        checks=(Check("accuracy", Verdict.FAIL, "0.8", ">= 0.9", file="gates.toml", line=3),),
    ),
    Verdict.FAIL,
    warnings=("::add-mask::x",),
)


def test_in_actions_annotations_go_to_stderr_beside_one_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    output(json=True).render(CHECKED)
    captured = capsys.readouterr()

    assert json.loads(captured.out)["data"] == {"label": "##[error]x"}
    assert "##[" not in captured.out
    assert "::error file=gates.toml,line=3,title=accuracy >= 0.9::" in captured.err


@pytest.mark.parametrize("quiet", [True, False])
def test_a_runner_finds_no_command_but_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    output(quiet=quiet).render(CHECKED)
    captured = capsys.readouterr()

    lines = (captured.out + captured.err).splitlines()
    assert sum(line.lstrip().startswith("::") for line in lines) == 1
    assert not any("##[" in line for line in lines)


def test_elsewhere_nothing_is_annotated_and_no_word_is_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    output(quiet=True).render(CHECKED)
    captured = capsys.readouterr()

    assert captured.out == "  ::stop-commands::x\n"
    assert captured.err == "warning: ::add-mask::x\n"


def test_a_stage_of_known_length_says_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Output(json=False, quiet=False, no_color=True).progress()

    with progress.stage("searching layers", total=4) as advance:
        advance(3)
    with progress.stage("sealing"):
        pass

    drawn = capsys.readouterr().err
    assert "3/4" in drawn
    assert " left " in drawn
    assert "sealing" in drawn
