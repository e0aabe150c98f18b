"""What static INT8 needs to know of a prepared model: its tensors on calibration rows."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mlx_platform.core.tensors import Tensors
from mlx_platform.quantize.cache import CalibrationCache, Recalled
from mlx_platform.quantize.calibrate import Histogram, calibrate
from mlx_platform.quantize.methods import plan_of
from mlx_platform.quantize.prepare import Prepared


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
