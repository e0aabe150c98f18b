"""The writer of the traffic log: a thread behind a bounded queue, which a prediction never waits for."""

import errno
import logging
import re
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from mlx_platform.core.clock import Clock, system_clock
from mlx_platform.core.text import printable
from mlx_platform.traffic import frame
from mlx_platform.traffic.record import Record, is_sampled, payload_bytes
from mlx_platform.traffic.segment import Partition, make_private
from mlx_platform.traffic.sink import SEGMENT_BYTES, SEGMENT_RECORDS, Sink

RECORD_BYTES = 4 * 1024 * 1024
"""A record that is larger is logged without its inputs and outputs."""

DROP_REASONS = ("queue", "enospc", "oversize", "error", "closed")
"""Why a record may be lost: the queue or the disk was full, it was too large, failed, or came too late."""

_COALESCE_SECONDS = 0.05
"""How long records gather. While its thread waits for the interpreter, every step of the event loop wakes it
for nothing."""

_CHORE_SECONDS = 0.5
_TOGETHER = 64  # records that are written with one call
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of the records; once the queue is empty, served = logged + dropped + sampled out.

    `dropped` holds a count by reason, one of `DROP_REASONS`; `unsynced` are the logged records that a loss
    of power would still take.
    """

    served: int
    logged: int
    dropped: Mapping[str, int]
    sampled_out: int
    pending: int
    unsynced: int
    deleted_segments: int
    sync_errors: int

    def summary(self) -> dict[str, int]:
        """What became of them in the end; served = logged + lost + sampled out."""
        return {
            "served": self.served,
            "logged": self.logged,
            "sampled_out": self.sampled_out,
            "lost": sum(self.dropped.values()) + self.pending,
        }


class TrafficWriter:
    """Writes records in the order they come.

    A record is *accepted* when `log` returns, *written* (it survives the death of the process) within about a
    tenth of a second, and *durable* (it survives a power loss) within about a second.

    Args:
        folder: of the log; made if it is missing.
        model: whose traffic is expected; its folder is tried at once, so that `trouble` shows early.
        version: of the model.
        queue_bytes: memory for records that wait; when it is used up, new records are dropped and counted.
        disk_bytes: what the log may take on disk; the oldest segments make room.
        sample: share of requests to log, chosen by a hash of the request id.
        stages: share of requests whose tensors are logged as well, chosen likewise.
        clock: for the hours of segments.
        server_id: names this server in file names, by default the host name.
        segment_bytes: the size at which a segment is closed and sealed.
        segment_records: the number of records at which it is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str,
        version: str,
        queue_bytes: int,
        disk_bytes: int,
        sample: float = 1.0,
        stages: float = 0.0,
        clock: Clock = system_clock,
        server_id: str = "",
        segment_bytes: int = SEGMENT_BYTES,
        segment_records: int = SEGMENT_RECORDS,
    ) -> None:
        self.server_id = re.sub(r"[^A-Za-z0-9_.]", "_", server_id or socket.gethostname())[:64] or "server"
        self.boot_id = secrets.token_hex(6)
        self.sample = sample
        self.stages = stages
        self.trouble = ""
        """What the last failed write said; empty while everything is written."""
        self._folder = folder
        self._partition = Partition.at(model, version, clock())  # of the last record, or the first
        self._queue_bytes = queue_bytes
        self._sink = Sink(
            folder,
            owner=f"{self.server_id}-{self.boot_id}",
            disk_bytes=disk_bytes,
            clock=clock,
            segment_bytes=segment_bytes,
            segment_records=segment_records,
        )
        self._numbers = count(1)
        self._changed = threading.Condition()
        self._queue: deque[tuple[Record, int]] = deque()
        self._queued_bytes = 0
        self._served = self._logged = self._sampled_out = self._taken = 0
        self._dropped: Counter[str] = Counter()
        self._flushes = self._flushed = 0
        self._closing = False
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="traffic-log", daemon=True)
        self._thread.start()

    def next_seq(self) -> int:
        """The number of this server's next record."""
        return next(self._numbers)

    @property
    def counters(self) -> Counters:
        with self._changed:
            return Counters(
                served=self._served,
                logged=self._logged,
                dropped=dict(self._dropped),
                sampled_out=self._sampled_out,
                pending=len(self._queue) + self._taken,
                unsynced=self._sink.unsynced,
                deleted_segments=self._sink.deleted_segments,
                sync_errors=self._sink.sync_errors,
            )

    def log(self, record: Record) -> None:
        """Accept a record, or count why not. Never waits and never raises."""
        try:
            kept = is_sampled(record.request_id, self.sample)
            size = payload_bytes(record) if kept else 0
        except Exception:  # noqa: BLE001 - a prediction never fails because of its log
            with self._changed:
                self._served += 1
                self._dropped["error"] += 1
            return
        if size > RECORD_BYTES:
            record = record.without_payload()
            size = payload_bytes(record)
        with self._changed:
            self._served += 1
            if not kept:
                self._sampled_out += 1
            elif self._closing:
                self._dropped["closed"] += 1
            elif size > RECORD_BYTES:
                self._dropped["oversize"] += 1
            elif self._queued_bytes + size > self._queue_bytes:
                self._dropped["queue"] += 1
            else:
                if not self._queue:
                    self._changed.notify_all()
                self._queue.append((record, size))
                self._queued_bytes += size

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every record accepted so far is durable, or dropped and counted."""
        with self._changed:
            if self._closing:
                return
            self._flushes += 1
            ticket = self._flushes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._flushed >= ticket, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, seal the open segments, end the thread; later records are dropped and counted.

        What could not be sealed within `timeout` seconds stays readable, and the next server seals it.
        """
        with self._changed:
            if not self._closing:
                self._closing = True
                self._deadline = time.monotonic() + timeout
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        self._chore(self._prepare)
        while True:
            with self._changed:
                self._changed.wait_for(self._is_asked, _CHORE_SECONDS)
                closing, ticket = self._closing, self._flushes
                hurried = closing or ticket > self._flushed
            if not hurried:
                time.sleep(_COALESCE_SECONDS)
            self._drain()
            if ticket > self._flushed:
                self._chore(self._sink.sync)
            self._chore(self._sink.tick)
            with self._changed:
                self._flushed = ticket
                self._changed.notify_all()
            if closing:
                break
        self._chore(lambda: self._sink.close(self._deadline))

    def _is_asked(self) -> bool:
        return bool(self._queue) or self._closing or self._flushes > self._flushed

    def _prepare(self) -> None:
        make_private(self._folder / self._partition.path.parent.parent)
        self._sink.make_room()
        if self._sink.has_orphans():
            self._sink.seal_orphans()

    def _drain(self) -> None:
        # What waits now, and not what comes meanwhile: this thread would never sleep on a busy server, but
        # take the interpreter from it for a record or two at a time.
        left = len(self._queue)
        while left:
            with self._changed:
                taken = [self._queue.popleft() for _ in range(min(_TOGETHER, left))]
                self._taken = len(taken)
            left -= len(taken)
            dropped = self._write_all([record for record, _ in taken])
            with self._changed:
                self._taken = 0
                self._queued_bytes -= sum(size for _, size in taken)
                self._dropped.update(dropped)
                self._logged += len(taken) - len(dropped)

    def _write_all(self, records: list[Record]) -> list[str]:
        """Write records in their order. Returns a reason for each that was dropped."""
        dropped: list[str] = []
        partition, lines = self._partition, list[bytes]()
        for record in records:
            try:
                line = self._line(record)
                own = partition if partition.holds(record) else Partition.of(record)
            except Exception as error:  # noqa: BLE001 - one record that cannot be encoded must not end the thread
                self._set_trouble(f"a record cannot be encoded: {error}")
                dropped.append("error")
                continue
            if own is not partition:
                dropped += self._write(partition, lines)
                partition, lines = own, []
            lines.append(line)
        self._partition = partition
        return dropped + self._write(partition, lines)

    def _line(self, record: Record) -> bytes:
        line = frame.encode(record)
        return line if len(line) <= RECORD_BYTES else frame.encode(record.without_payload())

    def _write(self, partition: Partition, lines: list[bytes]) -> list[str]:
        """Write lines together, or where that fails one by one, each once or not at all."""
        if not lines:
            return []
        try:
            self._sink.write(partition, lines)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who come later have their chance
            if len(lines) > 1:
                return [reason for line in lines for reason in self._write(partition, [line])]
            self._set_trouble(str(error))
            return ["enospc" if isinstance(error, OSError) and error.errno in _FULL else "error"]
        self._set_trouble("")
        return []

    def _chore(self, chore: Callable[[], None]) -> None:
        try:
            chore()
        except Exception as error:  # noqa: BLE001 - the log goes on, and says what is wrong
            self._set_trouble(str(error))

    def _set_trouble(self, trouble: str) -> None:
        # Only changes are worth a line: a full disk would otherwise fill another log.
        if trouble and not self.trouble:
            _log.warning("traffic records are being dropped: %s", printable(trouble))
        elif self.trouble and not trouble:
            _log.warning("traffic records are written again")
        self.trouble = trouble
