"""Labels beside the answers that were served, with an account of those that meet none."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.span import Grid
from mlx_platform.core.tensors import Array, Columns, Tensors, decode_array, text_column
from mlx_platform.evaluation.gates import cell_text
from mlx_platform.evaluation.resample import Floats
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.online.answers import Reservoir, answers_of, scores_of, stacked
from mlx_platform.workflows.online.labels import Label, Labels, Named

OK = 200
NOT_LOGGED = "(not logged)"
_NEVER = datetime.min.replace(tzinfo=UTC)
NEEDED = {
    "classification": ("label_index", "label"),
    "multilabel": ("labels",),
    "regression": ("value",),
    "ranking": ("value",),
}
"""The answer columns of a task, one of which a row must have to be measured."""
OURS: dict[str, Callable[[Record, ZoneInfo], str]] = {
    "replica": lambda record, _zone: record.server_id,
    "arm": lambda record, _zone: record.arm,
    "endpoint": lambda record, _zone: record.endpoint,
    "hour": lambda record, zone: f"{record.time.astimezone(zone):%H}",
}
"""What rows can be sliced by beside their inputs, whatever model answered."""


@dataclass(slots=True)
class Fates:
    """What became of records and labels. Rows are counted where nothing else is said.

    `answered` were answered by this version in the window, `joined` of them have a label. Labels that meet
    no answer: of requests that another version answered (`other_version`), that were not answered with 200
    (`failed`), whose answer is not in the log (`unlogged`) or has nothing to measure (`no_answer`); `unclear`
    name a request of several rows without saying which one, or a row that it does not have; `late` were told
    after the time that was set; `unmatched` name no request of the window. `early` were told before their
    request was answered, by clocks that disagree: they count, their delay does not. `again` are further
    records with the id of an earlier one, which alone has the label.
    """

    answered: int = 0
    answered_weight: float = 0.0
    joined: int = 0
    joined_weight: float = 0.0
    other_version: Named = field(default_factory=Named)
    failed: Named = field(default_factory=Named)
    unlogged: Named = field(default_factory=Named)
    no_answer: Named = field(default_factory=Named)
    unclear: Named = field(default_factory=Named)
    late: Named = field(default_factory=Named)
    unmatched: Named = field(default_factory=Named)
    again: Named = field(default_factory=Named)
    early: int = 0

    NAMED = ("other_version", "failed", "unlogged", "no_answer", "unclear", "late", "unmatched", "again")


@dataclass(slots=True)
class Joined:
    """Rows with a label, in the order of the log; every array has one entry per row.

    Attributes:
        truth: what was told.
        answers: what was answered, by column.
        weights: one over the share of requests that were logged, times the label's own weight.
        requests: which request each belongs to, as a code.
        windows: the beginning of the window in which it was answered.
        delays: seconds until the label was told; NaN where nobody says when.
        columns: values to slice by, by name.
        scores: of these rows, and of a sample of those without a label; empty where answers have none.
        answered: rows by the beginning of the window that they were answered in.
        fingerprint: identifies the rows and what was told of them.
    """

    truth: Array
    answers: dict[str, Array]
    weights: Floats
    requests: Array
    windows: list[datetime]
    delays: Floats
    columns: dict[str, Array]
    scores: tuple[Floats, Floats]
    fates: Fates
    log: LogStats
    first: datetime | None
    last: datetime | None
    answered: Counter[datetime]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Joining:
    """By what rule labels are joined.

    Attributes:
        digest: of the package whose answers are meant.
        task: of the model.
        decode: from the model's tensors to answers.
        grid: cuts time into windows, in whose zone hours are told apart as well.
        columns: what rows are sliced by, of `OURS` or of the inputs.
        patience: labels that are told so long after the answer do not count; None waits for ever.
    """

    digest: str
    task: str
    decode: Callable[[Tensors], Columns]
    grid: Grid
    columns: Sequence[str] = ()
    patience: timedelta | None = None


def join(records: Iterable[Record], log: LogStats, labels: Labels, rule: Joining) -> Joined:
    """Read a log once and put the labels beside its answers.

    Args:
        records: of the window, of any version.
        log: statistics of the log, complete afterwards.
        labels: what was told.
        rule: how they are joined.
    """
    joiner = _Joiner(labels, rule)
    for record in records:
        joiner.take(record)
    return joiner.finish(log)


class _Joiner:
    """Gathers the rows; what it holds grows with the labels, not with the log."""

    def __init__(self, labels: Labels, rule: Joining) -> None:
        self._labels = labels
        self._rule = rule
        self._fates = Fates()
        self._met: set[str] = set()
        self._elsewhere: set[str] = set()
        self._cells: dict[str, list[Any]] = {}
        self._answered: list[set[str]] = []
        self._truth: list[Any] = []
        self._weights: list[float] = []
        self._requests: list[int] = []
        self._starts: list[datetime] = []
        self._delays: list[float] = []
        self._columns: dict[str, list[str]] = {name: [] for name in rule.columns}
        self._rest = Reservoir()
        self._windows: Counter[datetime] = Counter()
        self._digest = hashlib.sha256()
        self._window = (_NEVER, _NEVER)
        self._span: tuple[datetime | None, datetime | None] = (None, None)

    def take(self, record: Record) -> None:
        told = self._labels.of.get(record.request_id)
        if record.digest != self._rule.digest:
            if told is not None:
                self._elsewhere.add(record.request_id)
            return
        problem = self._problem(record)
        if problem is None:
            rows = max(1, record.rows)
            self._fates.answered += rows
            self._fates.answered_weight += rows / record.sampling
            self._windows[self._start(record)] += rows
            first, last = self._span
            self._span = min(first or record.time, record.time), max(last or record.time, record.time)
        if told is None:
            if problem is None:
                self._rest.offer(record)
            return
        if record.request_id in self._met:
            self._fates.again.add(record.request_id)
        elif problem is not None:
            problem.add(record.request_id, len(told))
            self._met.add(record.request_id)
        else:
            self._met.add(record.request_id)
            self._join(record, told)

    def _problem(self, record: Record) -> Named | None:
        if record.status != OK:
            return self._fates.failed
        if record.truncated or not record.outputs:
            return self._fates.unlogged
        return None

    def _join(self, record: Record, told: dict[int | None, Label]) -> None:
        answers = answers_of(record, self._rule.decode)
        if not any(name in answers for name in NEEDED.get(self._rule.task, ())):
            self._fates.no_answer.add(record.request_id, len(told))
            return
        inputs = self._inputs(record)
        for row, label in self._by_row(record, told):
            delay = (label.time - record.time).total_seconds() if label.time else float("nan")
            if self._rule.patience is not None and delay > self._rule.patience.total_seconds():
                self._fates.late.add(record.request_id)
                continue
            self._fates.early += delay < 0
            self._add(record, answers, inputs, row, label, delay if delay >= 0 else float("nan"))

    def _by_row(self, record: Record, told: dict[int | None, Label]) -> Iterator[tuple[int, Label]]:
        rows = max(1, record.rows)
        if rows == 1 and None in told and 0 in told:
            whole, only = told[None], told[0]
            told = {row: label for row, label in told.items() if row not in {None, 0}}
            if cell_text(whole.value) == cell_text(only.value):
                self._labels.repeated += 1
                told[0] = only
            else:
                self._labels.contradicted.add(record.request_id, 2)
        for row, label in told.items():
            place = 0 if row is None and rows == 1 else row
            if place is None or place >= rows:
                self._fates.unclear.add(record.request_id)
            else:
                yield place, label

    def _add(
        self, record: Record, answers: Columns, inputs: Columns, row: int, label: Label, delay: float
    ) -> None:
        weight = label.weight / record.sampling
        place_in_log = f"{record.server_id}/{record.boot_id}/{record.seq}/{row}"
        self._digest.update(f"{place_in_log}={cell_text(label.value)}\n".encode("utf-8", "surrogatepass"))
        self._fates.joined += 1
        self._fates.joined_weight += 1 / record.sampling
        self._answered.append(set(answers))
        place = len(self._truth)
        for name, column in answers.items():
            self._cells.setdefault(name, [None] * place).append(column[row])
        self._truth.append(label.value)
        self._weights.append(weight)
        self._requests.append(len(self._met))
        self._starts.append(self._start(record))
        self._delays.append(delay)
        for name, values in self._columns.items():
            values.append(self._slice_value(record, inputs, name, row))
        for name, cells in self._cells.items():
            if name not in answers:
                cells.append(None)

    def _start(self, record: Record) -> datetime:
        """The beginning of a record's window; most lie in that of the record before."""
        since, until = self._window
        if not since <= record.time < until:
            span = self._rule.grid.at(record.time)
            since, until = self._window = span.since or record.time, span.until or record.time
        return since

    def _inputs(self, record: Record) -> Columns:
        """The inputs that rows are sliced by."""
        found = {}
        for name in self._columns:
            if name in record.inputs and name not in OURS:
                try:
                    found[name] = decode_array(record.inputs[name])
                except UsageError:
                    continue
        return found

    def _slice_value(self, record: Record, inputs: Columns, name: str, row: int) -> str:
        if name in OURS:
            return OURS[name](record, self._rule.grid.zone)
        cells = inputs.get(name)
        if cells is None or not cells.ndim or row >= len(cells):
            return NOT_LOGGED
        return cell_text(
            cells[row].tolist() if isinstance(cells[row], np.generic | np.ndarray) else cells[row]
        )

    def finish(self, log: LogStats) -> Joined:
        for request_id in sorted(self._labels.of.keys() - self._met):
            elsewhere = request_id in self._elsewhere
            named = self._fates.other_version if elsewhere else self._fates.unmatched
            named.add(request_id, len(self._labels.of[request_id]))
        answers = {
            name: stacked(cells)
            for name, cells in self._cells.items()
            if all(name in answered for answered in self._answered)
        }
        scores = scores_of(answers) if answers else np.empty(0)
        return Joined(
            truth=text_column(self._truth),
            answers=answers,
            weights=np.array(self._weights),
            requests=np.array(self._requests, np.int64),
            windows=self._starts,
            delays=np.array(self._delays),
            columns={name: text_column(values) for name, values in self._columns.items()},
            scores=(scores, self._rest.scores(self._rule.decode)),
            fates=self._fates,
            log=log,
            first=self._span[0],
            last=self._span[1],
            answered=self._windows,
            fingerprint=self._digest.hexdigest(),
        )
