"""Answers in a Redis server: written as data, checked when they come back."""

from collections.abc import Mapping

from mlx_platform.core.tensors import Array, Tensors, TensorSpec
from mlx_platform.serving.cache.redis_store import RedisStore
from mlx_platform.serving.cache.value import DamagedValueError, pack, unpack


class Shared:
    """Keeps answers in Redis by key; used on one event loop.

    Args:
        redis: where the bytes are.
        specs: the outputs of the model, which an answer has to fit.
        secret: signs what is written; what somebody else wrote is then not taken for an answer.
        most_value_bytes: a larger answer is not kept.

    Attributes:
        damaged: values that were not what they should be. They count as missing, and are removed.
    """

    def __init__(
        self, redis: RedisStore, specs: Mapping[str, TensorSpec], secret: bytes, most_value_bytes: int
    ) -> None:
        self.damaged = 0
        self.redis = redis
        self._specs = specs
        self._secret = secret
        self._most_value = most_value_bytes

    @property
    def open(self) -> bool:
        """Whether there is any use in asking."""
        return self.redis.open

    async def get(self, key: bytes, outputs: tuple[str, ...]) -> dict[str, Array] | None:
        """The answer under `key`, if it is there in time, whole, and has these outputs."""
        value = await self.redis.get(key)
        if value is None:
            return None
        try:
            return unpack(key, value, {name: self._specs[name] for name in outputs}, self._secret)
        except DamagedValueError:
            self.damaged += 1
            self.redis.drop(key)
            return None

    def put(self, key: bytes, answer: Tensors) -> None:
        """Keep an answer some time soon, unless it is too large or holds what has no form as data."""
        if not self.redis.open or sum(array.nbytes for array in answer.values()) > self._most_value:
            return
        value = pack(key, answer, self._secret)
        if value is not None and len(value) <= self._most_value:
            self.redis.put(key, value)
