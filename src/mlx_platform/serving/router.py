"""Which of the loaded versions of a model answers a request."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import CANARY, PRODUCTION, WARM, Exchange
from mlx_platform.serving.metrics import Source
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.served import Served


@dataclass(frozen=True, slots=True)
class Split:
    """How traffic is shared between the stable version and the candidate.

    Attributes:
        seed: of the assignment; another one shares out anew.
        percent: of the requests that the candidate answers.
        shadow_percent: of the stable version's requests that the candidate gets a copy of.
        key_header: lower-case name of the header whose value is assigned; b"" assigns each request.
        assign: whether a seed and a key go to the candidate at a percentage.
    """

    seed: str
    percent: float
    shadow_percent: float
    key_header: bytes
    assign: Callable[[str, str, float], bool]

    def sends(self, request_id: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the candidate answers a request."""
        if not self.percent:
            return False
        key = headers.get(self.key_header) if self.key_header else None
        return self.assign(self.seed, request_id if key is None else key.decode("latin-1"), self.percent)


class Observer(Protocol):
    """Whoever watches what routed requests come to. Called on the event loop, and never raises."""

    def observe(self, served: Served, exchange: Exchange, status: int, total: float) -> None:
        """See a request that is over, with its status and the seconds it took."""

    def copy(self, served: Served, exchange: Exchange) -> None:
        """Take a copy of a request that the stable version has answered, for the candidate, or leave it."""


class Router:
    """Lives on the event loop; other threads may read what is loaded.

    Args:
        stable: the version that answers whoever names none.
    """

    def __init__(self, stable: Served) -> None:
        self.name = stable.name
        self.stable = stable
        self.candidate: Served | None = None
        self.split: Split | None = None
        self.observer: Observer | None = None
        self.sources: list[Source] = []
        """Asked for what is counted beside the versions, on the thread of a scrape."""
        self.reports: dict[str, Callable[[], object]] = {}
        """Asked by name for more of the configuration, JSON-ready, on the thread of the second listener."""
        self._loaded: Mapping[str, Served] = {stable.version: stable}
        self._gone: Counter[str] = Counter()  # requests by status of versions that were unloaded

    @property
    def loaded(self) -> tuple[Served, ...]:
        """All versions that are in memory, in the order in which they came."""
        return tuple(self._loaded.values())

    @property
    def engine(self) -> Engine:
        """What answers whoever names no version."""
        return self.stable.engine

    @property
    def ready(self) -> bool:
        """Whether new requests should be sent here."""
        return self.stable.engine.ready

    def choose(self, request_id: str, headers: Mapping[bytes, bytes]) -> Served:
        """Who answers a request that names no version."""
        split = self.split
        if split is None:
            return self.stable
        candidate = self.candidate
        return candidate if candidate is not None and split.sends(request_id, headers) else self.stable

    def named(self, name: str, version: str = "") -> Served:
        """What a client names; without a version the stable one.

        Raises:
            Refusal: 404; it is not here.
        """
        if name != self.name:
            raise Refusal(404, "This server serves another model: GET / says which.")
        if not version:
            return self.stable
        served = self._loaded.get(version)
        if served is None:
            raise Refusal(404, "This server serves another version of the model: GET / says which.")
        return served

    def finish(self, served: Served, exchange: Exchange, *, status: int, error: str) -> float:
        """Close the books on an exchange; the seconds it took."""
        total = served.finish(exchange, status=status, error=error)
        observer = self.observer
        if observer is not None and not exchange.pinned:
            observer.observe(served, exchange, status, total)
            if served is self.stable and status < 400:
                observer.copy(served, exchange)
        return total

    def add(self, served: Served, arm: str) -> None:
        """Take in a version that has been started; nobody is sent to it yet."""
        served.play(arm)
        self._loaded = {**self._loaded, served.version: served}

    def switch(self, served: Served) -> Served:
        """Send everybody who names no version to another one that is loaded, from this moment on.

        Returns:
            The one before: it finishes what it has, and answers those who name it.
        """
        before, self.stable = self.stable, served
        if served is self.candidate:
            self.try_out(None)
        served.play(PRODUCTION)
        return before

    def try_out(self, candidate: Served | None) -> None:
        """Say which loaded version a `split` sends requests to; without one it sends none."""
        if candidate is None:
            self.split = None
        else:
            candidate.play(CANARY)
        self.candidate = candidate

    def stand_by(self, served: Served) -> None:
        """Send nobody to a version but whoever names it."""
        if served is self.candidate:
            self.try_out(None)
        served.play(WARM)

    def remove(self, served: Served) -> None:
        """Take a version out; whoever names it is told that it is not here."""
        self.stand_by(served)
        self._loaded = {version: kept for version, kept in self._loaded.items() if kept is not served}

    def add_up(self, served: Served) -> None:
        """Keep the counts of a version that was removed, and has finished what it had."""
        self._gone.update(served.engine.metrics.requests_by_status())

    def requests_by_status(self) -> dict[str, int]:
        """How many requests ended in each class of status, over all versions."""
        total = Counter(self._gone)
        for served in self.loaded:
            total.update(served.engine.metrics.requests_by_status())
        return dict(sorted(total.items()))

    def __iter__(self) -> Iterator[Served]:
        return iter(self.loaded)
