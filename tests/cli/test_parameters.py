from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from mlx_platform.cli.parameters import QuickCommand, QuickGroup

SEEN: dict[str, Any] = {}


def application(cls: type[typer.core.TyperCommand], group: type[typer.core.TyperGroup]) -> typer.Typer:
    app = typer.Typer(cls=group)
    app.callback()(lambda: None)

    @app.command("run", cls=cls)
    def run(
        word: str,
        maybe: Annotated[str | None, typer.Option()] = None,
        count: Annotated[int, typer.Option(min=1, max=9)] = 3,
        share: Annotated[float | None, typer.Option()] = None,
        clamped: Annotated[int, typer.Option(max=5, clamp=True)] = 1,
        path: Annotated[Path, typer.Option()] = Path("here"),
        there: Annotated[Path | None, typer.Option(exists=True)] = None,
        each: Annotated[list[str] | None, typer.Option()] = None,
        numbers: Annotated[list[int] | None, typer.Option()] = None,
        flag: Annotated[bool, typer.Option("--flag")] = False,
    ) -> None:
        SEEN.clear()
        SEEN.update(locals())

    return app


QUICK = application(QuickCommand, QuickGroup)
TYPER = application(typer.core.TyperCommand, typer.core.TyperGroup)


def outcome(app: typer.Typer, words: list[str]) -> tuple[int, str, dict[str, Any]]:
    SEEN.clear()
    result = CliRunner().invoke(app, ["run", *words])
    return result.exit_code, result.output, dict(SEEN)


@pytest.mark.parametrize(
    "words",
    [
        ["x"],
        ["", "--maybe", ""],
        ["x", "--count", "9", "--share", "0.25", "--flag"],
        ["x", "--count", "-1"],
        ["x", "--count", "10"],
        ["x", "--count", "1.0"],
        ["x", "--count", "1e0"],
        ["x", "--count", "9" * 40],
        ["x", "--count", "two"],
        ["x", "--share", "-1"],
        ["x", "--share", "1e3"],
        ["x", "--share", "inf"],
        ["x", "--share", "half"],
        ["x", "--clamped", "9"],
        ["x", "--path", "/nowhere/at all", "--each", "a", "--each", "b"],
        ["x", "--path", "/"],
        ["x", "--there", "/nowhere"],
        ["x", "--there", "/"],
        ["x", "--numbers", "1", "--numbers", "2"],
        ["x", "--numbers", "one"],
        ["x", "y"],
        [],
        ["x", "--unknown"],
    ],
)
def test_values_and_complaints_are_those_of_typer_itself(words: list[str]) -> None:
    assert outcome(QUICK, words) == outcome(TYPER, words)


def test_a_file_that_cannot_be_read_is_left_to_typer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)

    assert outcome(QUICK, ["x", "--path", str(tmp_path)]) == outcome(TYPER, ["x", "--path", str(tmp_path)])
