"""Static INT8 of one ONNX file, start to end: prepare, calibrate, build, verify."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlx_platform.core.tensors import Tensors
from mlx_platform.quantize.cache import CalibrationCache, Recalled
from mlx_platform.quantize.calibrate import Histogram, Range, calibrate
from mlx_platform.quantize.methods import make, plan_of
from mlx_platform.quantize.plan import Built
from mlx_platform.quantize.prepare import Prepared, prepare
from mlx_platform.quantize.rule import Rule
from mlx_platform.quantize.target import AUTO, Target, parse_target
from mlx_platform.quantize.verify import LayerError, Verified


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """`rule` chooses the ranges of activations. No target: this machine; no cache: rows always run."""

    rule: Rule = field(default_factory=Rule)
    cache: CalibrationCache | None = None
    target: Target | None = None
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Quantized:
    """The INT8 file and how it came about."""

    path: Path
    target: Target
    prepared: Prepared
    ranges: Mapping[str, Range]
    built: Built
    verified: Verified
    layer_errors: tuple[LayerError, ...]
    recalled: Recalled

    @property
    def left_out(self) -> Mapping[str, str]:
        """Weighted nodes that stayed float, with the reason."""
        return {**self.prepared.inspection.left_out, **self.built.left_out}


def quantize_static(
    model_path: Path,
    folder: Path,
    feeds: Iterable[Tensors],
    probe: Sequence[Tensors],
    options: StaticOptions | None = None,
    *,
    advance: Callable[[int], None] = lambda _rows: None,
    row_name: Callable[[int], str] = "row {}".format,
    name: str = "",
) -> Quantized:
    """Make `quantized.onnx` in a private folder.

    Args:
        model_path: the float32 model; only read.
        folder: an empty folder for this call alone, removed by the caller.
        feeds: the calibration rows as model inputs, batch by batch.
        probe: a few batches on which the result is run.
        options: how; the defaults are safe on every processor of this machine's family.
        advance: told how many calibration rows are done.
        row_name: what to call a calibration row in messages, counted from 0.
        name: what to call the model in messages; the file's name by default.

    Raises:
        UndecidedError: INT8 does not apply to the model, or what came out cannot be trusted.
        UsageError: a calibration row makes a tensor NaN or infinite.
    """
    options = options or StaticOptions()
    target, threads = options.target or parse_target(AUTO), options.threads
    prepared = prepare(model_path, folder, probe, threads=threads, name=name)
    recalled = observe(
        prepared,
        feeds,
        folder,
        options.cache,
        extremes_only=options.rule.extremes_only,
        threads=threads,
        advance=advance,
        row_name=row_name,
    )
    found = options.rule.ranges(recalled.seen)
    out = folder / "quantized.onnx"
    made = make("static", prepared, out, probe, target, ranges=found, threads=threads)
    return Quantized(out, target, prepared, found, made.built, made.verified, made.layer_errors, recalled)


def observe(
    prepared: Prepared,
    feeds: Iterable[Tensors],
    folder: Path,
    cache: CalibrationCache | None = None,
    *,
    extremes_only: bool,
    threads: int = 1,
    advance: Callable[[int], None] = lambda _rows: None,
    row_name: Callable[[int], str] = "row {}".format,
) -> Recalled:
    """What the tensors of a prepared model are on calibration rows, from the cache where it knows.

    Args:
        prepared: the model.
        feeds: the calibration rows as model inputs, batch by batch.
        folder: a private folder.
        cache: of earlier calibrations; without one the rows always run.
        extremes_only: leave the histograms empty, which takes half the time.
        threads: within one operator.
        advance: told how many calibration rows are done.
        row_name: what to call a calibration row in messages, counted from 0.

    Raises:
        UndecidedError: static quantization has no layer in this model.
        UsageError: a calibration row makes a tensor NaN or infinite.
    """
    tensors = plan_of("static", prepared).tensors

    def run() -> Mapping[str, Histogram]:
        return calibrate(
            prepared.path,
            tensors,
            feeds,
            folder,
            extremes_only=extremes_only,
            threads=threads,
            advance=advance,
            row_name=row_name,
        )

    if cache is None:
        return Recalled(run(), before=False)
    return cache.recall(prepared.path, tensors, run, extremes_only=extremes_only)
