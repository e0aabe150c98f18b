from types import SimpleNamespace

import numpy as np
import pytest

from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.inference.cases import make_case
from mlx_platform.inference.golden import compare_case, seeded_rows
from mlx_platform.inference.spec import ModelSpec, StepSpec


def compare(want, *, columns=None, tensors=None, generated=False):
    case = make_case({"x": np.zeros(1)}, want, rtol=0.1, atol=0.01, generated=generated)
    return compare_case(case, SimpleNamespace(columns=columns or {}, tensors=tensors or {}))


def test_numbers_within_the_tolerance_are_equal_and_others_are_named():
    want = {"value": np.array([1.0, 10.0])}

    assert compare(want, columns={"value": np.array([1.1, 10.9], np.float32)}) == []
    assert compare(want, columns={"value": np.array([1.1, 11.2])}) == [
        "'value' is 11.2, not 10 (rtol 0.1, atol 0.01)."
    ]


def test_nan_is_only_equal_to_nan():
    assert compare({"value": np.array([np.nan])}, columns={"value": np.array([np.nan])}) == []
    assert len(compare({"value": np.array([1.0])}, columns={"value": np.array([np.nan])})) == 1


def test_labels_are_equal_whether_they_are_numbers_or_text():
    assert compare({"label": np.array([3])}, columns={"label": text_column(["3"])}) == []
    assert compare({"label": np.array([3])}, columns={"label": text_column(["4"])}) == [
        "'label' is '4', not '3'."
    ]


def test_a_generated_case_speaks_of_outputs_and_a_persons_of_answers():
    both = {"columns": {"label": text_column(["yes"])}, "tensors": {"label": np.array([1])}}

    assert compare({"label": np.array([1])}, generated=True, **both) == []
    assert compare({"label": text_column(["yes"])}, **both) == []


def test_shapes_and_names_are_compared():
    assert compare({"a": np.zeros(2)}, columns={"a": np.zeros((2, 1))}) == []
    assert compare({"a": np.zeros(2)}, columns={"a": np.zeros(3)}) == ["'a' has the shape [3], not [2]."]
    assert compare({"a": np.zeros(2)}, columns={"b": np.zeros(2)}) == ["the model answers no 'a'."]


def test_seeded_rows_are_the_same_every_time_and_follow_the_signature():
    spec = ModelSpec(
        "tensors",
        (
            TensorSpec("x", "FP32", (None, 2)),
            TensorSpec("ids", "INT64", (None, None)),
            TensorSpec("attention_mask", "INT64", (None, None)),
            TensorSpec("ok", "BOOL", (None,)),
        ),
        (),
        pre=(
            StepSpec("categories", {"column": "city", "values": ["Bern", "Oslo"]}),
            StepSpec("columns", {"names": ["age", "city"], "input": "x"}),
        ),
    )

    first, second = list(seeded_rows(spec, 5)), list(seeded_rows(spec, 5))

    assert [len(rows["age"]) for rows in first] == [1, 4]
    for one, other in zip(first, second, strict=True):
        assert all((one[name] == other[name]).all() for name in one)
    assert set(first[1]["city"]) <= {"Bern", "Oslo"}
    assert first[1]["ids"].shape == (4, 5)
    assert set(first[1]["ids"].ravel()) == {0, 1}
    assert (first[1]["attention_mask"] == 1).all()
    assert first[1]["ok"].dtype == bool


def test_a_fixed_batch_gives_one_case_of_that_size():
    spec = ModelSpec("tensors", (TensorSpec("x", "FP32", (3, 2)),), ())

    assert [rows["x"].shape for rows in seeded_rows(spec, 5)] == [(3, 2)]


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("tensors", (TensorSpec("x", "BYTES", (None,)),), ()),
        ModelSpec("tensors", (TensorSpec("x", "FP32", ()),), ()),
        ModelSpec(
            "tensors",
            (TensorSpec("x", "FP32", (None, 3, 4, 4)),),
            (),
            pre=(StepSpec("image", {"size": [4, 4]}),),
        ),
    ],
)
def test_nothing_is_made_up_for_text_images_and_scalars(spec):
    assert list(seeded_rows(spec, 5)) == []
