"""Memory that stays within its bounds, and keeps what is asked for."""

import hashlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.serving.cache.admission import Frequencies, Worth
from mlx_platform.serving.cache.memory import Memory


def hashed(number):
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def answer(number, cells=10):
    return {"y": np.full(cells, number, np.float32)}


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 2000)), max_size=200))
def test_it_never_holds_more_than_it_may_and_only_gives_what_was_put(steps):
    memory, known = Memory(20_000, 10_000), {}
    for number, cells in steps:
        found = memory.get(hashed(number))
        if found is not None:
            assert np.array_equal(found["y"], known[number])
        else:
            known[number] = answer(number, cells)["y"]
            memory.put(hashed(number), {"y": known[number]})
        assert memory.size <= 20_000
        assert len(memory) <= 20_000 // 400
    assert memory.size == sum(entry.size for entry in memory._entries.values())


def test_what_it_gives_can_be_changed_without_harm():
    memory = Memory(10_000, 10_000)
    given_array = np.zeros(3)
    memory.put(hashed(1), {"y": given_array})
    given_array[:] = 9
    memory.get(hashed(1))["y"][:] = 8
    assert memory.get(hashed(1))["y"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("text", [False, True])
def test_what_it_says_it_holds_is_what_it_holds(text):
    memory = Memory(2**24, 2**20)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(3000):
            label = {"label": np.array([f"class number {number}"], object)} if text else {}
            memory.put(hashed(number), answer(number) | label)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(memory) == 3000
    assert 0.7 * memory.size < held < 1.15 * memory.size


def test_a_value_beyond_the_limit_is_not_kept():
    memory = Memory(10_000, 2_000)
    memory.put(hashed(1), answer(1, 1000))
    assert len(memory) == 0
    memory.put(hashed(1), {"t": np.array(["a" * 3000], object)})
    assert len(memory) == 0


def test_questions_that_nobody_repeats_do_not_push_out_those_that_somebody_does():
    memory, hits = Memory(64_000, 10_000), 0
    for step in range(6000):
        # Sixty popular questions take turns between four others each: the last hundred are nearly all others.
        number = step // 5 % 60 if step % 5 == 0 else 1000 + step
        if memory.get(hashed(number)) is not None:
            hits += 1
        else:
            memory.put(hashed(number), answer(number))
    assert len(memory) < 120
    assert hits > 0.8 * 6000 / 5
    assert memory.refused > memory.evictions


def test_when_other_questions_become_the_popular_ones_they_take_over():
    memory = Memory(20_000, 10_000)
    for era in range(2):
        for _ in range(60):
            for number in range(30):
                name = hashed((era, number))
                if memory.get(name) is None:
                    memory.put(name, answer(number))
    assert sum(memory.get(hashed((1, number))) is not None for number in range(30)) >= 27


def test_frequencies_are_never_too_low_and_fade():
    frequencies = Frequencies(2**10)
    for number in range(100):
        for _ in range(number % 5):
            frequencies.see(hashed(number), 10_000)
    assert all(frequencies.estimate(hashed(number)) >= number % 5 for number in range(100))
    before = frequencies.estimate(hashed(4))
    for number in range(1000, 2000):
        frequencies.see(hashed(number), 10)
    assert frequencies.estimate(hashed(4)) < before + 1


def question(number, kind="numbers"):
    if kind == "numbers":
        return {"x": np.array([[number, 1.0]], np.float32), "y": np.array([number])}
    if kind == "long":
        return {"x": np.full((1, 50_000), number, np.float32)}
    return {"text": np.array([f"{'word ' * 1000}{number}{' word' * 1000}", f"and {number}"], object)}


@pytest.mark.parametrize("kind", ["numbers", "long", "texts"])
def test_a_cache_that_nobody_hits_is_left_alone_until_questions_repeat(kind):
    worth = Worth(0.05, window=64)
    for number in range(64):
        assert worth.takes(question(number, kind))
        worth.learn(hit=False)
    assert worth.sampling
    asked = [number for number in range(800) if worth.takes(question(number, kind))]
    assert 800 / 32 < len(asked) < 800 / 8
    assert all(worth.takes(question(number, kind)) for number in asked)
    for _ in asked[:8]:
        worth.learn(hit=True)
    assert not worth.sampling


def test_a_cache_that_must_always_be_asked_is():
    worth = Worth(0.0, window=8)
    for _ in range(100):
        worth.learn(hit=False)
    assert not worth.sampling


def test_a_few_questions_that_everybody_asks_are_among_the_sample_in_time():
    worth = Worth(0.05, window=64)
    for number in range(200):
        if worth.takes({"x": np.array([1000 + number])}):
            worth.learn(hit=False)
    assert worth.sampling
    hot = {"x": np.array([1])}
    known = False
    for _ in range(16 * 64 * 17):
        if worth.takes(hot):
            worth.learn(hit=known)
            known = True

    assert not worth.sampling
