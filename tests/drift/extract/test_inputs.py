import cv2
import numpy as np
import pytest

from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.inference.spec import ModelSpec, StepSpec


def test_numbers_and_categories_are_themselves_and_other_columns_are_none():
    spec = ModelSpec(
        "tensors",
        (TensorSpec("x", "FP32", (None, 2)),),
        (),
        pre=(
            StepSpec("categories", {"column": "city", "values": ["Bern"]}),
            StepSpec("columns", {"names": ["age", "city"]}),
        ),
    )
    rows = {"city": text_column(["Bern", b"Oslo"]), "age": np.array([3, 4]), "id": np.array([1, 2])}

    found = InputFeatures(spec, None)(rows)

    assert {name: column.tolist() for name, column in found.items()} == {
        "city": ["Bern", "Oslo"],
        "age": [3, 4],
    }


def test_text_is_watched_by_its_length_and_script():
    spec = ModelSpec(
        "tensors",
        (TensorSpec("input_ids", "INT64", (None, None)),),
        (),
        pre=(StepSpec("tokenize", {"column": "text"}),),
    )

    found = InputFeatures(spec, None)({"text": text_column(["a good film 12", "", "фильм"])})

    assert {name: column.tolist() for name, column in found.items()} == {
        "text.chars": [14, 0, 5],
        "text.words": [4, 0, 1],
        "text.script": ["latin", "none", "cyrillic"],
        "text.digits": pytest.approx([1 / 7, 0, 0]),
        "text.non_ascii": [0, 0, 1],
    }


def test_images_are_watched_by_size_and_brightness():
    spec = ModelSpec(
        "tensors", (TensorSpec("x", "FP32", (None, 3, 4, 4)),), (), pre=(StepSpec("image", {"size": [4, 4]}),)
    )
    png = cv2.imencode(".png", np.full((5, 7, 3), 100, np.uint8))[1].tobytes()

    found = InputFeatures(spec, None)({"image": text_column([png, np.full((2, 3), 7, np.uint8)])})

    assert found["image.width"].tolist() == [7, 3]
    assert found["image.height"].tolist() == [5, 2]
    assert found["image.brightness"] == pytest.approx([100, 7])


def test_tensors_are_watched_by_value_or_by_moments():
    spec = ModelSpec(
        "tensors",
        (
            TensorSpec("a", "FP32", (None, 1)),
            TensorSpec("b", "FP32", (None, 2, 2)),
            TensorSpec("c", "INT64", (None, None)),
        ),
        (),
    )
    ragged = text_column([np.array([1, 3]), np.array([5.0])])

    found = InputFeatures(spec, None)(
        {"a": np.array([[1], [2]]), "b": np.arange(8.0).reshape(2, 2, 2), "c": ragged}
    )

    assert {name: column.tolist() for name, column in found.items()} == {
        "a": [1, 2],
        "b.mean": [1.5, 5.5],
        "b.std": pytest.approx([1.25**0.5] * 2),
        "c.length": [2, 1],
        "c.mean": [2, 5],
    }
