"""What this server sees of a rollout: how its arms do, what copies come to, what is told of them later."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import Columns
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.rollout.assignment import is_copied
from mlx_platform.serving.rollout.compare import Comparer, Comparison, Differences
from mlx_platform.serving.rollout.counts import Arm, Window
from mlx_platform.serving.rollout.failing import failed
from mlx_platform.serving.rollout.outcomes import FATES, Outcomes, fate_samples
from mlx_platform.serving.rollout.plan import Plan
from mlx_platform.serving.rollout.replays import Replay
from mlx_platform.serving.rollout.shadow import Shadow
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.served import LARGE_BYTES, Served
from mlx_platform.traffic.feedback import Feedback

REFUSED = "refused"
"""Stands among the outputs that differ for a request that the candidate does not take at all."""

_logger = logging.getLogger(__name__)


class Arms:
    """Counts for one window of one rollout at a time; lives on the event loop, and watches a `Router`.

    A request counts for the window in which it began. At the beginning of a window, as many requests and
    seconds as the plan says are left out on every arm.

    Args:
        settings: how many copies and requests are kept.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self.rollout: Rollout | None = None
        self.window = Window(0)
        """What was counted since `follow` was told of this window, by this process."""
        self.fates: Counter[str] = Counter(dict.fromkeys(FATES, 0))
        self._settings = settings
        self._divided = True  # traffic, where it is to be
        self._arms: dict[str, Arm] = {}  # by version
        self._opened = 0.0
        self._seen: Counter[Arm] = Counter()
        self._copied = 0.0  # percent
        self._shadow: Shadow | None = None
        self._pair: tuple[Served, Served] | None = None
        self._comparer: Comparer | None = None
        self._outcomes = Outcomes(frozenset(), 1)
        self._differences = Differences()
        self._totals: Counter[tuple[str, Arm]] = Counter()
        self._parting: Counter[str] = Counter()
        self._looking: set[asyncio.Task[None]] = set()

    def follow(self, rollout: Rollout, pair: tuple[Served, Served] | None) -> None:
        """Count for this state of a rollout from now on; goes on counting while the window is the same.

        Args:
            rollout: as its last event has it.
            pair: the stable version and the candidate, while copies are to be sent from one to the other.
        """
        before = self.rollout
        if before is None or before.id != rollout.id:
            self._begin(rollout)
        if before is None or (before.id, before.window) != (rollout.id, rollout.window):
            self.window = Window(rollout.window)
            self._opened = time.monotonic()
            self._seen.clear()
        self.rollout = rollout
        self._copied = rollout.split[1] if pair else 0.0
        self._copy_between(pair if self._copied else None, rollout.plan)

    def divide(self, *, divided: bool) -> None:
        """Say whether traffic goes to both versions, where the state asks for that.

        Until the candidate is loaded, and while nobody leads, only the stable version answers: counted, that
        would compare the versions at different times. The warm-up begins where both answer.
        """
        if divided and not self._divided:
            self._opened = time.monotonic()
        self._divided = divided

    def leave(self) -> None:
        """Count nothing more; what is told of earlier requests comes too late from now on."""
        self.rollout = None
        self.window = Window(-1)
        self._arms = {}
        self._copied = 0.0
        self._copy_between(None)

    def observe(self, served: Served, exchange: Exchange, status: int, total: float) -> None:
        """Count a request that is over, with its status and the seconds it took."""
        arm = self._arms.get(served.version)
        if arm is None or not self._divided or exchange.started < self._opened or served.engine.closed:
            return
        try:
            if status < 400 and not self._warms_up(arm):
                self._outcomes.answered(exchange.request_id, arm, self.window.number)
            if _size(exchange.outputs) > LARGE_BYTES:
                looking = asyncio.ensure_future(
                    self._observe_large(served, exchange, status, total, self.window)
                )
                self._looking.add(looking)
                looking.add_done_callback(self._looking.discard)
                return
            failure = failed(exchange, status)
            if failure is not None:
                self._count(arm, total, failure=failure)
        except Exception:  # the rim: whoever asked gets the answer that there is
            _logger.exception("A request of a rollout could not be counted.")

    def copy(self, served: Served, exchange: Exchange) -> None:
        """Take a copy of an answered request for the candidate, if it is one of those that are copied."""
        shadow, rollout = self._shadow, self.rollout
        if shadow is None or rollout is None or served.version != str(rollout.stable):
            return
        try:
            if is_copied(rollout.id, exchange.request_id, self._copied):
                shadow.offer(exchange)
        except Exception:  # the rim, as above
            _logger.exception("A request could not be copied.")

    def take(self, entry: Feedback) -> str:
        """Count what is told of a request, and say what became of that; see `outcomes.FATES`."""
        since = None
        if self.rollout is not None:
            since = self.rollout.step_since + timedelta(seconds=self.rollout.plan.warmup_s)
        fate = self._outcomes.take(entry, self.window, self._arms.get(entry.version), since)
        self.fates[fate] += 1
        return fate

    def differences(self) -> list[dict[str, Any]]:
        """The worst differences between both versions that copies have shown, JSON-ready and masked."""
        return [difference.document() for difference in self._differences.worst()]

    def samples(self) -> Iterator[Sample]:
        """What this process has counted since it started, over all windows."""
        for (what, arm), count in tuple(self._totals.items()):
            text = "Requests of a rollout, by arm." if what == "requests" else "Those of them that failed."
            yield Sample(f"mlx_rollout_{what}", text, count, (("arm", arm),))
        for output, count in tuple(self._parting.items()):
            text = "Copies that were answered otherwise than the request, by output."
            yield Sample("mlx_rollout_differing", text, count, (("output", output),))
        if self._shadow is not None:
            yield from self._shadow.samples()
        yield from fate_samples(self.fates)

    def _begin(self, rollout: Rollout) -> None:
        self._arms = {str(rollout.stable): "stable", str(rollout.candidate): "canary"}
        metrics = {rule.of for rule in rollout.plan.metrics if rule.kind == "business"}
        if rollout.plan.ab is not None:
            metrics.add(rollout.plan.ab.metric)
        self._outcomes = Outcomes(frozenset(metrics), self._settings.feedback.remembered)
        self._differences = Differences()
        self._copy_between(None)  # copies of another rollout are compared in another way

    def _copy_between(self, pair: tuple[Served, Served] | None, plan: Plan | None = None) -> None:
        if pair == self._pair:
            return
        if self._shadow is not None:
            self._shadow.close()
        self._pair, self._shadow, self._comparer = pair, None, None
        if pair is not None and plan is not None:
            stable, candidate = pair
            self._shadow = Shadow(stable, candidate, self._settings, self._replayed)
            self._comparer = Comparer(stable.engine.model.spec, relative=plan.rtol, absolute=plan.atol)

    def _count(self, arm: Arm, seconds: float, *, failure: bool) -> bool:
        """Count a request, unless it belongs to the warm-up of its arm; whether it was counted."""
        assert self.rollout is not None  # noqa: S101 - whoever calls has seen it
        self._totals["requests", arm] += 1
        self._totals["errors", arm] += failure
        warms_up = self._warms_up(arm)
        self._seen[arm] += 1
        if warms_up:
            return False
        self.window.arm(arm).observe(seconds, failed=failure)
        return True

    def _warms_up(self, arm: Arm) -> bool:
        """Whether the next request of an arm belongs to its warm-up."""
        assert self.rollout is not None  # noqa: S101 - whoever calls has seen it
        plan = self.rollout.plan
        return self._seen[arm] < plan.warmup_requests or time.monotonic() - self._opened < plan.warmup_s

    async def _observe_large(
        self, served: Served, exchange: Exchange, status: int, total: float, window: Window
    ) -> None:
        """Count a request whose answer takes long to look through."""
        try:
            failure = await _has_failed(served, exchange, status)
            arm = self._arms.get(served.version)
            if failure is not None and arm is not None and self.window is window:
                self._count(arm, total, failure=failure)
        except Exception:  # the rim, as above
            _logger.exception("A request of a rollout could not be counted.")

    async def _replayed(self, replay: Replay) -> None:
        """Count what the candidate made of a copy, and compare."""
        comparer, pair, window = self._comparer, self._pair, self.window
        if comparer is None or pair is None or replay.copy.taken < self._opened:
            return
        failure = await _has_failed(pair[1], replay.exchange, replay.status)
        found = await _compared(pair[1], comparer, replay) if failure is False else None
        if self.window is not window:
            return
        if not self._count("shadow", replay.seconds, failure=failure is True) or failure:
            return
        differing = (REFUSED,) if found is None else () if found.agrees else found.differing
        self.window.arm("shadow").compare(differing)
        self._parting.update(differing)
        if found is not None and not found.agrees:
            self._differences.add(replay.copy.request_id, found, replay.copy.outputs, replay.exchange.outputs)


async def _compared(served: Served, comparer: Comparer, replay: Replay) -> Comparison:
    ours, theirs = replay.copy.outputs, replay.exchange.outputs
    if _size(ours) <= LARGE_BYTES:
        return comparer.compare(ours, theirs)
    return await served.beside(partial(comparer.compare, ours, theirs))


async def _has_failed(served: Served, exchange: Exchange, status: int) -> bool | None:
    """What `failed` says, without holding up the event loop over a long answer."""
    if _size(exchange.outputs) <= LARGE_BYTES:
        return failed(exchange, status)
    return await served.beside(partial(failed, exchange, status))


def _size(outputs: Columns) -> int:
    return sum(array.nbytes for array in outputs.values())
