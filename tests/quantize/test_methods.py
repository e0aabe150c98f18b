from pathlib import Path

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.quantize.methods import Made, make
from mlx_platform.quantize.prepare import prepare
from mlx_platform.quantize.runtime import start
from mlx_platform.quantize.target import AVX2


def made_by(method: str, path: Path, folder: Path, feeds, **options) -> Made:
    folder.mkdir(exist_ok=True)
    prepared = prepare(path, folder, feeds[:2])
    return make(method, prepared, folder / f"{method}.onnx", feeds[:2], AVX2, **options)


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return start(path).run(None, feeds)


def test_dynamic_int8_needs_no_calibration_and_runs_every_layer_in_integers(
    perceptron: Path, digits, tmp_path: Path
) -> None:
    made = made_by("dynamic", perceptron, tmp_path / "q", digits.feeds())

    before, after = (run(path, {"X": digits.test}) for path in (perceptron, made.path))
    assert np.mean(before[0] == after[0]) > 0.98
    assert made.verified.size_after < 0.4 * made.verified.size_before
    assert made.verified.quantized_layers == 3
    assert sum(made.verified.kernels.values()) == 3
    assert [entry.node for entry in made.layer_errors]
    assert 0 < made.layer_errors[0].error < 0.1


def test_an_unknown_method_is_named_with_the_closest(perceptron: Path, digits, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'dynamik'") as caught:
        made_by("dynamik", perceptron, tmp_path / "q", digits.feeds())

    assert "dynamic" in caught.value.hint
