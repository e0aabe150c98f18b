"""Sequences of different lengths, filled up to share a run."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from batching import LONG, run
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.spec import ModelSpec, StepSpec
from mlx_platform.serving.batcher import Batcher
from mlx_platform.serving.job import Job
from mlx_platform.serving.padding import Padding, bucket, candidate, following


def sequences(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
    """A model of sequences that ends where its mask does: their sums, and twice what is in them."""
    x = np.where(feeds["mask"] > 0, feeds["x"], 0)
    return {"sum": x.sum(axis=1, keepdims=True), "double": 2 * feeds["x"]}


PADDING = Padding({"x": 77.0, "mask": 0}, {"double": (1,)})


def ask_sequence(batcher: Batcher, *values: float, rows: int = 1) -> Job:
    x = np.repeat(np.array([values], np.float32), rows, axis=0)
    feeds = {"x": x, "mask": np.ones_like(x, np.int64)}
    return batcher.submit(feeds, rows, ("sum", "double"), time.monotonic() + LONG, joins=True)


def test_sequences_of_one_bucket_share_a_run_and_get_back_what_is_theirs():
    seen: list[tuple[int, ...]] = []

    def model(*call: Any) -> dict[str, Any]:
        seen.append(call[0]["x"].shape)
        return sequences(*call)

    async def scenario(batcher: Batcher) -> None:
        sent = [[1.0] * 3, [2.0] * 8, [3.0] * 9, [4.0] * 5, [5.0] * 12, [6.0] * 40]
        jobs = [ask_sequence(batcher, *values) for values in sent]
        for values, job in zip(sent, jobs, strict=True):
            answer = (await job.future).outputs
            assert answer["sum"].tolist() == [[sum(values)]]
            assert answer["double"].tolist() == [[2 * value for value in values]]

    run(scenario, model, parts={"padding": PADDING})
    assert sorted(seen) == [(1, 40), (2, 12), (3, 8)]


def test_sequences_are_not_filled_up_where_that_was_not_proven():
    seen: list[tuple[int, ...]] = []

    def model(*call: Any) -> dict[str, Any]:
        seen.append(call[0]["x"].shape)
        return sequences(*call)

    async def scenario(batcher: Batcher) -> None:
        jobs = [ask_sequence(batcher, *[1.0] * length) for length in (3, 4, 3)]
        await asyncio.gather(*[job.future for job in jobs])

    run(scenario, model)
    assert sorted(seen) == [(1, 4), (2, 3)]


def test_inputs_that_do_not_agree_on_a_length_are_left_to_the_model():
    seen: list[tuple[int, ...]] = []

    def model(feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        seen.append((*feeds["x"].shape, *feeds["mask"].shape))
        return {"sum": feeds["x"][:, :1]}

    async def scenario(batcher: Batcher) -> None:
        for _ in range(2):
            feeds = {"x": np.ones((1, 3), np.float32), "mask": np.ones((1, 1), np.int64)}
            await batcher.submit(feeds, 1, ("sum",), time.monotonic() + LONG, joins=True).future

    run(scenario, model, parts={"padding": PADDING})
    assert seen == [(1, 3, 1, 1)] * 2


@settings(max_examples=40, deadline=None)
@given(
    sent=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 5), st.booleans()), min_size=1, max_size=12),
    max_rows=st.integers(1, 6),
    workers=st.integers(1, 2),
)
def test_whatever_their_lengths_sequences_are_answered_as_if_they_were_alone(sent, max_rows, workers):
    async def scenario(batcher: Batcher) -> None:
        jobs = []
        for number, (length, rows, pause) in enumerate(sent):
            values = [1000.0 * number + place for place in range(length)]
            jobs.append((ask_sequence(batcher, *values, rows=rows), values, rows))
            if pause:
                await asyncio.sleep(0)
        for job, values, rows in jobs:
            answer = (await job.future).outputs
            np.testing.assert_array_equal(answer["sum"], [[sum(values)]] * rows)
            np.testing.assert_array_equal(answer["double"], [[2 * value for value in values]] * rows)

    run(scenario, sequences, max_rows=max_rows, workers=workers, parts={"padding": PADDING})


@pytest.mark.parametrize(
    ("length", "bound"),
    [(1, 8), (8, 8), (9, 12), (12, 12), (13, 16), (17, 24), (33, 48), (49, 64), (512, 512)],
)
def test_buckets_grow_by_a_half_at_most(length, bound):
    assert bucket(length) == bound


def test_every_length_has_a_bucket_that_wastes_at_most_a_third():
    for length in range(9, 3000):
        assert length <= bucket(length) < 1.5 * length
        assert bucket(bucket(length)) == bucket(length)


def test_axes_that_follow_the_length_are_found_and_others_forbid_filling_up():
    def outputs(**shapes):
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    short = outputs(pooled=(1, 7), tokens=(1, 3, 7), pairs=(1, 2, 3, 3))
    long = outputs(pooled=(1, 7), tokens=(1, 8, 7), pairs=(1, 2, 8, 8))
    assert following(short, long, (3, 8)) == {"tokens": (1,), "pairs": (2, 3)}
    assert following(outputs(halves=(1, 1)), outputs(halves=(1, 4)), (3, 8)) is None
    assert following(outputs(flat=(3,)), outputs(flat=(1, 8)), (3, 8)) is None


def spec(*names, pre=(), padding=None, datatype="INT64"):
    inputs = tuple(TensorSpec(name, datatype, (None, None)) for name in names)
    return ModelSpec("tensors", inputs, (TensorSpec("y", "FP32", (None, 2)),), pre=pre, padding=padding or {})


def test_what_fills_up_is_declared_or_told_by_the_tokenizer_or_by_a_mask():
    bert = ("input_ids", "attention_mask")
    tokenize = StepSpec("tokenize", {"column": "text", "pad_id": 1})
    assert candidate(spec(*bert)) == {"input_ids": 0, "attention_mask": 0}
    assert candidate(spec(*bert, pre=(tokenize,))) == {"input_ids": 1, "attention_mask": 0}
    assert candidate(spec(*bert, padding={"input_ids": 3, "attention_mask": 0})) == {
        "input_ids": 3,
        "attention_mask": 0,
    }
    assert candidate(spec("x")) == candidate(spec("x", "mask", datatype="FP32")) == {}


def test_only_the_dimension_behind_the_rows_is_filled_up():
    fixed = ModelSpec(
        "tensors",
        (TensorSpec("ids", "INT64", (None, 16)), TensorSpec("mask", "INT64", (None, 16))),
        (TensorSpec("y", "FP32", (None, 2)),),
        padding={"ids": 0},
    )
    assert candidate(fixed) == {}
