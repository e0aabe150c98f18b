import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.inference.spec import ModelSpec, StepSpec
from mlx_platform.workflows.quantization.coverage import Coverage, cover, warnings_of

SETTINGS = DriftSettings()


def spec_of(*names: str) -> ModelSpec:
    pre = (StepSpec("columns", {"names": list(names)}),) if names else ()
    return ModelSpec(
        task="tensors",
        inputs=(TensorSpec("x", "FP32", (None, max(1, len(names)))),),
        outputs=(),
        labels=(),
        pre=pre,
        post=(),
    )


def columns(rows: int, seed: int, **shift: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(shift.get(name, 0), 1, rows) for name in ("a", "b", "c")}


def test_rows_of_one_source_cover_each_other() -> None:
    found = cover(spec_of("a", "b", "c"), columns(800, 0), columns(800, 1), SETTINGS)

    assert found.share > 0.99
    assert found.features == 3
    assert found.different == ()
    assert warnings_of(found, SETTINGS) == ()


def test_random_rows_in_place_of_real_ones_are_noticed() -> None:
    real = {name: 8 + 4 * column for name, column in columns(800, 1).items()}

    found = cover(spec_of("a", "b", "c"), columns(800, 0), real, SETTINGS)

    assert set(found.different) == {"a", "b", "c"}
    assert found.share < 0.5
    alike, within = warnings_of(found, SETTINGS)
    assert "3 of 3 features" in alike
    assert "random" in alike
    assert "judged values lie within" in within


def test_one_feature_of_many_that_differs_is_no_warning() -> None:
    found = Coverage(0.99, 10, ("a",), ())

    assert warnings_of(found, SETTINGS) == ()


def test_words_that_calibration_never_saw_are_outside() -> None:
    calibration = {"a": text_column(["x", "y"] * 200)}
    judged = {"a": text_column(["x", "y", "z", "w"] * 100)}
    spec = spec_of()

    assert cover(spec, calibration, judged, SETTINGS).share == pytest.approx(0.5)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(UsageError, match="'d' is missing"):
        cover(spec_of("a", "d"), columns(10, 0), columns(10, 1), SETTINGS)
