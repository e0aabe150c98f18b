"""What clients of one version can do with another."""

from dataclasses import replace

import pytest

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.spec import ModelSpec, StepSpec
from mlx_platform.serving.following.compatibility import differences

SPEC = ModelSpec(
    task="classification",
    inputs=(TensorSpec("x", "FP32", (None, 4)),),
    outputs=(TensorSpec("probabilities", "FP32", (None, 3)),),
    labels=("low", "mid", "high"),
    pre=(StepSpec("columns", {"names": ["a", "b", "c", "d"]}),),
    post=(StepSpec("labels", {"output": "probabilities"}),),
)
RAW = ModelSpec(
    task="tensors",
    inputs=(TensorSpec("x", "FP32", (None, 4)),),
    outputs=(TensorSpec("y", "FP32", (None, None)),),
)


def columns(*names):
    return replace(SPEC, pre=(StepSpec("columns", {"names": list(names)}),))


def raw(inputs=RAW.inputs, outputs=RAW.outputs):
    return replace(RAW, inputs=inputs, outputs=outputs)


X, Y = RAW.inputs[0], RAW.outputs[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SPEC, SPEC),
        (SPEC, columns("d", "c", "b", "a")),
        (RAW, raw(inputs=(replace(X, shape=(None, None)),))),
        (RAW, raw(outputs=(Y, TensorSpec("z", "INT64", (None,))))),
        (RAW, raw(outputs=(replace(Y, shape=(None, 7)),))),
    ],
)
def test_what_no_client_would_notice(before, after):
    assert differences(before, after) == ()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (SPEC, replace(SPEC, labels=("low", "high", "mid")), "other labels"),
        (
            SPEC,
            replace(SPEC, labels=(), task="tensors", post=()),
            "it does tensors",
        ),
        (SPEC, columns("a", "b", "c", "e"), "needs the columns e"),
        (SPEC, replace(SPEC, pre=()), "columns in another way"),
        (raw(inputs=(replace(X, shape=(None, None)),)), RAW, "its input x FP32"),
        (RAW, raw(inputs=(replace(X, datatype="FP64"),)), "its input x FP64"),
        (RAW, raw(inputs=(replace(X, name="z"),)), "it has no input x"),
        (RAW, raw(inputs=(X, TensorSpec("mask", "INT64", (None, 4)))), "needs the inputs mask"),
        (RAW, raw(outputs=(replace(Y, shape=(None,)),)), "its output y"),
        (RAW, raw(outputs=(replace(Y, name="z"),)), "it has no output y"),
        (raw(outputs=(replace(Y, shape=(None, 7)),)), RAW, "its output y FP32"),
    ],
)
def test_what_a_client_would_notice(before, after, said):
    assert any(said in each for each in differences(before, after)), differences(before, after)


def test_a_column_that_holds_something_else_is_told():
    def spec(number, photo):
        return ModelSpec(
            task="tensors",
            inputs=(TensorSpec("x", "FP32", (None, 1)), TensorSpec("pixels", "FP32", (None, 3, 2, 2))),
            outputs=(TensorSpec("y", "FP32", (None,)),),
            pre=(
                StepSpec("columns", {"names": [number], "input": "x"}),
                StepSpec("image", {"column": photo, "input": "pixels", "size": [2, 2]}),
            ),
        )

    assert differences(spec("a", "b"), spec("a", "b")) == ()
    assert differences(spec("a", "b"), spec("b", "a")) == (
        "the column b holds something else",
        "the column a holds something else",
    )
