"""Ctrl-C while a command is still being loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import clean_environment

# Presses Ctrl-C when a module is asked for, wherever in the command's start that is.
PROGRAM = """
import os, signal, sys

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[-1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presses())
from mlx_platform.cli.entry import run
sys.argv = ["mlx", "list", sys.argv[-1]]
run()
"""


def pressed(folder: Path, program: str, module: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, module],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    "module", ["mlx_platform.core.errors", "typer", "mlx_platform.cli.main", "mlx_platform.core.settings"]
)
def test_ctrl_c_while_a_module_is_loaded_ends_with_130_and_a_sentence(tmp_path: Path, module: str) -> None:
    process = pressed(tmp_path, PROGRAM, module)

    assert (process.returncode, process.stdout, process.stderr) == (130, "", "error: Interrupted.\n")


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it(tmp_path: Path) -> None:
    process = pressed(
        tmp_path, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + PROGRAM, "typer"
    )

    assert process.returncode == 3
    assert "Interrupted" not in process.stderr


def test_what_is_loaded_before_ctrl_c_is_taken_care_of_is_little(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; import mlx_platform.cli.entry; print(*sys.modules)"

    process = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    loaded = set(process.stdout.split())
    assert "mlx_platform.cli.entry" in loaded
    assert not loaded & {"typing", "pathlib", "typer", "mlx_platform.core.errors"}
