"""The semantic cache: a question that means the same as an earlier one gets that one's answer.

It answers single texts of `/predict`. Everything else that an answer depends on (version, other columns,
outputs, parameters, tenant) has to be equal: it names the partition, and partitions share nothing.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.cache.embedder import TOGETHER, UNRELATED, Embedder
from mlx_platform.serving.cache.key import KeyMaker
from mlx_platform.serving.cache.meanings import Meanings, Vector
from mlx_platform.serving.cache.telling import Telling
from mlx_platform.serving.exchange import Exchange

_WAITING = 128  # more than that are not looked up
_JUDGED = 20  # compared answers from which a share of them means something
_logger = logging.getLogger(__name__)

Same = Callable[[Tensors, Tensors], bool]
"""Whether two answers say the same to a user."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup gave: an answer or none, and what a new answer is to be kept under."""

    answer: dict[str, Array] | None
    partition: bytes
    vector: Vector
    check: bool = False


@dataclass(slots=True)
class _Lookup:
    partition: bytes
    text: str
    found: asyncio.Future[Found | None]


class Semantic:
    """Looks questions up by meaning; used on one event loop, with a thread of its own for vectors.

    Args:
        embedder: makes the vectors.
        keys: makes the names of partitions.
        meanings: what is kept; only the thread touches it.
        column: the text column.
        timeout: seconds that a prediction waits for a lookup.
        check_every: of so many hits, one is answered by the model all the same, and compared; 0 for none.
        min_agreement: with less than this share of the compared answers equal, there are no more hits.
        telling: what has to be equal in two texts, whatever their vectors.
        golden: texts with their labels, which must not be taken for each other where these differ.
        same: compares.

    Attributes:
        skipped: texts that were not looked up: `timeout`, `busy`, or `off` since answers did not agree.
    """

    def __init__(
        self,
        embedder: Embedder,
        keys: KeyMaker,
        meanings: Meanings,
        *,
        column: str,
        timeout: float,
        check_every: int,
        min_agreement: float,
        telling: Telling,
        golden: Mapping[str, str],
        same: Same,
    ) -> None:
        self._embedder = embedder
        self.meanings = meanings
        self.skipped: Counter[str] = Counter(timeout=0, busy=0, off=0)
        self.off = False
        self.checked = 0
        self.agreed = 0
        self._keys = keys
        self._column = column
        self._timeout = timeout
        self._check_every = check_every
        self._min_agreement = min_agreement
        self._telling = telling
        self._golden = golden
        self._same = same
        self._hits = 0
        self._pending: deque[_Lookup] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlx-semantic")

    def check_meanings(self) -> None:
        """Make sure that the vectors tell texts apart; it takes as long as a run of the embedding model.

        Raises:
            GateFailedError: they do not.
        """
        self._embedder.check(self.meanings.similarity, {text: text for text in UNRELATED})
        # What would be told apart in any case proves nothing: each group has the same telling words.
        groups: dict[bytes, dict[str, str]] = {}
        for text, label in self._golden.items():
            groups.setdefault(self._telling.marks(text), {})[text] = label
        for group in groups.values():
            self._embedder.check(self.meanings.similarity, group)

    async def find(self, outputs: tuple[str, ...], exchange: Exchange) -> Found | None:
        """Look a question up; None where it is no single text, or could not be looked up in time.

        An answer that is to be checked comes with `check`: then let the model answer, and tell `check`.
        """
        text = self._text(exchange)
        if text is None:
            return None
        if self.off or len(self._pending) >= _WAITING:
            self.skipped["off" if self.off else "busy"] += 1
            return None
        partition = self._partition(text, outputs, exchange)
        loop = asyncio.get_running_loop()
        lookup = _Lookup(partition, text, loop.create_future())
        self._pending.append(lookup)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        timer = loop.call_later(self._timeout, self._give_up, lookup.found)
        try:
            found = await lookup.found
        finally:
            timer.cancel()
        if found is None or found.answer is None:
            return found
        self._hits += 1
        if self._check_every and self._hits % self._check_every == 0:
            return Found(found.answer, found.partition, found.vector, check=True)
        return found

    def keep(self, found: Found, answer: Tensors) -> None:
        """Keep an answer for questions that mean the same."""
        self._submit(self.meanings.add, found.partition, found.vector, answer)

    def check(self, found: Found, answer: Tensors) -> None:
        """Count whether the remembered answer says the same as the model's own."""
        self._submit(self._compare, found.answer or {}, answer)

    def close(self) -> None:
        """Give up what is being looked up; from now on nothing is."""
        self.off = True
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # closed, while the model was still answering
            self._thread.submit(work, *arguments)

    def _partition(self, text: str, outputs: tuple[str, ...], exchange: Exchange) -> bytes:
        others = {name: column for name, column in exchange.inputs.items() if name != self._column}
        # A long text may be several rows of tensors, and its outputs then as many.
        rows = b"%d" % max((len(array) for array in exchange.feeds.values() if array.ndim), default=1)
        parts = (exchange.tenant, exchange.parameters, rows, self._telling.marks(text))
        return self._keys.make(others, outputs, parts)

    def _text(self, exchange: Exchange) -> str | None:
        if exchange.endpoint != "predict" or exchange.rows != 1:
            return None
        cell = exchange.inputs[self._column][0]
        return cell if isinstance(cell, str) else None

    def _give_up(self, found: "asyncio.Future[Found | None]") -> None:
        if not found.done():
            self.skipped["timeout"] += 1
            found.set_result(None)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            lookups = [self._pending.popleft() for _ in range(min(len(self._pending), TOGETHER))]
            lookups = [lookup for lookup in lookups if not lookup.found.done()]
            if not lookups:
                continue
            results: list[Found | None] = [None] * len(lookups)
            try:
                results = await loop.run_in_executor(self._thread, self._find_all, lookups)
            finally:
                for lookup, result in zip(lookups, results, strict=True):
                    if not lookup.found.done():
                        lookup.found.set_result(result)

    def _find_all(self, lookups: list[_Lookup]) -> list[Found | None]:
        vectors = self._embedder.embed([lookup.text for lookup in lookups])
        return [
            None
            if vector is None
            else Found(self.meanings.find(lookup.partition, vector), lookup.partition, vector)
            for lookup, vector in zip(lookups, vectors, strict=True)
        ]

    def _compare(self, kept: Tensors, answer: Tensors) -> None:
        self.checked += 1
        self.agreed += self._same(kept, answer)
        if not self.off and self.checked >= _JUDGED and self.agreed < self._min_agreement * self.checked:
            self.off = True
            _logger.warning(
                "The semantic cache is off: %d of %d answers that it would have given were not the model's.",
                self.checked - self.agreed,
                self.checked,
            )
