"""How far the requests of the last while are from the baseline of the package, as gauges.

A sample of the requests is counted on the baseline's bins, on a thread that leaves the cores to others
and takes no more of one than it may. What it does not get to is left out, evenly: it never delays a request,
and never fails one.
"""

import logging
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_platform.core.clock import span_seconds
from mlx_platform.core.serving_settings import LiveDriftSettings
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.core.text import first_line
from mlx_platform.inference.package import Package
from mlx_platform.serving.exchange import SHADOW, Exchange
from mlx_platform.serving.metrics import Sample

if TYPE_CHECKING:
    from mlx_platform.drift.counts import Counts
    from mlx_platform.drift.watched import Watched

_PERIOD = 10.0  # seconds between two times that requests are counted: many at a time are cheaper
_SCORED_EVERY = 30.0
_SLOTS = 12  # parts of the window, of which the oldest is forgotten at a time
_FIRST = 100  # requests of a period, until it is known what one costs
_MOST_BYTES = 64 * 1024 * 1024  # of requests that wait to be counted
_MOST_FEATURES = 200  # that have a gauge, those with the highest PSI
_NICENESS = 15
_logger = logging.getLogger(__name__)

_Taken = tuple[str, Columns, Columns]
_Score = tuple[str, str, float, float]
"""Feature, role, PSI, and PSI beyond what chance gives on average."""


class LiveDrift:
    """Watches the requests of one version. `offer` is called on the event loop, `samples` on any thread.

    Args:
        package: of the version; it has a baseline.
        settings: how much is watched.
    """

    def __init__(self, package: Package, settings: LiveDriftSettings) -> None:
        self.failures = 0
        self._package = package
        self._settings = settings
        self._limit = max(1, round(settings.requests_per_s * _PERIOD))
        self._most = min(_FIRST, self._limit)
        self._kept: list[_Taken] = []
        self._bytes = 0
        self._seen = 0
        self._offered = 0
        self._rows = 0
        self._scores: tuple[_Score, ...] = ()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def offer(self, exchange: Exchange) -> None:
        """Take a request that was answered, or not: each of a period has the same chance."""
        if exchange.arm == SHADOW or exchange.identity is not None or not exchange.inputs:
            return
        self._offered += 1
        self._seen += 1
        if self._seen <= self._most:
            self._keep(exchange, len(self._kept))
            if self._thread is None:
                self._start()
            return
        place = random.randrange(self._seen)  # noqa: S311 - a sample, no secret
        if place < len(self._kept):
            self._keep(exchange, place)

    def _keep(self, exchange: Exchange, place: int) -> None:
        """Keep a request at a place of those that are to be counted, unless they are too large together."""
        size = sum(array.nbytes for array in exchange.inputs.values())
        size += sum(array.nbytes for array in exchange.outputs.values())
        if self._bytes + size <= _MOST_BYTES:
            self._bytes += size  # what it replaces still counts, until all are taken
            self._kept[place : place + 1] = [(exchange.endpoint, exchange.inputs, exchange.outputs)]

    def close(self) -> None:
        """Count nothing more."""
        self._closed.set()

    def samples(self) -> Iterator[Sample]:
        """The scores, and how many rows they rest on."""
        yield Sample("mlx_drift_rows", "Rows of the live window.", self._rows, kind="gauge")
        yield Sample("mlx_drift_offered", "Requests that might have been counted.", self._offered)
        yield Sample("mlx_drift_failures", "Times that requests could not be counted.", self.failures)
        for feature, role, psi, adjusted in self._scores:
            labels = (("feature", feature), ("role", role))
            yield Sample("mlx_drift_psi", "PSI of the live window.", psi, labels, "gauge")
            yield Sample("mlx_drift_psi_adjusted", "PSI beyond chance.", adjusted, labels, "gauge")

    # On the thread

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlx-drift", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        if sys.platform == "linux":  # elsewhere threads have no niceness of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            counting = _Counting(self._package, span_seconds(self._settings.window))
        except Exception as error:  # noqa: BLE001 - whatever the baseline holds, what is served goes on
            self._fail(error)
            return
        scored = 0.0
        while not self._closed.wait(_PERIOD):
            taken = self._kept[:]
            del self._kept[: len(taken)]  # in place: what comes meanwhile is kept for the next time
            self._seen = self._bytes = 0
            began = time.thread_time()
            try:
                counting.add(taken)
                if time.monotonic() - scored >= _SCORED_EVERY or not self._scores:
                    self._rows, self._scores = counting.scores()
                    scored = time.monotonic()
            except Exception as error:  # noqa: BLE001 - as above, whatever clients have sent
                self._fail(error)
            if taken:
                self._adapt((time.thread_time() - began) / len(taken))

    def _adapt(self, seconds: float) -> None:
        """Take as many in the next period as there is time for."""
        room = self._settings.cpu_share * _PERIOD / max(seconds, 1e-6)
        self._most = max(1, min(self._limit, int(room)))

    def _fail(self, error: Exception) -> None:
        level = logging.DEBUG if self.failures else logging.WARNING
        _logger.log(level, "Drift cannot be watched live: %s", first_line(error))
        self.failures += 1


class _Counting:
    """The window: counts of its parts, the youngest last.

    Args:
        package: whose baseline it is counted on.
        seconds: that the window is long.
    """

    def __init__(self, package: Package, seconds: float) -> None:
        # Only where something is watched: a start does not wait for it.
        from mlx_platform.drift.profile import Profile
        from mlx_platform.drift.watched import watched

        path = package.baseline_path
        if path is None:
            raise ValueError("the package has no baseline")
        self._profile: Profile = Profile.from_json(path.read_bytes())
        self._watched: Watched = watched(package, self._profile)
        self._slot = seconds / _SLOTS
        self._parts: deque[tuple[int, Counts]] = deque()

    def add(self, taken: Sequence[_Taken]) -> None:
        """Count requests."""
        from mlx_platform.drift.counts import count

        self._forget()
        for endpoint, inputs, outputs in _gathered(taken):
            counts = count(
                self._profile, self._watched.inputs(inputs), self._watched.outputs(endpoint, outputs)
            )
            now = int(time.monotonic() / self._slot)
            if self._parts and self._parts[-1][0] == now:
                counts = self._parts.pop()[1] + counts
            self._parts.append((now, counts))

    def scores(self) -> tuple[int, tuple[_Score, ...]]:
        """Rows of the window, and the scores of features, the highest first."""
        from mlx_platform.drift import scores
        from mlx_platform.drift.counts import Counts
        from mlx_platform.drift.family import families, family_of, measure_family

        self._forget()
        total = sum((counts for _, counts in self._parts), Counts.nothing(self._profile))
        found: list[_Score] = []
        pairs = [
            (feature, tally)
            for feature, tally in zip(self._profile.features, total.tallies, strict=True)
            if feature.tally.rows and tally.rows
        ]
        for members in families(pairs):
            feature, tally = members[0]
            measured = measure_family(members)
            chance = scores.noise(feature.tally.rows, tally.rows) * max(0, measured.bins - 1)
            found.append((family_of(feature.name), feature.role, measured.psi, measured.psi - chance))
            time.sleep(0)  # whoever waits for the interpreter gets it now
        found.sort(key=lambda score: -score[3])
        return total.rows, tuple(found[:_MOST_FEATURES])

    def _forget(self) -> None:
        oldest = int(time.monotonic() / self._slot) - _SLOTS
        while self._parts and self._parts[0][0] <= oldest:
            self._parts.popleft()


def _gathered(taken: Sequence[_Taken]) -> Iterator[_Taken]:
    """Requests of one form as one of many rows."""
    groups: dict[tuple[object, ...], list[_Taken]] = {}
    for each in taken:
        endpoint, inputs, outputs = each
        groups.setdefault((endpoint, _form(inputs), _form(outputs)), []).append(each)
    for group in groups.values():
        yield group[0][0], _stacked([each[1] for each in group]), _stacked([each[2] for each in group])


def _stacked(columns: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}


def _form(columns: Mapping[str, Array]) -> tuple[object, ...]:
    return tuple((name, array.dtype.char, array.shape[1:]) for name, array in columns.items())
