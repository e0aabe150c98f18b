"""Static INT8 of one ONNX file, start to end: prepare, calibrate, build, verify."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlx_platform.core.tensors import Tensors
from mlx_platform.quantize.build import build
from mlx_platform.quantize.cache import CalibrationCache, Recalled
from mlx_platform.quantize.calibrate import Histogram, Range, calibrate
from mlx_platform.quantize.plan import Built, plan
from mlx_platform.quantize.prepare import Prepared, prepare
from mlx_platform.quantize.rule import Rule
from mlx_platform.quantize.target import Target, this_machine
from mlx_platform.quantize.verify import LayerError, Verified, layer_errors, verify


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
    import onnx

    options = options or StaticOptions()
    target, threads = options.target or this_machine(), options.threads
    prepared = prepare(model_path, folder, probe, threads=threads, name=name)
    chosen = plan(onnx.load(prepared.path, load_external_data=False))
    extremes_only = options.rule.extremes_only

    def run() -> Mapping[str, Histogram]:
        return calibrate(
            prepared.path,
            chosen.tensors,
            feeds,
            folder,
            extremes_only=extremes_only,
            threads=threads,
            advance=advance,
            row_name=row_name,
        )

    recalled = (
        options.cache.recall(prepared.path, chosen.tensors, run, extremes_only=extremes_only)
        if options.cache
        else Recalled(run(), before=False)
    )
    found = options.rule.ranges(recalled.seen)
    out = folder / "quantized.onnx"
    built = build(prepared.path, out, chosen, found, target, model_name=name or model_path.name)
    verified = verify(model_path, out, probe, folder, threads=threads)
    errors = layer_errors(prepared.path, out, built.plan, probe, folder, threads=threads)
    return Quantized(out, target, prepared, found, built, verified, errors, recalled)
