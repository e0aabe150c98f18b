"""What every test stands on: a home of its own, and the command line as a user calls it."""

import os
from pathlib import Path

import pytest
from support import Demo, Outcome, RunCommand, run_process

from mlx_platform.cli.main import main

pytest_plugins = ["services"]


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


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, run once for all tests; they may read everything and must leave it as it was."""
    folder = tmp_path_factory.mktemp("demo")
    outcome = run_process(["demo", "--json"], cwd=folder, env={"HOME": str(folder)})
    assert outcome.code == 0, outcome.err
    return Demo(folder / "mlx-demo", outcome)
