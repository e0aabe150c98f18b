"""Answers of another Python, which here is this one in another folder."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from linear_models import classifier, pack

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.inference.package import LOCK, Package
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.crosscheck.answering import Case
from mlx_platform.workflows.crosscheck.check import Origin, cross_check
from mlx_platform.workflows.crosscheck.elsewhere import _LIBRARIES, _requirements, elsewhere
from mlx_platform.workflows.crosscheck.pairs import Wanted

ROWS = {f"x{index}": np.array([0.1, 0.2]) for index in range(3)}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Package:
    return pack(classifier(tmp_path_factory.mktemp("models") / "one", 3 * np.eye(3)))


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with this one's libraries, whose tokenizers say that they are older."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    libraries = next((folder / "lib").glob("python*")) / "site-packages"
    # Looked at after the folder itself.
    (libraries / "others.pth").write_text(str(Path(onnxruntime.__file__).parents[1]))
    (libraries / "tokenizers-0.1.dist-info").mkdir()
    (libraries / "tokenizers-0.1.dist-info" / "METADATA").write_text("Name: tokenizers\nVersion: 0.1\n")
    return folder


def test_another_environment_answers_with_its_own_libraries(package, environment):
    with elsewhere(environment, package.root, 1) as side:
        assert side.versions["tokenizers"] == "0.1"
        assert side.versions["onnxruntime"] == onnxruntime.__version__
        (answer, problem) = side.answers([Case("a", ROWS, raw=True), Case("b", {}, raw=True)])

    assert answer.columns["probabilities"].shape == (2, 3)
    assert answer.hashes.keys() == {"tensor", "logits", "output"}
    assert problem.problem


def test_the_check_tells_what_differs_between_the_two(tmp_path, package, environment):
    context = make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({name: np.linspace(0, 1, 500) for name in ROWS}), path)
    result = cross_check(context, str(package.root), Wanted(environment=environment), Origin(data=path))

    (check,) = result.data["checks"]
    assert (check["check"], check["verdict"], check["compared"]) == ("environment", "pass", 400)
    assert check["differences_between"]["tokenizers"]["right"] == "0.1"


def test_an_environment_without_libraries_says_which_is_missing(tmp_path, package):
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    with (
        pytest.raises(UsageError, match="cannot answer: ModuleNotFoundError: No module named"),
        elsewhere(folder / "bin" / "python", package.root, 1),
    ):
        pass


def test_of_a_lock_file_only_what_answers_depend_on_is_installed(package, tmp_path):
    wanted = _requirements(package.root / LOCK)
    assert f"onnxruntime=={onnxruntime.__version__}" in wanted
    assert {line.partition("==")[0] for line in wanted} <= set(_LIBRARIES)

    path = tmp_path / "requirements.txt"
    path.write_text("numpy>=2\n")
    assert _requirements(path) == ["-r", str(path)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "There is no environment"),
        (".", "no virtual environment"),
        ("lock.txt", "cannot be installed"),
    ],
)
def test_what_is_no_environment_is_refused(tmp_path, package, name, message):
    (tmp_path / "lock.txt").write_text("./there-is-no-such-folder\n")
    with (
        pytest.raises(UsageError, match=message),
        elsewhere(tmp_path / name, package.root, 1),
    ):
        pass
