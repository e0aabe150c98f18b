"""From a model file to a smaller one in one call, for tests of what comes before or after."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from mlx_platform.core.tensors import Tensors
from mlx_platform.quantize.cache import CalibrationCache
from mlx_platform.quantize.methods import METHODS, Made, make
from mlx_platform.quantize.prepare import prepare
from mlx_platform.quantize.rule import Rule
from mlx_platform.quantize.static import observe
from mlx_platform.quantize.target import AVX2, Target


def quantize(
    path: Path,
    folder: Path,
    feeds: Iterable[Tensors],
    probe: Sequence[Tensors],
    *,
    method: str = "static",
    target: Target = AVX2,
    rule: Rule | None = None,
    cache: CalibrationCache | None = None,
) -> Made:
    """Make `made.onnx` in a folder, which is made too."""
    folder.mkdir(exist_ok=True)
    prepared = prepare(path, folder, probe, methods=[method])
    ranges = None
    if METHODS[method].calibrated:
        rule = rule or Rule()
        ranges = rule.ranges(observe(prepared, feeds, folder, cache, extremes_only=rule.extremes_only).seen)
    return make(method, prepared, folder / "made.onnx", probe, target, ranges=ranges)
