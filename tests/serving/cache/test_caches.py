"""Caches put together from settings: what is refused, what is counted, what a header asks for."""

import asyncio

import numpy as np
import pytest
from caching import exchange
from text_models import judge_package
from text_models import load as load_texts

from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import AnswerCacheSettings, SemanticCacheSettings, ServingSettings
from mlx_platform.core.settings import load_settings
from mlx_platform.serving.cache.caches import Caches
from mlx_platform.serving.cache.shared import Shared
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.metrics import Metrics


def caches(model, environment=None, **cache):
    settings = ServingSettings(cache=AnswerCacheSettings(**cache))
    return Caches.of(model, settings, environment=environment or {})


def test_by_default_nothing_is_remembered(load):
    found = Caches.of(load("affine"), ServingSettings())
    assert (found.answers, found.prepared) == (None, None)
    assert list(found.samples()) == []


@pytest.mark.parametrize(
    ("cache", "problem"),
    [
        ({}, "says nothing of where it is"),
        ({"redis_url": "redis://:hunter2@127.0.0.1:1/0"}, "holds a password"),
        ({"redis_url": "redis://ada:hunter2@127.0.0.1:1/0"}, "holds a password"),
        (
            {"redis_url": "redis://127.0.0.1:1/0", "redis_password_env": "NOT_SET"},
            "'NOT_SET', which is not set",
        ),
        ({"redis_url": "redis://127.0.0.1:1/0", "secret_env": "NOT_SET"}, "'NOT_SET', which is not set"),
        ({"redis_url": "file:///etc/passwd"}, "no address of a Redis server"),
    ],
)
def test_settings_of_redis_that_cannot_be_followed_are_said_without_the_secret(load, cache, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        caches(load("affine"), backend="redis", **cache)
    assert "hunter2" not in str(caught.value)


def test_secrets_come_from_the_environment(load):
    names = {"redis_password_env": "WORD", "secret_env": "KEY"}
    url = "redis://127.0.0.1:1/0"
    found = caches(load("affine"), {"WORD": "w", "KEY": "k"}, backend="redis", redis_url=url, **names)
    assert isinstance(found.answers.store, Shared)
    assert found.answers.store.redis._address.password == "w"  # noqa: S105 - of the test
    assert found.answers.store._secret == b"k"


@pytest.mark.parametrize(
    ("url", "password", "missing"),
    [
        ("redis://cache.example:6379/0", "", "a password"),
        ("redis://cache.example:6379/0", "w", "TLS"),
        ("rediss://cache.example:6379/0", "", "a password"),
        ("rediss://cache.example:6379/0", "w", ""),
        ("redis://localhost:6379/0", "", ""),
        ("redis://[::1]:6379/0", "", ""),
        ("unix:///run/redis.sock", "", ""),
    ],
)
def test_a_redis_elsewhere_that_anybody_could_be_is_warned_of(load, caplog, url, password, missing):
    names = {"redis_password_env": "WORD"} if password else {}
    caches(load("affine"), {"WORD": password}, backend="redis", redis_url=url, **names)
    assert (missing in caplog.text) if missing else not caplog.text


def test_a_variable_sets_a_key_of_a_table_within_a_table(tmp_path):
    (tmp_path / "mlx.toml").write_text('[serving.semantic_cache]\nmodels = ["faq-*"]\n')
    environment = {
        "MLX_SERVING_CACHE_BACKEND": "memory",
        "MLX_SERVING_CACHE_MAX_BYTES": "70000",
        "MLX_SERVING_SEMANTIC_CACHE_SIMILARITY": "0.9",
        "MLX_SERVING_PORT": "8080",
    }
    serving = load_settings(environment=environment, start=tmp_path).serving
    assert (serving.cache.backend, serving.cache.max_bytes, serving.port) == ("memory", 70_000, 8080)
    assert serving.semantic_cache == SemanticCacheSettings(models=("faq-*",), similarity=0.9)
    with pytest.raises(UsageError, match=r"serving\.cache\.backnd"):
        load_settings(environment={"MLX_SERVING_CACHE_BACKND": "memory"}, start=tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_tolerance_is_a_number(tmp_path, value):
    with pytest.raises(UsageError, match="tolerance"):
        load_settings(environment={"MLX_SERVING_CACHE_TOLERANCE": value}, start=tmp_path)


@pytest.mark.parametrize(
    ("headers", "tenant", "skips"),
    [
        ({}, b"", False),
        ({b"x-team": b"red"}, b"red", False),
        ({b"x-tenant-id": b"red"}, b"", False),
        ({b"cache-control": b"No-Cache"}, b"", True),
        ({b"cache-control": b"max-age=0, no-store"}, b"", True),
        ({b"cache-control": b"max-age=0"}, b"", False),
    ],
)
def test_a_header_says_whose_a_request_is_and_whether_to_remember_it(load, headers, tenant, skips):
    found = caches(load("affine"), backend="memory", tenant_header="X-Team")
    asked = exchange()
    found.read_wishes(asked, headers)
    assert (asked.tenant, asked.skip_cache) == (tenant, skips)


def test_the_same_text_is_prepared_once_and_counted(tmp_path, monkeypatch):
    model = load_texts(judge_package(tmp_path / "judge"), "judge")
    real, prepared = model.prepare, []

    def prepare(columns, *go_on):
        prepared.append(columns["text"].tolist())
        return real(columns, *go_on)

    async def main():
        settings = ServingSettings(cache=AnswerCacheSettings(prepared_bytes=2**20, min_hit_rate=0.0))
        engine = Engine(model, settings, Metrics(), None, caches=Caches.of(model, settings))
        await engine.start()
        monkeypatch.setattr(model, "prepare", prepare)
        texts = ("great film", "great film", "awful film")
        rows = [[{"text": text, "strictness": [1.0]}] for text in texts]
        together = await asyncio.gather(*(engine.predict(row, exchange(endpoint="predict")) for row in rows))
        again = await engine.predict(rows[2], exchange(endpoint="predict", skip_cache=True))
        counts = [sample for sample in engine.caches.samples() if "requests" in sample.name]
        await engine.close(1.0)
        return [*together, again], counts

    answers, counts = asyncio.run(main())
    assert [answer["label"].tolist() for answer in answers] == [["good"], ["good"], ["bad"], ["bad"]]
    assert prepared == [["great film"], ["awful film"], ["awful film"]]
    assert [(dict(sample.labels)["outcome"], sample.value) for sample in counts] == [
        ("hit", 1),
        ("miss", 2),
        ("bypass", 1),
    ]


def test_an_input_that_cannot_be_prepared_is_refused_to_everybody_who_sent_it(tmp_path):
    model = load_texts(judge_package(tmp_path / "judge"), "judge")

    async def main():
        settings = ServingSettings(cache=AnswerCacheSettings(prepared_bytes=2**20))
        engine = Engine(model, settings, Metrics(), None, caches=Caches.of(model, settings))
        await engine.start()
        rows = [{"text": "great " * (model.spec.limits.max_text_chars // 6 + 1), "strictness": [1.0]}]
        asked = (engine.predict(rows, exchange(endpoint="predict")) for _ in range(3))
        found = await asyncio.gather(*asked, return_exceptions=True)
        good = await engine.predict([{"text": "great", "strictness": [1.0]}], exchange(endpoint="predict"))
        await engine.close(1.0)
        return found, good

    refusals, good = asyncio.run(main())
    assert [refusal.status for refusal in refusals] == [400] * 3
    assert good["label"].tolist() == ["good"]
    assert np.isfinite(good["confidence"]).all()


def test_a_cache_that_there_is_not_is_refused_with_those_that_there_are(mlx, tmp_path):
    outcome = mlx("serve", tmp_path / "model.onnx", "--cache", "disk")
    assert outcome.code == 2
    assert "--cache" in outcome.err
    assert all(backend in outcome.err for backend in ("off", "memory", "redis"))
