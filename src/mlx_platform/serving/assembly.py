"""Versions put together for one server: whatever they share, and what each has of its own."""

import asyncio
import ctypes
import gc
import logging
from collections import Counter
from functools import partial
from pathlib import Path

from mlx_platform.core.clock import Clock, system_clock
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.serving.cache.caches import Caches
from mlx_platform.serving.capture import Capture
from mlx_platform.serving.devices.chain import DeviceChain
from mlx_platform.serving.devices.plan import device_chain
from mlx_platform.serving.devices.standby import Standby, check_fallback, parse_rule
from mlx_platform.serving.engine import Elsewhere, Engine
from mlx_platform.serving.feeding import channel
from mlx_platform.serving.feeding.feed import Feed
from mlx_platform.serving.feeding.guard import Guard
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.rehearsal import rehearse
from mlx_platform.serving.served import Served
from mlx_platform.traffic.writer import TrafficWriter

_WARMUP_SECONDS = 60.0
_logger = logging.getLogger(__name__)


class Assembly:
    """Makes versions fit to serve, and takes them apart again. Lives on the event loop.

    Args:
        settings: of every version.
        embedder: the model of the semantic cache, where this model has one.
        light: the model that answers when no device of another one works.
        feed: where connections come from, if not from a socket of this server's own.
        versions: how many may be in memory at a time.

    Raises:
        UsageError: settings that cannot be followed.
    """

    def __init__(
        self,
        settings: ServingSettings,
        *,
        embedder: Model | None,
        light: Model | None,
        feed: Feed | None,
        versions: int = 1,
    ) -> None:
        self.settings = settings
        self.capture = Capture()
        self.logged: Counter[str] = Counter()  # what became of the records of versions that are gone
        self._embedder = embedder
        self._light = light
        self._feed = feed
        self._versions = versions
        self._rule = parse_rule(settings.degrade.answer)

    def make(self, model: Model, writer: TrafficWriter | None) -> Served:
        """Put a version together; it is `start`ed before anything else.

        Raises:
            UsageError: settings that cannot be followed with this version.
        """
        chain = device_chain(model, self.settings, versions=self._versions)
        engine = Engine(
            model,
            self.settings,
            Metrics(),
            writer,
            runner=chain,
            caches=Caches.of(model, self.settings, self._embedder),
            guard=self._guard(chain),
            capture=self.capture,
        )
        standby = Standby(model, self._lighter_than(model), self._rule)
        engine.covered = standby.covers
        engine.metrics.sources += (chain.samples, standby.samples)
        return Served(engine, self.settings, standby, chain)

    async def start(self, served: Served, aside: Elsewhere | None = None) -> None:
        """Check a version, warm it up, and open its queue.

        Args:
            served: the version.
            aside: does its runs where they are in nobody's way; on a usual thread otherwise.

        Raises:
            GateFailedError: it does not give the answers that it was registered with.
            MlxError: it does not run.
        """
        loop = asyncio.get_running_loop()
        if served.chain is not None:
            # Before anything else, as it tells later whose fault a failure is.
            await loop.run_in_executor(None, served.chain.prepare)
        await served.engine.start(aside)
        if self.settings.warmup:
            warm = partial(rehearse, served.engine.model, Path(self.settings.warmup), _WARMUP_SECONDS)
            await (aside(warm) if aside else loop.run_in_executor(None, warm))
        await served.standby.start()

    async def take_apart(self, served: Served) -> None:
        """Let a version finish what it has, and give back what it holds; nobody is sent to it any more."""
        loop = asyncio.get_running_loop()
        await served.wait_until_idle()  # requests have deadlines, so that this ends
        await served.close(0.0)
        await self.close_log(served)
        served.engine.model.session.close()
        await loop.run_in_executor(None, _give_back)

    async def close_log(self, served: Served) -> None:
        """Write what a version still has for its traffic log, and add up what became of it."""
        writer = served.engine.writer
        if writer is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, writer.close, self.settings.drain_timeout_s)
            self.logged.update(writer.counters.summary())

    def _lighter_than(self, model: Model) -> Engine | None:
        light = self._light
        if light is None:
            return None
        if light.digest == model.digest:
            _logger.warning("%s/%s is the fallback itself, and has none.", model.name, model.version)
            return None
        check_fallback(model, light)
        return Engine(light, self.settings, Metrics(), None)

    def _guard(self, chain: DeviceChain) -> Guard | None:
        feed = self._feed
        if feed is None:
            return None
        tell = partial(feed.tell, channel.HARMLESS)
        return Guard(chain, feed.recorder, tell, suspects=feed.suspects, refused=feed.refused)


def open_log(
    settings: ServingSettings, name: str, version: str, clock: Clock = system_clock
) -> TrafficWriter | None:
    """The traffic log of a version; None where none is wanted."""
    if not settings.traffic:
        return None
    return TrafficWriter(
        Path(settings.traffic),
        model=name,
        version=version,
        queue_bytes=settings.traffic_queue_bytes,
        disk_bytes=settings.traffic_disk_bytes,
        sample=settings.traffic_sample,
        stages=settings.traffic_stages,
        clock=clock,
    )


def _give_back() -> None:
    """Return freed memory to the system, as far as its allocator can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
