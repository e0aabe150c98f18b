"""What `mlx quantize` was asked for."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.errors import UsageError
from mlx_platform.workflows.quantization.wishes import Wishes

if TYPE_CHECKING:
    from mlx_platform.quantize.rule import Rule
    from mlx_platform.quantize.search import Limits
    from mlx_platform.quantize.target import Target

AUTO = "auto"
MAX_EVALS, MAX_MINUTES = 200, 60.0
FOR_SIZE = frozenset({"fp16", "int4"})
"""Methods that promise no speed: who asks for one of them by name wants a smaller file."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one call; see `mlx_platform.workflows.quantize.quantize`."""

    ref: str
    calibration: Path
    data: Path
    label: str | None
    method: str
    target: "Target"
    rule: "Rule"
    max_drop: str | None
    wishes: Wishes
    limits: "Limits"
    resume: Path | None
    keep_failed: bool
    output: Path | None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are tried."""
        from mlx_platform.quantize.methods import METHODS

        return tuple(METHODS) if self.method == AUTO else (self.method,)

    @property
    def _minutes(self) -> float:
        return (self.limits.seconds or 0) / 60

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: names the flag.
        """
        from mlx_platform.quantize.methods import recipe_of

        if self.method != AUTO:
            recipe_of(self.method, also=(AUTO,))
        if self.limits.evals < 0:
            raise UsageError("--max-evals cannot be negative.", hint="Write 0 for no search.")
        if not 0 < (self.limits.seconds or 0) < 1e9:
            raise UsageError("--max-minutes must be a positive number.", hint="Write --max-minutes 10.")
        self._check_output()

    def _check_output(self) -> None:
        output, source = self.output, Path(self.ref)
        if output is None:
            if self.keep_failed:
                raise UsageError(
                    "--keep-failed needs a place to write to.", hint="Name one with -o model.failed.onnx."
                )
            return
        if output.is_dir() or output.suffix != ".onnx":
            raise UsageError(f"{output} is no name for an ONNX file.", hint="Write -o model.int8.onnx.")
        if source.is_file() and output.exists() and source.samefile(output):
            raise UsageError(f"{output} is the model that is being quantized.", hint="Write to another file.")

    def command(self) -> str:
        """The command that repeats it."""
        return shlex.join(("mlx", "quantize", self.ref, *self._flags()))

    def _flags(self) -> Iterator[str]:
        yield from ("--calibration", str(self.calibration), "--data", str(self.data))
        yield from ("--method", self.method, "--target", self.target.name)
        wishes = self.wishes
        given = {
            "--label": self.label,
            "--calibration-method": None if self.rule.method == "minmax" else self.rule,
            "--max-drop": self.max_drop,
            "--min-speedup": None if wishes.min_speedup is None else f"{wishes.min_speedup:g}",
            "--max-size-ratio": None if wishes.max_size_ratio == 1 else f"{wishes.max_size_ratio:g}",
            "--max-evals": None if self.limits.evals == MAX_EVALS else self.limits.evals,
            "--max-minutes": None if self._minutes == MAX_MINUTES else f"{self._minutes:g}",
            "--output": self.output,
        }
        for flag, value in given.items():
            if value is not None:
                yield from (flag, str(value))
        if self.keep_failed:
            yield "--keep-failed"
