"""What every test stands on: a home of its own, and the command line as a user calls it."""

import os
from pathlib import Path

import pytest
from support import Outcome, RunCommand

from mlx_platform.cli.main import main


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a cache and a working folder that no other test and no user sees."""
    home = tmp_path / "home"
    home.mkdir()
    for variable in [name for name in os.environ if name.startswith(("MLX_", "MLFLOW_", "GITHUB_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("MLX_CACHE_DIR", str(home / ".cache" / "mlx"))
    monkeypatch.setenv("MLX_ACTOR", "tester")
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def mlx(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run the command line in this process, through its error funnel."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
