"""The caches of one version, put together as the settings say, with their counts."""

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import SplitResult, parse_qs, urlsplit

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import AnswerCacheSettings, SemanticCacheSettings, ServingSettings
from mlx_platform.core.tensors import Tensors
from mlx_platform.core.text import listed, printable
from mlx_platform.inference.model import Model
from mlx_platform.serving.cache.admission import Worth
from mlx_platform.serving.cache.answers import Answers
from mlx_platform.serving.cache.embedder import Embedder
from mlx_platform.serving.cache.key import KeyMaker
from mlx_platform.serving.cache.meanings import Meanings
from mlx_platform.serving.cache.memory import Memory
from mlx_platform.serving.cache.prepared import Prepared
from mlx_platform.serving.cache.redis_store import RedisAddress, RedisStore
from mlx_platform.serving.cache.semantic import Semantic
from mlx_platform.serving.cache.shared import Shared
from mlx_platform.serving.cache.telling import Telling
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.metrics import Sample

_THIS_MACHINE = frozenset((None, "127.0.0.1", "::1", "localhost"))
_logger = logging.getLogger(__name__)
_MOST_GOLDEN = 64  # texts; each is compared with each


@dataclass(frozen=True, slots=True)
class Caches:
    """What an engine asks before it works; any part may be missing.

    Attributes:
        answers: outputs by what they depend on.
        prepared: input tensors by raw columns.
        tenant_header: the request header, in lower case, whose values share nothing.
    """

    answers: Answers | None = None
    prepared: Prepared | None = None
    tenant_header: bytes = b""

    @classmethod
    def of(
        cls,
        model: Model,
        settings: ServingSettings,
        embedder: Model | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "Caches":
        """Put the caches of a version together; nothing is asked or started yet.

        Args:
            model: what is served.
            settings: what to keep, and how much of it.
            embedder: the model of the semantic cache, where this version has one.
            environment: variables with secrets.

        Raises:
            UsageError: settings that cannot be followed.
        """
        wanted = settings.cache
        environment = os.environ if environment is None else environment
        keys = partial(KeyMaker, model.digest)
        store = _store(model, wanted, environment)
        semantic = None
        if embedder is not None:
            semantic_keys = keys("semantic", wanted.tolerance)
            semantic = _semantic(model, settings.semantic_cache, Embedder(embedder), semantic_keys)
        answers = None
        if store is not None or semantic is not None:
            answers = Answers(keys("answer", wanted.tolerance), store, Worth(wanted.min_hit_rate), semantic)
        prepared = None
        if wanted.prepared_bytes:
            memory = Memory(wanted.prepared_bytes, wanted.prepared_bytes // 8)
            prepared = Prepared(keys("prepared"), memory, Worth(wanted.min_hit_rate))
        return cls(answers, prepared, wanted.tenant_header.lower().encode())

    def read_wishes(self, exchange: Exchange, headers: Mapping[bytes, bytes]) -> None:
        """Note what the headers of a request say about caches: whose it is, and whether to ask one at all."""
        exchange.tenant = headers.get(self.tenant_header, b"")
        control = headers.get(b"cache-control")
        if control is not None:
            exchange.skip_cache = b"no-cache" in control.lower() or b"no-store" in control.lower()

    def check(self) -> None:
        """Make sure that the semantic cache, if there is one, tells texts apart; takes as long as a few runs.

        Raises:
            GateFailedError: it does not.
        """
        if self.answers is not None and self.answers.semantic is not None:
            self.answers.semantic.check_meanings()

    def start(self) -> None:
        """Begin to look for Redis; call it on the event loop."""
        if self.answers is not None and isinstance(self.answers.store, Shared):
            self.answers.store.redis.start()

    async def close(self) -> None:
        """Write what waits to be written, and let go of threads and connections."""
        if self.answers is None:
            return
        if self.answers.semantic is not None:
            self.answers.semantic.close()
        if isinstance(self.answers.store, Shared):
            await self.answers.store.redis.close()

    def samples(self) -> Iterator[Sample]:
        """What is counted, for a scrape on any thread."""
        if self.answers is not None:
            yield from _answer_samples(self.answers)
        if self.prepared is not None:
            yield from _prepared_samples(self.prepared)


def _prepared_samples(prepared: Prepared) -> Iterator[Sample]:
    counts = (("hit", prepared.hits), ("miss", prepared.misses), ("bypass", prepared.bypasses))
    text = "Requests whose prepared inputs were looked for, by outcome."
    for outcome, value in counts:
        yield Sample("mlx_prepared_cache_requests", text, value, (("outcome", outcome),))
    yield from _memory_samples("prepared", prepared.memory)


def _answer_samples(answers: Answers) -> Iterator[Sample]:
    for outcome, value in tuple(answers.outcomes.items()):
        yield Sample(
            "mlx_cache_requests",
            "Predictions by what the cache did: hits, misses and bypasses are all of them.",
            value,
            (("outcome", outcome),),
        )
    yield Sample(
        "mlx_cache_coalesced",
        "Hits that waited for the same question of somebody else.",
        answers.coalesced,
    )
    if isinstance(answers.store, Memory):
        yield from _memory_samples("answers", answers.store)
    elif answers.store is not None:
        yield from _redis_samples(answers.store)
    if answers.semantic is not None:
        yield from _semantic_samples(answers.semantic)


def _memory_samples(cache: str, memory: Memory) -> Iterator[Sample]:
    labels = (("cache", cache),)
    yield Sample("mlx_cache_entries", "Values kept.", len(memory), labels, kind="gauge")
    yield Sample("mlx_cache_bytes", "Memory of the values kept.", memory.size, labels, kind="gauge")
    yield Sample("mlx_cache_evictions", "Values that made room.", memory.evictions, labels)
    yield Sample("mlx_cache_refused", "Values that were less asked for than others.", memory.refused, labels)


def _redis_samples(shared: Shared) -> Iterator[Sample]:
    yield Sample("mlx_cache_redis_up", "1 while Redis is asked.", int(shared.open), kind="gauge")
    for reason, value in (*tuple(shared.redis.errors.items()), ("damaged", shared.damaged)):
        yield Sample("mlx_cache_errors", "What Redis failed to do.", value, (("reason", reason),))


def _semantic_samples(semantic: Semantic) -> Iterator[Sample]:
    labels = (("cache", "semantic"),)
    yield Sample("mlx_cache_entries", "Values kept.", len(semantic.meanings), labels, kind="gauge")
    yield Sample("mlx_cache_evictions", "Values that made room.", semantic.meanings.evictions, labels)
    yield Sample("mlx_semantic_checked", "Hits that the model answered as well.", semantic.checked)
    yield Sample("mlx_semantic_agreed", "Those of them in which both said the same.", semantic.agreed)
    for reason, value in tuple(semantic.skipped.items()):
        yield Sample("mlx_semantic_skipped", "Texts not looked up.", value, (("reason", reason),))


def _store(
    model: Model, wanted: AnswerCacheSettings, environment: Mapping[str, str]
) -> Memory | Shared | None:
    if wanted.backend == "off":
        return None
    if wanted.backend == "memory":
        return Memory(wanted.max_bytes, wanted.max_value_bytes)
    if not wanted.redis_url:
        raise UsageError(
            "serving.cache.backend is redis, and serving.cache.redis_url says nothing of where it is.",
            hint="Write it as redis://HOST:PORT/DATABASE, rediss:// for TLS.",
        )
    parts = urlsplit(wanted.redis_url)
    if parts.password or "password" in parse_qs(parts.query):
        raise UsageError(
            "serving.cache.redis_url holds a password, and settings are shown to whoever runs the server.",
            hint="Put it into a variable of the environment and name that in redis_password_env.",
        )
    address = RedisAddress(
        wanted.redis_url,
        password=_secret(environment, wanted.redis_password_env, "redis_password_env"),
        timeout=wanted.redis_timeout_ms / 1000,
        keep=wanted.redis_ttl_s,
    )
    _warn_of_strangers(parts, password=bool(address.password))
    secret = _secret(environment, wanted.secret_env, "secret_env").encode()
    specs = {spec.name: spec for spec in model.session.outputs}
    return Shared(RedisStore(address), specs, secret, wanted.max_value_bytes)


def _warn_of_strangers(address: SplitResult, *, password: bool) -> None:
    nearby = address.scheme == "unix" or address.hostname in _THIS_MACHINE
    lacks = "a password" if not password else "TLS (rediss://)" if address.scheme != "rediss" else ""
    if lacks and not nearby:
        _logger.warning(
            "Redis is on another machine and asked without %s: others may read and write answers there.",
            lacks,
        )


def _secret(environment: Mapping[str, str], variable: str, key: str) -> str:
    if not variable:
        return ""
    if not environment.get(variable):
        raise UsageError(f"serving.cache.{key} names {printable(variable, 80)!r}, which is not set.")
    return environment[variable]


def _semantic(model: Model, wanted: SemanticCacheSettings, embedder: Embedder, keys: KeyMaker) -> Semantic:
    varying = [spec for spec in model.session.outputs if None in spec.shape[1:]]
    if varying:
        raise UsageError(
            f"The semantic cache needs outputs of one size, and {printable(str(varying[0]), 128)} of "
            f"{printable(model.name, 128)} may depend on the length of the text.",
            hint="Take the model out of serving.semantic_cache.models.",
        )
    column = text_column_of(model, wanted.column)
    return Semantic(
        embedder,
        keys,
        Meanings(wanted.max_entries, wanted.similarity),
        column=column,
        timeout=wanted.timeout_ms / 1000,
        check_every=round(1 / wanted.check) if wanted.check else 0,
        min_agreement=wanted.min_agreement,
        telling=Telling(wanted.telling),
        golden=_golden_texts(model, column),
        same=partial(says_the_same, model),
    )


def _golden_texts(model: Model, column: str) -> dict[str, str]:
    """The texts of the golden cases that somebody wrote, with their labels."""
    found: dict[str, str] = {}
    for case in model.package.golden():
        if not case.generated and column in case.inputs and "label" in case.outputs:
            texts, labels = case.rows()[column].tolist(), case.expected()["label"].tolist()
            found |= dict(zip(map(str, texts), map(str, labels), strict=False))
        if len(found) >= _MOST_GOLDEN:
            break
    return found


def text_column_of(model: Model, wanted: str = "") -> str:
    """The column whose meaning counts: the wanted one, or the only text that the pipeline takes.

    Raises:
        UsageError: there is no such column, or more than one.
    """
    kinds = model.column_kinds
    texts = [name for name, kind in kinds.items() if kind == "text"]
    if wanted and wanted in texts:
        return wanted
    if not wanted and len(texts) == 1:
        return texts[0]
    raise UsageError(
        f"The semantic cache needs one text column, and {printable(model.name, 128)} has "
        f"{listed(texts, 8) or 'none'}.",
        hint="Name it in serving.semantic_cache.column." if texts else "",
    )


def says_the_same(model: Model, left: Tensors, right: Tensors) -> bool:
    """Whether two answers of a model say the same: equal labels, or else numbers within a hundredth."""
    ours, theirs = model.decode(left), model.decode(right)
    for name in ("label", "labels"):
        if name in ours:
            return bool(np.array_equal(ours[name], theirs[name]))
    return all(
        ours[name].shape == theirs[name].shape
        and (
            np.allclose(ours[name], theirs[name], rtol=1e-2, atol=1e-3)
            if ours[name].dtype.kind == "f"
            else np.array_equal(ours[name], theirs[name])
        )
        for name in ours
    )
