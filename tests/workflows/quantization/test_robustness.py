"""What a quantization leaves behind when something stops it, and that two of them do not meet."""

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disks import small_disk
from projects import Project
from support import Outcome, run_process

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.build import BuildOptions, build_package
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.quantize import quantize

NO_SEARCH = {"max_drop": "2pp", "max_evals": 0}


@pytest.fixture
def registered(project: Project, digit_models: dict[str, Any]) -> Project:
    """A project with the perceptron as `small/1`."""
    package = build_package(digit_models["perceptron"], project.folder / "built", BuildOptions()).package
    project.catalog.register("small", package, Lineage())
    return project


class Interrupting:
    """Ctrl-C in a stage of that name: when it begins, or when the first rows are done."""

    def __init__(self, name: str, *, at_rows: bool = False) -> None:
        self.name, self.at_rows = name, at_rows

    @contextmanager
    def stage(
        self,
        name: str,
        total: int | None = None,  # noqa: ARG002 - nothing is drawn
    ) -> Iterator[Callable[[int], None]]:
        hit = name.startswith(self.name)
        if hit and not self.at_rows:
            raise KeyboardInterrupt

        def advance(_rows: int) -> None:
            if hit:
                raise KeyboardInterrupt

        yield advance


@pytest.mark.parametrize(
    ("stage", "at_rows"),
    [("comparing", False), ("calibrating", False), ("calibrating", True), ("sealing", False)],
)
def test_ctrl_c_leaves_nothing(
    registered: Project, digit_rows, tmp_path: Path, scratch: Path, stage: str, at_rows: bool
) -> None:
    (tmp_path / "out").mkdir()
    progress = Interrupting(stage, at_rows=at_rows)
    context = replace(registered.context, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        quantize(
            context,
            "small/1",
            calibration=digit_rows[0],
            data=digit_rows[1],
            output=tmp_path / "out" / "small.onnx",
            **NO_SEARCH,
        )

    assert list(scratch.iterdir()) == []
    assert list((tmp_path / "out").iterdir()) == []
    assert len(registered.catalog.versions("small")) == 1


def command(project: Project, rows: tuple[Path, Path], *more: object, **variables: str) -> Outcome:
    return run_process(
        ["quantize", "small/1", "--calibration", rows[0], "--data", rows[1], "--max-drop", "2pp", *more],
        cwd=project.folder,
        env={"HOME": os.environ["HOME"], "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"], **variables},
    )


def test_a_full_disk_for_temporary_files_leaves_nothing(
    registered: Project, digit_rows, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as mounted:
        if not mounted:
            pytest.skip("no file system can be made here")
        outcome = command(registered, digit_rows, TMPDIR=str(tmp_path / "disk"))

        assert list((tmp_path / "disk").iterdir()) == []
    assert outcome.code == 9, outcome.err
    assert "are free" in outcome.err
    assert len(registered.catalog.versions("small")) == 1


def test_a_full_disk_for_the_output_registers_nothing(
    registered: Project, digit_rows, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 8 << 10) as mounted:
        if not mounted:
            pytest.skip("no file system can be made here")
        with pytest.raises(UsageError, match="No space left"):
            quantize(
                registered.context,
                "small/1",
                calibration=digit_rows[0],
                data=digit_rows[1],
                output=tmp_path / "disk" / "small.onnx",
                **NO_SEARCH,
            )

        assert list((tmp_path / "disk").iterdir()) == []
    assert len(registered.catalog.versions("small")) == 1


def test_a_folder_that_cannot_be_written_is_enough_for_the_source(
    registered: Project, digit_models, digit_rows, tmp_path: Path
) -> None:
    source = tmp_path / "disk"
    with small_disk(source, 1 << 20) as mounted:
        model = source / "small.onnx"
        model.write_bytes(digit_models["perceptron"].read_bytes())
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(source)], check=True)
        else:
            source.chmod(0o555)
        output = tmp_path / "small.int8.onnx"
        result = quantize(
            registered.context,
            str(model),
            calibration=digit_rows[0],
            data=digit_rows[1],
            output=output,
            **NO_SEARCH,
        )

        assert [path.name for path in source.iterdir()] == ["small.onnx"]
    assert result.exit_code == 0
    assert output.is_file()


def test_two_commands_at_once_on_one_version_make_one_version(registered: Project, digit_rows) -> None:
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: command(registered, digit_rows, "--json"), range(2)))

    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert {outcome.data["version"]["version"] for outcome in outcomes} == {2}
    assert len(registered.anew().versions("small")) == 2
