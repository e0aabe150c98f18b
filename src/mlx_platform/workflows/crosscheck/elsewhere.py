"""A request answered by another Python with other libraries: both ends of the pipe to it.

This file is also what that Python runs, by its path and in isolation: with this package's own code and the
libraries that it finds there. A line of JSON goes each way for each request, arrays written as in a log.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_platform.workflows.crosscheck.answering import Answered, Case

_PACKAGE = "mlx_platform"
_LIBRARIES = ("numpy", "onnxruntime", "onnxruntime-gpu", "opencv-python-headless", "orjson", "tokenizers")
"""Those that answers depend on: what the pipeline and the network run on."""
OWN_LOCK = "lock"
"""Stands for the package's own lock file."""
_TOLD = 400  # characters of what a Python says that does not start


class Elsewhere:
    """Answers of another environment; `versions` are those of its Python and libraries."""

    def __init__(self, process: "subprocess.Popen[bytes]", name: str, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log
        self.versions: dict[str, str] = self._ask(None)

    def answers(self, cases: Sequence["Case"]) -> list["Answered"]:
        return [self._answer(case) for case in cases]

    def _answer(self, case: "Case") -> "Answered":
        from mlx_platform.core.tensors import decode_array, encode_array
        from mlx_platform.workflows.crosscheck.answering import Answered

        inputs = {name: encode_array(array) for name, array in case.inputs.items()}
        said = self._ask({"inputs": inputs, "raw": case.raw, "asked": case.asked})
        columns = {name: decode_array(encoded) for name, encoded in said["columns"].items()}
        return Answered(columns, said["hashes"], said["problem"])

    def _ask(self, question: dict[str, Any] | None) -> dict[str, Any]:
        from mlx_platform.core.errors import UsageError
        from mlx_platform.core.text import printable

        process = self._process
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
        line = b""
        with suppress(BrokenPipeError):
            if question is not None:
                process.stdin.write(json.dumps(question).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            process.wait()
            told = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise UsageError(
                f"{self.name} cannot answer: {printable(told[0], _TOLD)}.",
                hint="It needs Python 3.11 or newer with the libraries of the lock file.",
            )
        said: dict[str, Any] = json.loads(line)
        return said


@contextmanager
def elsewhere(path: Path, package: Path, threads: int) -> Iterator[Elsewhere]:
    """The package in another environment, loaded once.

    Args:
        path: a Python, the folder of its virtual environment, or a file of requirements or the lock of a
            package, of which a temporary one is made with pip; `OWN_LOCK` is that of this package.
        package: the folder of a sealed package.
        threads: of a run; 0 as everywhere.

    Raises:
        UsageError: there is no Python, or it has not what the package needs.
    """
    from mlx_platform.inference.package import LOCK

    with tempfile.TemporaryDirectory(prefix="mlx-environment-") as folder:
        python = _python(package / LOCK if str(path) == OWN_LOCK else path, Path(folder))
        root = Path(__file__).resolve().parents[2]
        log = Path(folder) / "stderr"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [python, "-I", __file__, str(root), str(package), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        try:
            yield Elsewhere(process, str(path), log)
        finally:
            process.kill()
            process.communicate()


def _python(path: Path, folder: Path) -> str:
    from mlx_platform.core.errors import UsageError

    if path.is_dir():
        for name in ("bin/python", "Scripts/python.exe"):
            if (path / name).exists():
                return str(path / name)
        raise UsageError(f"{path} is no virtual environment: it has no bin/python.")
    if not path.is_file():
        raise UsageError(
            f"There is no environment {path}.", hint="Name a Python, its folder, or a lock file."
        )
    if os.access(path, os.X_OK):
        return str(path)
    return _installed(path, folder)


def _installed(path: Path, folder: Path) -> str:
    """The Python of a new environment with what the file asks for."""
    from mlx_platform.core.errors import UsageError
    from mlx_platform.core.text import printable

    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*install, *_requirements(path)]):
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
            raise UsageError(f"{path} cannot be installed: {printable(last[0], _TOLD)}")
    return python


def _requirements(path: Path) -> list[str]:
    """What pip is to install: of a package's lock what answers depend on, of any other file all of it."""
    try:
        packages = tomllib.loads(path.read_text(encoding="utf-8")).get("packages", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return ["-r", str(path)]
    return [f"{name}=={packages[name]}" for name in _LIBRARIES if name in packages]


def versions() -> dict[str, str]:
    """Of this Python and of the libraries that it has of those that answers depend on."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main(root: str, package: str, threads: str) -> None:
    """Answer one line after the other until there are no more."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, it does not print into the answers
    _borrow(Path(root))
    from mlx_platform.core.tensors import decode_array, encode_array
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import open_package
    from mlx_platform.workflows.crosscheck.answering import Case, answer

    model = Model.load(open_package(Path(package)), device="cpu", threads=int(threads))
    pipe.write(json.dumps(versions()).encode() + b"\n")
    pipe.flush()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        inputs = {name: decode_array(encoded) for name, encoded in asked["inputs"].items()}
        wanted = tuple(asked["asked"]) if asked["asked"] is not None else None
        found = answer(model, Case("", inputs, asked["raw"], wanted))
        said = {
            "columns": {name: encode_array(array) for name, array in found.columns.items()},
            "hashes": found.hashes,
            "problem": found.problem,
        }
        pipe.write(json.dumps(said).encode() + b"\n")
        pipe.flush()


def _borrow(root: Path) -> None:
    """Have this package importable without whatever else lies beside it."""
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main(*sys.argv[1:])
