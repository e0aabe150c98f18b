"""From what a training script leaves behind to a sealed package."""

import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.tensors import Columns
from mlx_platform.inference.cases import golden_line, read_golden
from mlx_platform.inference.estimator import INPUT, convert_estimator
from mlx_platform.inference.graph import read_network
from mlx_platform.inference.intake import copy_external, copy_plain, source_kind, take_folder
from mlx_platform.inference.mlmodel import mlmodel
from mlx_platform.inference.package import (
    BASELINE,
    GOLDEN,
    LOCK,
    MLMODEL,
    MODEL,
    SPEC,
    Package,
    open_package,
    seal,
    with_file,
)
from mlx_platform.inference.probe import MEMORY, TIMEOUT, ProbeResult, probe
from mlx_platform.inference.spec import (
    ModelSpec,
    StepSpec,
    check_spec,
    parse_spec,
    spec_from_network,
    write_spec,
)

_DISTRIBUTION = "mlx-platform"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What goes into a package besides the source, and the limits of its first run.

    Attributes:
        golden: a file of golden cases, in place of the source's own or generated ones.
        baseline: the content of `baseline.json`.
        max_bytes: size of any one file.
        max_nodes: operators of the network.
        timeout: seconds for checking, loading and running it once.
        memory: bytes of address space for that, on top of three times the package's size.
    """

    golden: Path | None = None
    baseline: bytes | None = None
    max_bytes: int = 2 * 1024**3
    max_nodes: int = 50_000
    timeout: float = TIMEOUT
    memory: int = MEMORY


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A sealed package, what its first run showed, and sentences that somebody should read."""

    package: Package
    probe: ProbeResult
    warnings: tuple[str, ...]


def build_package(
    source: Path, out: Path, options: BuildOptions | None = None, *, seed_rows: Columns | None = None
) -> BuildResult:
    """Build a sealed package.

    Args:
        source: an `.onnx` file, a `.skops` file, or a folder with a network and, where it has them,
            `model.toml`, `assets/`, `golden.jsonl` and `baseline.json`.
        out: the package's folder, made with access for its owner only; removed again after an error.
        options: see `BuildOptions`.
        seed_rows: raw columns to make golden cases from, for models whose signature does not suffice.

    Raises:
        NotFoundError: there is no such source.
        UsageError: the source cannot be registered, with the reason.
    """
    options = options or BuildOptions()
    with _new_folder(out):
        columns, warnings = _take(source, out, options)
        folder = source if source.is_dir() else source.parent
        network = read_network(out / MODEL, max_nodes=options.max_nodes, shown=str(source))
        copy_external(network.external, folder, out, cap=options.max_bytes)
        found = spec_from_network(network)
        if columns:
            found = replace(found, pre=(StepSpec("columns", {"names": list(columns), "input": INPUT}),))
        spec = _settle_spec(out / SPEC, found)
        (out / MLMODEL).write_text(mlmodel(spec), encoding="utf-8")
        (out / LOCK).write_text(environment_lock(), encoding="utf-8")
        _settle_golden(out / GOLDEN, options.golden)
        if options.baseline is not None:
            (out / BASELINE).write_bytes(options.baseline)
        seal(out)
        shown = probe(out, seed_rows=seed_rows, timeout=options.timeout, memory=options.memory)
        package = open_package(out, verify=False)
        if shown.golden:
            package = with_file(package, GOLDEN, b"".join(map(golden_line, shown.golden)))
    left = [
        name for name in warnings if name not in {Path(external).parts[0] for external in network.external}
    ]
    notes = [f"Left out, as it is no part of a package: {', '.join(left)}."] if left else []
    return BuildResult(package, shown, (*notes, *shown.warnings))


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    try:
        out.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UsageError(f"The folder {out} cannot be made: {error.strerror}.") from error
    try:
        yield
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _take(source: Path, out: Path, options: BuildOptions) -> tuple[tuple[str, ...], list[str]]:
    """Copy or convert the source; returns its column names and what was left behind."""
    if source.is_dir():
        return (), take_folder(source, out, cap=options.max_bytes)
    if not source.exists():
        raise NotFoundError(f"There is no model {source}.")
    if source_kind(source) == "onnx":
        copy_plain(source, out / MODEL, cap=options.max_bytes, links=True)
        return (), []
    converted = convert_estimator(source, cap=options.max_bytes)
    (out / MODEL).write_bytes(converted.network)
    return converted.columns, []


def _settle_spec(path: Path, found: ModelSpec) -> ModelSpec:
    """Complete `model.toml` from the network; a file that says everything stays as its author wrote it."""
    if not path.exists():
        check_spec(found)
        path.write_text(write_spec(found), encoding="utf-8")
        return found
    declared = parse_spec(path.read_text(encoding="utf-8", errors="replace"), SPEC)
    same_task = declared.task == found.task
    complete = replace(
        declared,
        inputs=declared.inputs or found.inputs,
        outputs=declared.outputs or found.outputs,
        labels=declared.labels or (found.labels if same_task else ()),
        post=declared.post or (found.post if same_task else ()),
    )
    check_spec(complete)
    if complete != declared:
        path.write_text(write_spec(complete), encoding="utf-8")
    return complete


def _settle_golden(path: Path, given: Path | None) -> None:
    """Keep somebody's golden cases in one form; generated ones are made anew."""
    if given is not None:
        cases = read_golden(given)
        if not cases:
            raise UsageError(f"{given} holds no golden case.")
    else:
        cases = read_golden(path) if path.exists() else ()
    cases = tuple(case for case in cases if not case.generated)
    if cases:
        path.write_bytes(b"".join(map(golden_line, cases)))
    else:
        path.unlink(missing_ok=True)


def environment_lock() -> str:
    """The exact versions that the package was built with, as TOML: Python, platform, direct dependencies."""
    lines = [
        f'python = "{platform.python_version()}"',
        f'platform = "{platform.system().lower()}-{platform.machine()}"',
        "",
        "[packages]",
    ]
    needed = (line for line in metadata.requires(_DISTRIBUTION) or () if "extra ==" not in line)
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in needed}
    for name in sorted({_DISTRIBUTION, "onnxruntime-gpu", *names}):
        try:
            lines.append(f'"{name}" = "{metadata.version(name)}"')
        except metadata.PackageNotFoundError:
            continue  # the GPU build of onnxruntime takes the place of the other
    return "\n".join(lines) + "\n"
