"""Which scalars are watched, and where logged tensors hold them."""

import numpy as np
import pytest

from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.drift.features import at_positions, output_features, positions
from mlx_platform.inference.spec import ModelSpec, StepSpec


def spec(*shape: int | None, pre: tuple[StepSpec, ...] = ()) -> ModelSpec:
    outputs = (TensorSpec("y", "FP32", (None, 1)),)
    return ModelSpec("regression", (TensorSpec("x", "FP32", (None, *shape)),), outputs, pre=pre)


@pytest.mark.parametrize(
    ("answers", "watched"),
    [
        (
            {"label": text_column(["a"]), "confidence": np.ones(1), "probabilities": np.ones((1, 3))},
            ["label", "confidence", "entropy", "margin"],
        ),
        (
            {"label": text_column(["a"]), "confidence": np.ones(1), "probabilities": np.ones((1, 2))},
            ["label", "confidence"],
        ),
        ({"value": np.ones(1), "other": np.ones(1)}, ["value"]),
        ({"score": np.ones(1), "one": np.ones((1, 1))}, ["score", "one"]),
        ({"few": np.ones((1, 2))}, ["few[0]", "few[1]"]),
        (
            {"many": np.ones((1, 4, 5))},
            ["many.mean", "many.std", "many.norm", *(f"many.projections#{at}" for at in range(32))],
        ),
        ({"words": text_column(["a"] * 40).reshape(1, 40)}, []),
        ({}, []),
    ],
)
def test_answers_are_watched_by_what_they_mean(answers: dict[str, np.ndarray], watched: list[str]) -> None:
    found = output_features(answers)

    assert list(found) == watched
    assert all(column.shape == (1,) for column in found.values())


def test_named_columns_lie_in_the_tensor_in_the_order_of_their_step() -> None:
    step = StepSpec("columns", {"names": ["b", "a"]})

    found = positions(spec(2, pre=(step,)), ["a", "b", "unknown"])

    assert found == {"b": ("x", 0), "a": ("x", 1)}


def test_a_model_without_names_takes_the_columns_in_file_order() -> None:
    assert positions(spec(2), ["p", "q"]) == {"p": ("x", 0), "q": ("x", 1)}
    assert positions(spec(None), ["p", "q"]) == {"p": ("x", 0), "q": ("x", 1)}
    assert positions(spec(3), ["p", "q"]) == {}


def test_features_are_read_out_of_tensors() -> None:
    tensor = np.arange(6.0).reshape(3, 2)

    found = at_positions({"x": tensor}, {"p": ("x", 1), "far": ("x", 9), "else": ("z", 0)})

    assert {name: column.tolist() for name, column in found.items()} == {"p": [1.0, 3.0, 5.0]}
