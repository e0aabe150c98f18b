import numpy as np
import pytest

from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.drift.counts import count
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.drift.profile import build_profile
from mlx_platform.inference.spec import ModelSpec, StepSpec

SPEC = ModelSpec(
    "tensors",
    (TensorSpec("x", "FP32", (None, 2)),),
    (),
    pre=(
        StepSpec("categories", {"column": "plan", "values": ["1", "2"]}),
        StepSpec("columns", {"names": ["age", "plan"]}),
    ),
)
LOOK = InputFeatures(SPEC, None)


@pytest.mark.parametrize(
    "plans",
    [
        np.array([1, 2, 2]),
        np.array([1.0, 2.0, 2.0]),
        text_column(["1", "2", "2"]),
        text_column([1, 2.0, "2"]),
    ],
)
def test_a_declared_category_is_the_same_however_its_number_is_written(plans):
    profile = build_profile(LOOK({"plan": text_column(["1", "2", "1"])}))

    (feature,) = profile.features
    (tally,) = count(profile, LOOK({"plan": plans})).tallies

    assert feature.kind == "categorical"
    assert dict(zip(feature.categories, tally.bins.tolist(), strict=True)) == {"1": 1, "2": 2}


def test_a_declared_number_that_comes_as_text_is_read_or_invalid():
    profile = build_profile(LOOK({"age": text_column(["30", "41.5", "old", None])}))

    (feature,) = profile.features

    assert feature.kind == "discrete"
    assert feature.values == (30.0, 41.5)
    assert (feature.tally.missing.invalid, feature.tally.missing.null) == (1, 1)


def test_a_missing_category_is_missing():
    found = LOOK({"plan": np.array([1.0, np.nan])})

    assert found["plan"].tolist() == ["1", None]
