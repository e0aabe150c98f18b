"""What is seen of a window request by request: slices, clusters of mismatches, restarts, examples."""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.statistics import wilson
from mlx_platform.evaluation.gates import cell_text
from mlx_platform.workflows.replay.observer import Mismatch
from mlx_platform.workflows.replay.requests import Request

_SETTLED = timedelta(minutes=10)
_CLUSTERS = 100
_VALUES = 1000  # of a slice
_EXAMPLES = 20
_IDS = 3
OTHERS = "(others)"


@dataclass(slots=True)
class Cluster:
    """Mismatches that are alike: they begin at one stage, in the same outputs, for the same reasons."""

    stage: str
    outputs: tuple[str, ...]
    reasons: tuple[str, ...]
    requests: int = 0
    first: datetime | None = None
    last: datetime | None = None
    replicas: Counter[str] = field(default_factory=Counter)
    ids: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The same for the same kind of mismatch in any night."""
        return "|".join((self.stage, ",".join(self.outputs), ",".join(self.reasons)))

    def add(self, mismatch: Mismatch) -> None:
        record = mismatch.request.record
        self.requests += 1
        self.first = min(self.first or record.time, record.time)
        self.last = max(self.last or record.time, record.time)
        self.replicas[record.server_id] += 1
        if len(self.ids) < _IDS:
            self.ids.append(record.request_id)

    def document(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "stage": self.stage or None,
            "outputs": list(self.outputs),
            "reasons": list(self.reasons),
            "requests": self.requests,
            "first_seen": rfc3339(self.first) if self.first else None,
            "last_seen": rfc3339(self.last) if self.last else None,
            "replicas": dict(self.replicas.most_common(10)),
            "examples": list(self.ids),
        }


@dataclass(frozen=True, slots=True)
class Restart:
    """A process of a server whose first answer came after the window had begun."""

    server: str
    time: datetime


@dataclass(slots=True)
class Watch:
    """Watches a replay; memory is bounded whatever the log holds.

    Args:
        zone: in which hours are told apart.
        columns: inputs whose values make slices, such as a language or the version of a client.
    """

    zone: ZoneInfo
    columns: Sequence[str] = ()
    slices: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    _boots: dict[tuple[str, str], datetime] = field(default_factory=dict)
    _worst: list[tuple[float, int, Mismatch]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(0, -1))

    def compared(self, request: Request) -> None:
        record = request.record
        boot = (record.server_id, record.boot_id)
        self._boots[boot] = min(self._boots.get(boot, record.time), record.time)
        for by, value in self._places(request):
            self._counts(by, value)[0] += 1

    def mismatch(self, mismatch: Mismatch) -> None:
        for by, value in self._places(mismatch.request):
            self._counts(by, value)[1] += 1
        self._cluster(mismatch).add(mismatch)
        entry = (severity(mismatch), next(self._numbers), mismatch)
        if len(self._worst) < _EXAMPLES:
            heapq.heappush(self._worst, entry)
        else:
            heapq.heappushpop(self._worst, entry)

    @property
    def worst(self) -> list[Mismatch]:
        """The requests that differ most, worst first."""
        return [mismatch for _severity, _number, mismatch in sorted(self._worst, reverse=True, key=_order)]

    @property
    def restarts(self) -> list[Restart]:
        """Server processes that came later, in the order of their first answers.

        Those of the first minutes were there before, unless another process of the server came first.
        """
        found: list[Restart] = []
        servers: set[str] = set()
        boots = sorted((time, server) for (server, boot), time in self._boots.items() if boot)
        for time, server in boots:
            if server in servers or time - boots[0][0] > _SETTLED:
                found.append(Restart(server, time))
            servers.add(server)
        return found

    def slice_documents(self) -> dict[str, list[dict[str, Any]]]:
        """For each kind of slice its values, most mismatches first; a kind with one value says nothing."""
        found = {}
        for by, values in self.slices.items():
            if len(values) < 2 and by not in self.columns:
                continue
            rows = []
            for value, (compared, differing) in values.items():
                interval = wilson(compared - differing, compared)
                rows.append(
                    {
                        "value": value,
                        "compared": compared,
                        "agreeing": compared - differing,
                        "agreement": 1 - differing / compared,
                        "lower": interval.lower,
                        "upper": interval.upper,
                    }
                )
            found[by] = sorted(rows, key=lambda row: (row["agreement"], row["value"]))
        return found

    def _places(self, request: Request) -> list[tuple[str, str]]:
        record = request.record
        places = [
            ("replica", record.server_id),
            ("arm", record.arm),
            ("runtime", record.runtime or "(not logged)"),
            ("hour", f"{record.time.astimezone(self.zone):%Y-%m-%d %H:00%z}"),
        ]
        return places + [(column, _value(request, column)) for column in self.columns]

    def _counts(self, by: str, value: str) -> list[int]:
        values = self.slices.setdefault(by, {})
        if value not in values and len(values) >= _VALUES:
            value = OTHERS
        return values.setdefault(value, [0, 0])

    def _cluster(self, mismatch: Mismatch) -> Cluster:
        differing = {name: found for name, found in mismatch.outputs.items() if found.disagreeing}
        reasons = sorted({reason for found in differing.values() for reason in found.reasons})
        made = Cluster(mismatch.stage, tuple(sorted(differing)), tuple(reasons or ["unparsable"]))
        if made.key not in self.clusters and len(self.clusters) >= _CLUSTERS:
            made = Cluster("", (OTHERS,), ())
        return self.clusters.setdefault(made.key, made)


def _order(entry: tuple[float, int, Mismatch]) -> tuple[float, int]:
    return entry[0], entry[1]


def _value(request: Request, column: str) -> str:
    cells = request.inputs.get(column)
    if cells is None or not cells.size:
        return "(not logged)"
    texts = {cell_text(cell) for cell in cells.reshape(-1).tolist()}
    return texts.pop() if len(texts) == 1 else "(several)"


def severity(mismatch: Mismatch) -> float:
    """How far an answer is off: the largest difference of its numbers, infinite for all else."""
    if not mismatch.outputs:
        return math.inf
    found = 0.0
    for output in mismatch.outputs.values():
        if output.disagreeing:
            other = any(reason != "value" for reason in output.reasons)
            # A label, or any other value that is no number, has no distance.
            found = max(found, math.inf if other else output.largest or math.inf)
    return found
