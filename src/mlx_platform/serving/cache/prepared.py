"""What the pipeline made of raw inputs: kept, so that the same text or image is prepared once."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from mlx_platform.core.tensors import Columns, Tensors
from mlx_platform.serving.cache.admission import Worth
from mlx_platform.serving.cache.flights import Flights
from mlx_platform.serving.cache.key import KeyMaker, is_short
from mlx_platform.serving.cache.memory import Memory
from mlx_platform.serving.exchange import Exchange


class Prepared:
    """Remembers the input tensors of raw columns; used on one event loop.

    Attributes:
        hits: requests whose tensors were there, or were just being made for somebody else.
        misses: requests whose tensors were made; both count only requests that got that far.
    """

    def __init__(self, keys: KeyMaker, memory: Memory, worth: Worth) -> None:
        self.hits = 0
        self.misses = 0
        self.bypasses = 0
        self.memory = memory
        self._keys = keys
        self._worth = worth
        self._flights = Flights()

    async def answer(
        self, columns: Columns, exchange: Exchange, compute: Callable[[], Awaitable[Tensors]]
    ) -> Tensors:
        """The tensors of `columns`: remembered ones, or those of `compute`, awaited at most once.

        Raises:
            MlxError: what `compute` raised.
        """
        if exchange.skip_cache or not self._worth.takes(columns):
            self.bypasses += 1
            return await compute()
        key = await self._key(columns)
        joined = False
        while True:
            found = self.memory.get(key)
            if found is None and key in self._flights and not joined:
                joined = True
                found = await self._flights.join(key, exchange)
                if found is None:
                    continue
            if found is not None:
                self.hits += 1
                self._worth.learn(hit=True)
                return found
            self.misses += 1
            self._worth.learn(hit=False)
            leads = key not in self._flights
            made = await (self._flights.lead(key, exchange, compute) if leads else compute())
            self.memory.put(key, made)
            return made

    async def _key(self, columns: Columns) -> bytes:
        make = partial(self._keys.make, columns)
        if is_short(columns):
            return make()
        return await asyncio.get_running_loop().run_in_executor(None, make)
