"""Which logged requests can be replayed, with an account of those that cannot."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import NUMPY_TYPES, Array, Columns, decode_array
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.record import Record

OK = 200
SEMANTIC = "semantic"
_NUMBERS = {name: np.dtype(kind) for name, kind in NUMPY_TYPES.items() if name != "BYTES"}
_PLAIN = 3  # keys of an array in plain numbers: datatype, shape, data


@dataclass(frozen=True, slots=True)
class Request:
    """A served request, decoded: raw columns and answers for `predict`, tensors for `infer`."""

    record: Record
    inputs: dict[str, Array]
    outputs: dict[str, Array]

    @property
    def raw(self) -> bool:
        return self.record.endpoint == "predict"

    def compared(self, answers: Columns) -> tuple[Columns, Columns]:
        """The logged and the new answers to compare: all of them.

        Of another platform's log only what it names, in the model's own types, as its bodies keep none. When
        it names nothing that the model answers, all of it disagrees.
        """
        shared = [name for name in self.outputs if name in answers]
        if not self.record.foreign or not shared:
            return self.outputs, answers
        return {name: _like(self.outputs[name], answers[name]) for name in shared}, {
            name: answers[name] for name in shared
        }


def _like(logged: Array, answer: Array) -> Array:
    if "O" in (logged.dtype.kind, answer.dtype.kind):
        return logged
    with np.errstate(over="ignore", invalid="ignore"):
        logged = logged.astype(answer.dtype, copy=False)
    return logged.reshape(answer.shape) if logged.size == answer.size else logged


@dataclass(slots=True)
class Account:
    """What became of the records of the log; complete once all have been read.

    `failed` were not answered with 200, `truncated` are logged without their payload, of the `unpaired` only
    the request or only the answer was logged, `undecodable` cannot be read back, `not_comparable` counts by
    version what another package answered, `semantic` what got the answer to another text that means the same,
    `sampled_out` what was not drawn, `runtimes` by what computed them those that are replayed.
    """

    log: LogStats
    failed: int = 0
    truncated: int = 0
    unpaired: int = 0
    undecodable: int = 0
    semantic: int = 0
    sampled_out: int = 0
    replayed: int = 0
    not_comparable: Counter[str] = field(default_factory=Counter)
    runtimes: Counter[str] = field(default_factory=Counter)
    first: datetime | None = None
    last: datetime | None = None
    _digest: Any = field(default_factory=hashlib.sha256)

    def take(self, record: Record) -> None:
        """Count a record that is about to be replayed."""
        self.replayed += 1
        self.first = min(self.first or record.time, record.time)
        self.last = max(self.last or record.time, record.time)
        if record.runtime:
            self.runtimes[record.runtime] += 1
        self._digest.update(f"{record.server_id}/{record.boot_id}/{record.seq}\n".encode())

    @property
    def fingerprint(self) -> str:
        """Identifies the records that were replayed."""
        digest: str = self._digest.hexdigest()
        return digest

    def document(self) -> dict[str, Any]:
        return {
            "lost": self.lost,
            "read": self.log.records,
            "torn": self.log.torn,
            "unreadable": self.log.unreadable + self.undecodable,
            "quarantined": self.log.quarantined,
            "duplicates": self.log.duplicates,
            "share_usable": self.log.share_usable,
            "not_comparable": self.not_comparable.total(),
            "failed": self.failed,
            "truncated": self.truncated,
            "unpaired": self.unpaired,
            "semantic": self.semantic,
            "sampled_out": self.sampled_out,
            "replayed": self.replayed,
            "runtimes": dict(self.runtimes.most_common()),
        }

    @property
    def lost(self) -> int:
        """Requests that servers numbered and no record tells of; 0 where only a share was to be logged."""
        damaged = self.log.torn + self.log.unreadable + self.log.lost_rows
        return 0 if self.log.sampled else max(0, self.log.gaps - damaged)

    def window(self) -> dict[str, str | None]:
        return {
            "first": rfc3339(self.first) if self.first else None,
            "last": rfc3339(self.last) if self.last else None,
        }


def replayable(
    records: Iterator[Record], account: Account, *, digest: str, sample: int | None = None, seed: int = 0
) -> Iterator[Request]:
    """The requests that this package answered, decoded one at a time.

    Args:
        records: of the log.
        account: counts every record that is left out.
        digest: of the package.
        sample: draw so many evenly over the whole log; None takes all.
        seed: of the draw.
    """
    chosen = _comparable(records, account, digest)
    if sample is not None:
        chosen = _drawn(chosen, account, sample, seed)
    for record in chosen:
        try:
            inputs = {name: _decoded(encoded) for name, encoded in record.inputs.items()}
            outputs = {name: _decoded(encoded) for name, encoded in record.outputs.items()}
        except UsageError:
            account.undecodable += 1
            continue
        account.take(record)
        yield Request(record, inputs, outputs)


def _decoded(encoded: Mapping[str, Any]) -> Array:
    """The same as `decode_array`, sooner for the flat columns of numbers that most requests are made of."""
    try:
        cells, kind = encoded["data"], _NUMBERS[encoded["datatype"]]
        if len(encoded) == _PLAIN and type(cells) is list and encoded["shape"] == [len(cells)]:
            array = np.array(cells, dtype=kind)
            if array.ndim == 1:
                return array
    except (LookupError, TypeError, ValueError, OverflowError, MemoryError):
        pass  # no such column, or one that cannot be read: the other says why
    return decode_array(encoded)


def _comparable(records: Iterator[Record], account: Account, digest: str) -> Iterator[Record]:
    for record in records:
        if record.digest != digest:
            account.not_comparable[f"{record.model}/{record.version}"] += 1
        elif record.status != OK:
            account.failed += 1
        elif record.truncated:
            account.truncated += 1
        elif record.cache == SEMANTIC:
            account.semantic += 1
        elif record.foreign and (not record.inputs or not record.outputs):
            account.unpaired += 1
        elif not record.inputs or not record.outputs:
            account.undecodable += 1
        else:
            yield record


def _drawn(records: Iterator[Record], account: Account, sample: int, seed: int) -> Iterator[Record]:
    """Reservoir sampling (Vitter, ACM TOMS 11, 1985): one pass, whatever the length of the log."""
    generator = random.Random(seed)  # noqa: S311 - a repeatable draw, no secret
    kept: list[tuple[int, Record]] = []
    seen = 0
    for seen, record in enumerate(records, start=1):
        if len(kept) < sample:
            kept.append((seen, record))
        elif (place := generator.randrange(seen)) < sample:
            kept[place] = (seen, record)
    account.sampled_out += seen - len(kept)
    for _place, record in sorted(kept, key=lambda entry: entry[0]):
        yield record
