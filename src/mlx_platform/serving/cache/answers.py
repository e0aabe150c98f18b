"""The cache in front of the model: asked about every prediction, it answers, or lets the model answer.

Each prediction is counted under exactly one outcome: `hit` (the very question was answered before, or is
being answered for somebody else), `semantic` (one that means the same was), `miss` (the model was asked), or
`bypass` (the cache was not asked). A value that cannot be trusted is a miss; trouble with the cache is never
trouble for a prediction.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from mlx_platform.core.tensors import Tensors
from mlx_platform.serving.cache.admission import Worth
from mlx_platform.serving.cache.flights import Flights
from mlx_platform.serving.cache.key import KeyMaker, is_short
from mlx_platform.serving.cache.memory import Memory
from mlx_platform.serving.cache.semantic import Found, Semantic
from mlx_platform.serving.cache.shared import Shared
from mlx_platform.serving.cache.value import is_sound
from mlx_platform.serving.exchange import Exchange

HIT, SEMANTIC, MISS, BYPASS = "hit", "semantic", "miss", "bypass"
OUTCOMES = (HIT, SEMANTIC, MISS, BYPASS)

Compute = Callable[[], Awaitable[Tensors]]


class Answers:
    """Remembers the outputs of one version; used on one event loop.

    Args:
        keys: how questions are told apart.
        store: where answers are kept: in this process, in a Redis that others share, or nowhere, which
            still answers equal questions at the same time with one run.
        worth: when to leave the caches alone.
        semantic: what answers questions that mean the same as earlier ones.
    """

    def __init__(
        self,
        keys: KeyMaker,
        store: Memory | Shared | None,
        worth: Worth,
        semantic: Semantic | None = None,
    ) -> None:
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.coalesced = 0
        self.store = store
        self.semantic = semantic
        self._keys = keys
        self._worth = worth
        self._flights = Flights()

    async def answer(
        self, feeds: Tensors, outputs: tuple[str, ...], exchange: Exchange, compute: Compute
    ) -> Tensors:
        """The outputs of `feeds`: remembered ones, or those of `compute`, awaited at most once.

        Raises:
            Refusal: what `compute` raised, or 504 while somebody else's run was waited for.
        """
        exchange.cache = BYPASS
        try:
            if exchange.skip_cache:
                return await compute()
            began = time.monotonic()

            async def computed() -> Tensors:
                exchange.seconds["cache"] = time.monotonic() - began
                return await compute()

            answer = await self._answer(feeds, outputs, exchange, computed)
            exchange.seconds.setdefault("cache", time.monotonic() - began)
            return answer
        finally:
            self.outcomes[exchange.cache] += 1

    async def _answer(
        self, feeds: Tensors, outputs: tuple[str, ...], exchange: Exchange, compute: Compute
    ) -> Tensors:
        if not self._worth.takes(feeds):
            return await compute()
        parts = (exchange.tenant, exchange.parameters)
        if is_short(feeds):
            key = self._keys.make(feeds, outputs, parts)
        else:
            loop = asyncio.get_running_loop()
            key = await loop.run_in_executor(None, self._keys.make, feeds, outputs, parts)
        joined = False
        while True:
            found = self.store.get(key) if isinstance(self.store, Memory) else None
            if found is None and key in self._flights and not joined:
                exchange.cache, joined = MISS, True
                leader = self._flights.leader(key)
                found = await self._flights.join(key, exchange)
                if found is None:
                    continue  # nothing came of it for us, and nobody waits in line behind one failure twice
                self.coalesced += 1
                return self._take(SEMANTIC if leader.cache == SEMANTIC else HIT, found, exchange)
            if found is not None:
                return self._take(HIT, found, exchange)
            work = partial(self._work, key, outputs, exchange, compute)
            return await (work() if key in self._flights else self._flights.lead(key, exchange, work))

    async def _work(
        self, key: bytes, outputs: tuple[str, ...], exchange: Exchange, compute: Compute
    ) -> Tensors:
        """Answer a question that nothing in this process answers, and keep the answer."""
        store = self.store
        if isinstance(store, Shared) and not store.open:
            store = None
        if isinstance(store, Shared):
            known = await store.get(key, outputs)
            if known is not None:
                return self._take(HIT, known, exchange)
        near = await self._look_up_meaning(outputs, exchange)
        if near is not None and near.answer is not None and not near.check:
            return self._take(SEMANTIC, near.answer, exchange)
        if store is not None or near is not None:
            exchange.cache = MISS
            self._worth.learn(hit=False)
        else:
            exchange.cache = BYPASS
        answer = await compute()
        if is_sound(answer):
            if store is not None:
                store.put(key, answer)
            self._learn_meaning(near, answer)
        return answer

    def _take(self, outcome: str, answer: Tensors, exchange: Exchange) -> Tensors:
        exchange.cache = outcome
        self._worth.learn(hit=True)
        return answer

    async def _look_up_meaning(self, outputs: tuple[str, ...], exchange: Exchange) -> Found | None:
        return await self.semantic.find(outputs, exchange) if self.semantic is not None else None

    def _learn_meaning(self, near: Found | None, answer: Tensors) -> None:
        if near is None or self.semantic is None:
            return
        if near.answer is None:
            self.semantic.keep(near, answer)
        else:
            self.semantic.check(near, answer)
