"""Keys tell apart whatever an answer depends on, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from mlx_platform.serving.cache.key import KEY_BYTES, KeyMaker, array_bytes

BASE = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


def key(arrays=BASE, outputs=("y",), parts=(b"", b""), *, digest="d", stage="answer", tolerance=0.0):
    return KeyMaker(digest, stage, tolerance).make(arrays, outputs, parts)


@pytest.mark.parametrize(
    "other",
    [
        {"arrays": {"x": BASE["x"].reshape(3, 2)}},
        {"arrays": {"x": BASE["x"].reshape(1, 6)}},
        {"arrays": {"x": BASE["x"].view(np.int32)}},
        {"arrays": {"z": BASE["x"]}},
        {"arrays": BASE | {"z": BASE["x"]}},
        {"arrays": {"x": BASE["x"] + np.float32(1e-7) * BASE["x"]}},
        {"outputs": ("y", "z")},
        {"outputs": ()},
        {"parts": (b"tenant", b"")},
        {"parts": (b"", b"tenant")},
        {"parts": (b"",)},
        {"digest": "e"},
        {"stage": "prepared"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_differs_makes_another_key(other):
    assert key(**other) != key()


def test_the_same_question_has_the_same_key_however_it_lies_in_memory():
    strided = np.arange(12, dtype=np.float32).reshape(2, 6)
    strided[:, ::2] = BASE["x"]
    assert key({"x": strided[:, ::2]}) == key({"x": np.asfortranarray(BASE["x"])}) == key()
    assert key(outputs=("a", "b")) == key(outputs=("b", "a"))
    assert key({"a": BASE["x"], "b": BASE["x"]}) == key({"b": BASE["x"], "a": BASE["x"]})
    assert len(key()) == KEY_BYTES


def test_texts_and_arrays_in_cells_are_told_apart_by_what_they_are():
    cells = [
        "a",
        "ab",
        "1",
        1,
        1.0,
        True,
        None,
        b"a",
        "\ud800",
        np.arange(2),
        np.arange(2.0),
        bytearray(b"b"),
    ]
    columns = []
    for cell in cells:
        column = np.empty(1, dtype=object)
        column[0] = cell
        columns.append({"x": column})
    pairs = [{"x": np.array(["ab", "c"], object)}, {"x": np.array(["a", "bc"], object)}]
    assert len({key(arrays) for arrays in (*columns, *pairs)}) == len(cells) + len(pairs)


@pytest.mark.parametrize("dtype", ["?", "f2", "f4", "f8", "u1", "i8", "O"])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 2)])
def test_every_datatype_and_shape_has_a_key(dtype, shape):
    zeros = np.zeros(shape, dtype)
    assert key({"x": zeros}) == key({"x": zeros.copy()})
    assert array_bytes({"x": zeros}) >= zeros.nbytes


@given(some.arrays(np.float64, 3, elements=st.floats(-1e6, 1e6)), st.floats(1e-6, 10.0))
def test_two_questions_with_one_key_differ_by_no_more_than_the_tolerance(values, tolerance):
    near = values + tolerance * np.array([0.4, -0.4, 0.0])
    same = key({"x": values}, tolerance=tolerance) == key({"x": near}, tolerance=tolerance)
    far = key({"x": values}, tolerance=tolerance) == key({"x": values + 1.1 * tolerance}, tolerance=tolerance)
    steps = np.rint(values / tolerance), np.rint(near / tolerance)
    assert same == np.array_equal(*steps)
    assert not far or np.abs(values).max() > 1e15 * tolerance


def test_a_tolerance_concerns_floats_only_and_never_makes_large_numbers_one():
    for small, large in ((np.int64(1), np.int64(2)), (np.float64(1e308), np.float64(1.1e308))):
        assert key({"x": np.array([small])}, tolerance=1e-3) != key({"x": np.array([large])}, tolerance=1e-3)
    zeros = key({"x": np.array([0.0])}, tolerance=1e-3), key({"x": np.array([-0.0])}, tolerance=1e-3)
    assert zeros[0] == zeros[1]
    assert key({"x": np.array([0.0])}) != key({"x": np.array([-0.0])})


def test_what_clients_choose_is_remembered_within_bounds():
    maker = KeyMaker("d", "answer")
    known = {maker.make(BASE, ("y",), (b"%d" % tenant, b"")) for tenant in range(2000)}
    assert len(known) == 2000
    for size in range(1, 300):
        maker.make({"x": np.zeros(size)}, ("y",), (b"", b"p" * (10_000 + size)))
    assert len(maker._starts) <= 256
    assert len(maker._heads) <= 256
    assert sum(len(part) for _, parts in maker._starts for part in parts) < 256 * 1024
    again = {maker.make(BASE, ("y",), (b"%d" % tenant, b"")) for tenant in range(2000)}
    assert again == known
