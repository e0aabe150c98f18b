"""A package's first run, in a process of its own under limits on memory and time.

A few hundred bytes of network can ask for terabytes or never end; the process that asks is not the one that
registers.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.tensors import Array, Columns, encode_array
from mlx_platform.core.text import first_line, printable
from mlx_platform.inference.cases import GoldenCase, make_case, parse_case
from mlx_platform.inference.golden import SIZES, compare_case, seeded_rows
from mlx_platform.inference.package import MODEL, open_package

MEMORY = 8 * 1024**3  # bytes of address space, on top of what the model's own files take
TIMEOUT = 60.0  # seconds
_RTOL, _ATOL = 1e-3, 1e-4  # other machines sum in another order


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the first run showed.

    Attributes:
        golden: cases made from the signature, empty where the package brought its own or none can be made.
        warnings: sentences.
        load_seconds: from the file to the loaded network.
    """

    golden: tuple[GoldenCase, ...]
    warnings: tuple[str, ...]
    load_seconds: float


def probe(
    root: Path, *, seed_rows: Columns | None = None, timeout: float = TIMEOUT, memory: int = MEMORY
) -> ProbeResult:
    """Check, load and run a sealed package in a child process.

    `onnx.checker` reads the network by path; ONNX Runtime loads it; the golden cases run twice, where a
    difference is refused, and their answers must be the expected ones. A package without cases gets some:
    the model's own answers to `seed_rows`, or to seeded inputs made from the signature.

    Args:
        root: the package's folder.
        seed_rows: raw columns.
        timeout: seconds for all of it.
        memory: bytes of address space, on top of three times the package's size.

    Raises:
        UsageError: the model is refused, with the reason.
    """
    limit = memory + 3 * open_package(root, verify=False).size
    seeds = {name: encode_array(column) for name, column in (seed_rows or {}).items()}
    command = [sys.executable, "-P", "-m", "mlx_platform.inference.probe", str(root), str(limit)]
    try:
        done = subprocess.run(
            command, input=json.dumps(seeds).encode(), capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"The model was not loaded and run within {timeout:g} s.",
            hint="Look for a loop in the network.",
        ) from error
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        last = f": {printable(lines[-1], 200)}" if lines else ""
        raise UsageError(
            f"The model ended the process that loaded it (status {done.returncode}){last}.",
            hint=f"It had {limit / 1024**3:.1f} GiB of address space.",
        ) from error
    if "refused" in report:
        raise UsageError(report["refused"], hint=report["hint"])
    return ProbeResult(
        golden=tuple(parse_case(case, "probe") for case in report["golden"]),
        warnings=tuple(report["warnings"]),
        load_seconds=report["load_seconds"],
    )


def _examine(root: Path, seeds: dict[str, Any]) -> dict[str, Any]:
    """What the child does; its answer is JSON-ready."""
    from mlx_platform.inference.model import Model

    _check_network(root / MODEL)
    package = open_package(root, verify=False)
    start = time.perf_counter()
    model = Model.load(package, device="cpu")
    seconds = time.perf_counter() - start
    golden: list[GoldenCase] = []
    warnings: list[str] = []
    cases = package.golden()
    for number, case in enumerate(cases, 1):
        for problem in compare_case(case, _twice(model, case)):
            raise UsageError(f"Golden case {number} does not come out: {problem}")
    if not cases:
        golden, warnings = _make_golden(model, seeds)
    return {
        "golden": [case.document() for case in golden],
        "warnings": warnings,
        "load_seconds": seconds,
    }


def _check_network(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # ValidationError, and what the parser under it raises
        raise UsageError(f"The network is not valid ONNX: {first_line(error)}.") from error


def _twice(model: Any, case: GoldenCase) -> Any:
    first, second = model.answer(case), model.answer(case)
    for name, value in first.tensors.items():
        if not _same(value, second.tensors[name]):
            raise UsageError(
                f"The model is not deterministic: two runs of one input differ in {printable(name, 80)!r}.",
                hint="Export it in inference mode (no dropout), with fixed seeds.",
            )
    return first


def _same(one: Array, other: Array) -> bool:
    if one.dtype.kind == "O":
        return bool(one.shape == other.shape and (one == other).all())
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _make_golden(model: Any, seeds: dict[str, Any]) -> tuple[list[GoldenCase], list[str]]:
    if seeds:
        return [_observed(model, GoldenCase(seeds, {}))], []
    problem = "its inputs are text, images or scalars, for which no values can be made"
    for size in SIZES:
        made = list(seeded_rows(model.spec, size))
        if not made:
            break
        try:
            for rows in made:
                model.run(model.encode(rows))
        except UsageError as error:
            problem = f"it does not take made-up inputs ({error.message})"
        else:
            return [_observed(model, make_case(rows, {}, rtol=_RTOL, atol=_ATOL)) for rows in made], []
    return [], [f"The model has no golden cases, as {problem}: its self-check checks nothing."]


def _observed(model: Any, case: GoldenCase) -> GoldenCase:
    outputs = _twice(model, case).tensors
    return make_case(case.rows(), outputs, rtol=_RTOL, atol=_ATOL, generated=True)


def main(arguments: Sequence[str]) -> None:
    """The child: limit itself, examine the folder, answer one JSON document on standard output."""
    root, limit = Path(arguments[0]), int(arguments[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever a library prints must not end up in the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        report = _examine(root, json.load(sys.stdin))
    except MlxError as error:
        report = {"refused": error.message, "hint": error.hint}
    except MemoryError:
        report = {
            "refused": f"The model needs more than {limit / 1024**3:.1f} GiB of address space.",
            "hint": "",
        }
    with answer:
        json.dump(report, answer)


if __name__ == "__main__":
    main(sys.argv[1:])
