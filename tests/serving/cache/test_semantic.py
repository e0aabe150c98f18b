"""Texts that mean the same get one answer, and no others do."""

import asyncio

import numpy as np
import orjson
import pytest
from caching import exchange
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import embedder_package, judge_package
from text_models import load as load_texts

from mlx_platform.core.errors import GateFailedError, UsageError
from mlx_platform.core.serving_settings import AnswerCacheSettings, SemanticCacheSettings, ServingSettings
from mlx_platform.serving.cache.caches import Caches
from mlx_platform.serving.cache.embedder import UNRELATED, Embedder
from mlx_platform.serving.cache.meanings import Meanings
from mlx_platform.serving.cache.telling import Telling
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.protocol_v2 import InferRequest


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    packages = {
        "judge": judge_package(folder / "judge"),
        "embedder": embedder_package(folder / "embedder"),
        "tokens": embedder_package(folder / "tokens", per_token=True),
        "broken": embedder_package(folder / "broken", broken=True),
    }
    return {name: load_texts(package, name) for name, package in packages.items()}


def with_engine(models, scenario, *, embedder="embedder", backend="off", **semantic):
    options = ServingSettings(
        cache=AnswerCacheSettings(backend=backend),
        # A busy machine is no slow model.
        semantic_cache=SemanticCacheSettings(**({"timeout_ms": 5000.0, "check": 0.0} | semantic)),
    )

    async def main():
        model = models["judge"]
        caches = Caches.of(model, options, models[embedder])
        engine = Engine(model, options, Metrics(), None, caches=caches)
        await engine.start()
        try:
            return await scenario(engine)
        finally:
            await engine.close(1.0)

    return asyncio.run(main())


async def ask(engine, *texts, strictness=1.0, **members):
    asked = exchange(endpoint="predict", **members)
    answers = await engine.predict([{"text": text, "strictness": [strictness]} for text in texts], asked)
    return asked.cache, answers["label"].tolist(), answers["confidence"].tolist()


async def settled(engine):
    """Wait until what was learnt has been kept."""
    semantic = engine.caches.answers.semantic
    await asyncio.wrap_future(semantic._thread.submit(lambda: None))


def test_a_text_that_means_the_same_gets_the_answer_of_the_first(models):
    async def scenario(engine):
        first = await ask(engine, "the film and the great movie")
        await settled(engine)
        again = await ask(engine, "a movie and the wonderful film")
        other = await ask(engine, "the film and the awful movie")
        assert (first[0], again[0], other[0]) == ("miss", "semantic", "miss")
        assert again[1:] == first[1:]
        assert other[1] == ["bad"]
        assert engine.caches.answers.outcomes == {"hit": 0, "semantic": 1, "miss": 2, "bypass": 0}

    with_engine(models, scenario)


def test_whoever_waits_for_an_answer_by_meaning_is_told_that_it_is_one(models):
    async def scenario(engine):
        await ask(engine, "great film")
        await settled(engine)
        for _ in range(50):  # until one is early enough to wait for another
            found = await asyncio.gather(*(ask(engine, "wonderful movie") for _ in range(3)))
            assert [outcome for outcome, *_ in found] == ["semantic"] * 3
            if engine.caches.answers.coalesced:
                return
        pytest.fail("Nobody ever waited.")

    with_engine(models, scenario)


def test_before_the_meaning_comes_the_letter(models):
    async def scenario(engine):
        outcomes = []
        for text in ("great film", "great film", "wonderful movie", "wonderful movie"):
            outcomes.append((await ask(engine, text))[0])
            await settled(engine)
        assert outcomes == ["miss", "hit", "semantic", "semantic"]

    with_engine(models, scenario, backend="memory")


@pytest.mark.parametrize(
    "members",
    [{"tenant": b"b"}, {"parameters": b'{"k":2}'}, {"strictness": 0.5}],
    ids=lambda m: next(iter(m)),
)
def test_what_else_an_answer_depends_on_has_to_be_equal(models, members):
    async def scenario(engine):
        await ask(engine, "great film", tenant=b"a")
        await settled(engine)
        other = await ask(engine, "great film", **({"tenant": b"a"} | members))
        own = await ask(engine, "wonderful movie", tenant=b"a")
        assert (other[0], own[0]) == ("miss", "semantic")

    with_engine(models, scenario)


def test_several_texts_at_once_and_tensors_are_asked_of_the_model(models):
    async def scenario(engine):
        assert (await ask(engine, "great film", "awful film"))[0] == "bypass"
        feeds = {"input_ids": np.array([[1]]), "strictness": np.ones((1, 1), np.float32)}
        call = InferRequest(None, feeds, {}, ("probabilities",), frozenset(), None)
        asked = exchange()
        await engine.infer(call, asked)
        assert asked.cache == "bypass"

    with_engine(models, scenario)


def test_a_text_that_the_embedding_model_does_not_take_is_asked_of_the_model(models, monkeypatch):
    real = models["embedder"].encode

    def encode(columns):
        if any("terrible" in text for text in columns["text"]):
            raise UsageError("not this word")
        return real(columns)

    async def scenario(engine):
        monkeypatch.setattr(models["embedder"], "encode", encode)
        texts = ("terrible film", "great film", "awful film")
        found = await asyncio.gather(*(ask(engine, text) for text in texts))
        assert [outcome for outcome, *_ in found] == ["bypass", "miss", "miss"]
        assert [label for _, (label,), _ in found] == ["bad", "good", "bad"]

    with_engine(models, scenario)


def test_every_so_many_hits_the_model_answers_as_well_and_agreement_is_counted(models):
    async def scenario(engine):
        outcomes = []
        for text in ("great film", "wonderful movie", "great movie", "wonderful film", "great film"):
            outcomes.append((await ask(engine, text))[0])
            await settled(engine)
        assert outcomes == ["miss", "semantic", "miss", "semantic", "miss"]
        semantic = engine.caches.answers.semantic
        assert (semantic.checked, semantic.agreed) == (2, 2)

    with_engine(models, scenario, check=0.5)


def test_a_cache_whose_answers_are_not_the_models_ends(models, monkeypatch, caplog):
    async def scenario(engine):
        semantic = engine.caches.answers.semantic
        await ask(engine, "great film")
        await settled(engine)
        monkeypatch.setattr(semantic, "_same", lambda *_: semantic.checked % 4 != 0)
        for _ in range(20):
            assert (await ask(engine, "wonderful movie"))[0] == "miss"
            await settled(engine)
        assert (semantic.checked, semantic.agreed) == (20, 15)
        assert (await ask(engine, "wonderful movie"))[0] == "bypass"
        assert semantic.skipped["off"] == 1

    with_engine(models, scenario, check=1.0)
    assert "5 of 20 answers" in caplog.text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Is this covered?", "Is this not covered?"),
        ("It isn't covered", "It is covered"),
        ("It isn\u2019t covered", "It is covered"),
        ("Order 1234", "Order 1235"),
        ("from 1 to 2", "from 2 to 1"),
        ("3.5 litres", "3,5 litres"),
        ("on 2026-11-30", "on 2026-11-29"),
        ("NOT covered", "covered"),
    ],
)
def test_numbers_and_negations_tell_texts_apart(first, second):
    telling = Telling(SemanticCacheSettings().telling)
    assert telling.marks(first) != telling.marks(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It is not covered", "it isn't covered"),
        ("Order 1234, please", "please: order 1234"),
        ("a knot", "a note"),
        ("Notes of 2026", "Nothing from 2026"),
    ],
)
def test_other_words_do_not(first, second):
    telling = Telling(SemanticCacheSettings().telling)
    assert telling.marks(first) == telling.marks(second)


def test_a_telling_word_is_asked_of_the_model(models):
    async def scenario(engine):
        outcomes = []
        for text in ("great film", "not wonderful movie", "never wonderful movie", "not wonderful film"):
            outcomes.append((await ask(engine, text))[0])
            await settled(engine)
        assert outcomes == ["miss", "miss", "miss", "semantic"]

    with_engine(models, scenario, similarity=0.5)


def test_a_lookup_that_takes_too_long_is_not_waited_for(models):
    async def scenario(engine):
        semantic = engine.caches.answers.semantic
        blocked = semantic._thread.submit(asyncio.run, asyncio.sleep(0.3))
        assert (await ask(engine, "great film"))[1] == ["good"]
        assert semantic.skipped["timeout"] == 1
        await asyncio.wrap_future(blocked)

    with_engine(models, scenario, timeout_ms=20.0)


def test_an_answer_that_comes_after_the_end_is_given_and_not_kept(models):
    async def scenario(engine):
        semantic = engine.caches.answers.semantic
        asked = exchange(endpoint="predict", rows=1, inputs={"text": np.array(["great film"], object)})
        near = await semantic.find(("probabilities",), asked)
        semantic.close()
        semantic.keep(near, {"probabilities": np.zeros((1, 2))})
        assert await semantic.find(("probabilities",), asked) is None
        assert len(semantic.meanings) == 0

    with_engine(models, scenario)


def test_a_model_that_finds_everything_alike_is_not_served_with(models):
    async def scenario(engine):
        raise AssertionError(engine)

    with pytest.raises(GateFailedError, match=r"finds texts alike that are not \(1\.000"):
        with_engine(models, scenario, embedder="broken")


@pytest.mark.parametrize(
    ("labels", "alike"), [(("good", "bad"), True), (("good", "good"), False)], ids=["different", "the same"]
)
def test_golden_texts_of_different_labels_have_to_be_told_apart(models, tmp_path, labels, alike):
    texts = ("great film", "wonderful movie")
    rows = [
        {"inputs": {"text": [text], "strictness": [[1.0]]}, "outputs": {"label": [label]}}
        for text, label in zip(texts, labels, strict=True)
    ]
    golden = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    model = load_texts(judge_package(tmp_path / "judge", golden), "judge")
    caches = Caches.of(model, ServingSettings(), models["embedder"])
    if alike:
        with pytest.raises(GateFailedError, match="'great film' and 'wonderful movie'"):
            caches.check()
    else:
        caches.check()


@pytest.mark.parametrize("name", ["embedder", "tokens"])
def test_padding_does_not_change_a_vector(models, name):
    embedder = Embedder(models[name])
    texts = ["great film", "the film and the great movie and a wonderful film"]
    together = embedder.embed(texts)
    alone = [embedder.embed([text])[0] for text in texts]
    for left, right in zip(together, alone, strict=True):
        assert float(left @ right) == pytest.approx(1, abs=1e-5)
    embedder.check(0.95, {text: text for text in UNRELATED})


def test_what_gives_no_vectors_or_takes_no_text_makes_none(models, load):
    with pytest.raises(UsageError, match="must take one text column"):
        Embedder(load("affine"))
    with pytest.raises(UsageError, match="must take one text column"):
        Embedder(models["judge"])


def test_a_model_without_a_text_or_with_outputs_that_vary_has_no_semantic_cache(models, load):
    for model, problem in ((load("affine"), "one text column"), (models["tokens"], "outputs of one size")):
        with pytest.raises(UsageError, match=problem):
            Caches.of(model, ServingSettings(), models["embedder"])


def unit(*numbers):
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=80), st.integers(1, 6))
def test_meanings_are_bounded_partitioned_and_give_the_nearest(steps, most):
    directions = np.random.default_rng(0).standard_normal((13, 24)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    meanings, recent = Meanings(most, 0.95), {}
    for group, number in steps:
        partition = bytes([group])
        found = meanings.find(partition, directions[number])
        assert (found is not None) == ((group, number) in recent)
        if found is None:
            meanings.add(partition, directions[number], {"y": np.array([group, number])})
        else:
            assert found["y"].tolist() == [group, number]
            recent.pop((group, number))
        recent[group, number] = True
        while len(recent) > most:
            recent.pop(next(iter(recent)))
        assert len(meanings) == len(recent)
        assert set(meanings._partitions) == {bytes([kept]) for kept, _ in recent}


def test_nothing_is_near_a_vector_that_is_no_number():
    meanings = Meanings(4, 0.5)
    meanings.add(b"p", unit(1, 0), {"y": np.zeros(1)})
    assert meanings.find(b"p", np.array([np.nan, 0], np.float32)) is None
    assert meanings.find(b"p", unit(1, 1)) is not None
    assert meanings.find(b"p", unit(1, 2)) is None
    assert meanings.find(b"q", unit(1, 0)) is None
