"""Types that tests share."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind: its exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.out)
        return document

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.document["data"]
        return data


RunCommand = Callable[..., Outcome]


@dataclass(frozen=True, slots=True)
class Demo:
    """A finished demo: its folder, and what the command printed."""

    folder: Path
    outcome: Outcome

    def run(self, *arguments: object, env: Mapping[str, str] | None = None) -> Outcome:
        """Run a command in the demo's folder, as a process of its own."""
        return run_process(arguments, cwd=self.folder, env=env)


def clean_environment(**extra: str) -> dict[str, str]:
    """The variables of a new user's shell: none of ours, none of MLflow's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLX_", "MLFLOW_", "GITHUB_"))
    }
    return kept | {"MLX_ACTOR": "tester"} | extra


def run_process(
    arguments: Iterable[object], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 240
) -> Outcome:
    """Run `mlx` as a process and wait for it."""
    command = [sys.executable, "-m", "mlx_platform.cli", *(str(argument) for argument in arguments)]
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_environment(**(env or {})),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


# What a start of the command line may load beside the standard library.
LIGHT = {"mlx_platform", "typer", "annotated_doc", "shellingham", "typing_extensions"}


def modules_of(*arguments: str) -> set[str]:
    """Every module that a fresh process holds after a command."""
    script = (
        "import sys; from mlx_platform.cli.main import main; code = main(sys.argv[1:]);"
        "sys.stderr.write('LOADED ' + ' '.join(sorted(sys.modules)) + chr(10)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(next(line for line in done.stderr.splitlines() if line.startswith("LOADED ")).split()[1:])


def packages_in(modules: Iterable[str]) -> set[str]:
    """The top-level packages among them that are not of the standard library."""
    names = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    return {name for name in names if not name.startswith(("_", "pytest", "distutils"))}


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
