"""What may answer in the place of a run: something that was told the same question before."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from mlx_platform.core.tensors import Tensors
from mlx_platform.serving.exchange import Exchange


class AnswerCache(Protocol):
    """Asked on the event loop before anything is queued."""

    async def answer(
        self,
        feeds: Tensors,
        outputs: tuple[str, ...],
        exchange: Exchange,
        compute: Callable[[], Awaitable[Tensors]],
    ) -> Tensors:
        """The outputs of `feeds`: remembered ones, or those of `compute`, awaited at most once.

        Raises:
            Refusal: what `compute` raised.
        """
