"""Debug mode: for some minutes the last requests are kept in memory, and shown with their data masked."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mlx_platform.core.clock import Clock, rfc3339, system_clock
from mlx_platform.core.tensors import Array, datatype_of
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.masking import MASKED, Blob, is_personal, mask_cell, mask_text
from mlx_platform.traffic.record import is_sampled

MOST_MINUTES = 60
_MOST_REQUESTS = 200
_MOST_CELLS = 32
_MOST_CHARACTERS = 8192
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Excerpt:
    """The head of an array; texts are cut, so that what is kept has a bound whatever clients send."""

    datatype: str
    shape: tuple[int, ...]
    cells: tuple[Any, ...]

    @classmethod
    def of(cls, array: Array) -> "_Excerpt":
        cells = array.reshape(-1)[:_MOST_CELLS].tolist()
        if array.dtype.kind == "O":
            cells = [_cut(cell) for cell in cells]
        return cls(datatype_of(array), array.shape, tuple(cells))

    def document(self, name: str) -> dict[str, Any]:
        cells = [MASKED] if is_personal(name) else [mask_cell(cell) for cell in self.cells]
        return {"datatype": self.datatype, "shape": list(self.shape), "data": cells}


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of a request, and of its data as much as is shown; `facts` need no masking."""

    facts: Mapping[str, Any]
    error: str
    inputs: Mapping[str, _Excerpt]
    outputs: Mapping[str, _Excerpt]

    def document(self) -> dict[str, Any]:
        return {
            **self.facts,
            "error": mask_text(self.error),
            "inputs": {name: excerpt.document(name) for name, excerpt in self.inputs.items()},
            "outputs": {name: excerpt.document(name) for name, excerpt in self.outputs.items()},
        }


class Capture:
    """Off until it is started, and off again by itself. Filled on the event loop, read from other threads."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[_Kept] = deque(maxlen=_MOST_REQUESTS)
        self._until: datetime | None = None
        self._end = 0.0
        self._share = 1.0
        self._seen = 0

    @property
    def on(self) -> bool:
        return self._until is not None and time.monotonic() < self._end

    def start(self, minutes: float, share: float = 1.0) -> None:
        """Begin anew, for so many minutes and a share of the requests."""
        with self._lock:
            self._kept.clear()
            self._seen = 0
            self._share = share
            self._until = self._clock() + timedelta(minutes=minutes)
            self._end = time.monotonic() + minutes * 60
        _logger.warning("Debug mode is on until %s: requests are kept in memory.", rfc3339(self._until))

    def stop(self) -> None:
        """End, and forget everything."""
        with self._lock:
            was_on, self._until = self._until is not None, None
            self._kept.clear()
        if was_on:
            _logger.warning("Debug mode is off.")

    def expire(self) -> None:
        """Forget everything once the time is over."""
        if self._until is not None and not self.on:
            self.stop()

    def add(self, exchange: Exchange, status: int, error: str, total: float) -> None:
        """Keep a request that is over, if it is wanted."""
        if not self.on:
            return
        self._seen += 1
        if not is_sampled(exchange.request_id, self._share):
            return
        # Nothing may hold on to the arrays themselves: they belong to whole batches.
        inputs = {name: _Excerpt.of(array) for name, array in exchange.inputs.items()}
        outputs = {name: _Excerpt.of(array) for name, array in exchange.outputs.items()}
        with self._lock:
            if self._until is not None:
                self._kept.append(_Kept(_facts(exchange, status, total), error, inputs, outputs))

    def document(self) -> dict[str, Any]:
        """The state and the requests, newest first, as JSON has them; masked here and now."""
        self.expire()
        with self._lock:
            kept, until = tuple(self._kept), self._until
        return {
            "on": until is not None,
            "until": rfc3339(until) if until is not None else None,
            "share": self._share,
            "seen": self._seen,
            "requests": [each.document() for each in reversed(kept)],
        }


def _cut(cell: Any) -> Any:
    return cell[:_MOST_CHARACTERS] if isinstance(cell, str) else Blob(len(cell))


def _facts(exchange: Exchange, status: int, total: float) -> dict[str, Any]:
    timings = {stage: round(spent * 1000, 4) for stage, spent in exchange.seconds.items()}
    steps = {kind: round(spent * 1000, 4) for kind, spent in exchange.step_seconds.items()}
    return {
        "time": rfc3339(exchange.time),
        "request_id": exchange.request_id,
        "trace_id": exchange.trace.trace_id if exchange.trace is not None else "",
        "endpoint": exchange.endpoint,
        "status": status,
        "rows": exchange.rows,
        "batch_rows": exchange.batch_rows,
        "cache": exchange.cache,
        "timings_ms": timings | {"total": round(total * 1000, 4)},
        "steps_ms": steps,
    }
