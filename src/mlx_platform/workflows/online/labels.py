"""Labels by request, as they were told: beside the traffic log, or in a file."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable
from mlx_platform.evaluation.gates import cell_text
from mlx_platform.evaluation.truth import is_empty
from mlx_platform.traffic.feedback import FeedbackStats, read_feedback
from mlx_platform.workflows.feedback import cell_value, read_entries

_IDS = ("id", "request_id")
_ROW, _TIME, _WEIGHT = "row", "time", "weight"
_LINES = (".jsonl", ".ndjson")
_UNTOLD = datetime(9999, 12, 31, tzinfo=UTC)  # stands for a time that nobody told
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Label:
    """What is true of a row, when that was told (None: nobody says), and what the row counts."""

    value: Any
    time: datetime | None = None
    weight: float = 1.0


@dataclass(slots=True)
class Named:
    """A count with the first few ids that it is about."""

    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, request_id: str, count: int = 1) -> None:
        self.count += count
        if len(self.ids) < _NAMED and request_id not in self.ids:
            self.ids.append(request_id)

    def document(self) -> dict[str, Any]:
        return {"count": self.count, "ids": [printable(one, 128) for one in self.ids]}


@dataclass(slots=True)
class Labels:
    """Labels by request id, and by row within it; None is a label of the request as a whole.

    `told` counts all of them, `repeated` those that say the same again, `contradicted` those about rows of
    which different things are said: these rows have no label at all. `empty` say nothing, or not of which
    request; `damaged` are lines that cannot be read, which are not among the told.
    """

    source: str
    of: dict[str, dict[int | None, Label]] = field(default_factory=dict)
    told: int = 0
    repeated: int = 0
    empty: int = 0
    contradicted: Named = field(default_factory=Named)
    damaged: int = 0
    _struck: set[tuple[str, int | None]] = field(default_factory=set)

    def __len__(self) -> int:
        return sum(map(len, self.of.values()))

    def add(self, request_id: str, row: int | None, label: Label) -> None:
        """Take a label; what contradicts an earlier one takes both away."""
        self.told += 1
        if not request_id or is_empty(label.value):
            self.empty += 1
            return
        place = (request_id, row)
        if place in self._struck:
            self.contradicted.add(request_id)
            return
        rows = self.of.setdefault(request_id, {})
        known = rows.get(row)
        if known is None:
            rows[row] = label
        elif cell_text(known.value) == cell_text(label.value):
            self.repeated += 1
            if label.time and (known.time is None or label.time < known.time):
                rows[row] = label
        else:
            self._struck.add(place)
            self.contradicted.add(request_id, 2)
            del rows[row]
            if not rows:
                del self.of[request_id]


def read_labels(file: Path | None, traffic: Path, name: str, *, since: datetime | None = None) -> Labels:
    """Read labels from a file, or from what was told beside a traffic log.

    A line of JSONL is an entry of feedback, `{"id": "a1", "outcomes": {"label": "red"}}`, or has the columns
    of a table: `id` or `request_id`, the label, and perhaps `row` (of a request with several, from 0), `time`
    (when it was told, with a zone) and `weight` (what it counts, such as one over the chance to be labelled).
    An outcome called `label.2` is about row 2.

    Args:
        file: CSV, Parquet or JSONL; None reads the feedback beside the log.
        traffic: the log.
        name: of the outcome or column that is the label.
        since: the beginning of the window; nothing was told of its requests before.

    Raises:
        NotFoundError: there is no such file or folder.
        UsageError: a column is missing, or a row, time or weight cannot be used.
    """
    if file is None:
        entries, stats = read_feedback(traffic, since=since)
        labels = Labels(f"feedback beside {traffic}")
        _take_outcomes(labels, ((one.request_id, one.outcomes, one.time) for one in entries), name)
        labels.damaged = _damaged(stats)
        return labels
    labels = Labels(str(file))
    if file.suffix.lower() in _LINES and _has_outcomes(file):
        told = read_entries(file, _UNTOLD)
        _take_outcomes(labels, ((one.request_id, one.outcomes, one.time) for one in told), name)
    else:
        _take_table(labels, file, name)
    return labels


def _damaged(stats: FeedbackStats) -> int:
    return stats.torn + stats.unreadable


def _has_outcomes(file: Path) -> bool:
    """Whether the first line is an entry of feedback rather than a row of columns."""
    try:
        with file.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
        found = orjson.loads(first)
    except (OSError, orjson.JSONDecodeError):
        return False  # whoever reads the file says so
    return isinstance(found, dict) and "outcomes" in found


def _take_outcomes(
    labels: Labels, told: Iterable[tuple[str, Mapping[str, Any], datetime]], name: str
) -> None:
    for request_id, outcomes, time in told:
        for key, value in outcomes.items():
            stem, _dot, place = key.rpartition(".")
            when = None if time == _UNTOLD else time
            if key == name:
                labels.add(request_id, None, Label(value, when))
            elif stem == name and place.isdecimal() and len(place) < 10:
                labels.add(request_id, int(place), Label(value, when))


def _take_table(labels: Labels, file: Path, name: str) -> None:
    from mlx_platform.inference.dataset import read_dataset

    table = read_dataset(file)
    ids = table.column(next((one for one in _IDS if one in table.columns), _IDS[0]))
    truth = table.column(name)
    others = {key: table.columns[key] for key in (_ROW, _TIME, _WEIGHT) if key in table.columns}
    for place, (row, label) in enumerate(_rows(file, truth, others)):
        request_id = cell_value(ids[place])
        labels.add("" if request_id is None else str(request_id), row, label)


def _rows(file: Path, truth: Array, others: Mapping[str, Array]) -> Iterator[tuple[int | None, Label]]:
    for place in range(len(truth)):
        cells = {key: cell_value(column[place]) for key, column in others.items()}
        where = f"{printable(str(file), 200)}, row {place:,}"
        yield (
            _row(cells.get(_ROW), where),
            Label(_truth(truth[place]), _moment(cells.get(_TIME), where), _weight(cells.get(_WEIGHT), where)),
        )


def _truth(value: Any) -> Any:
    if getattr(value, "ndim", 0) or isinstance(value, list | tuple):
        return "|".join(cell_text(one) for one in list(value)) or "|"  # known to have none
    return cell_value(value)


def _row(cell: Any, where: str) -> int | None:
    if cell is None:
        return None
    text = str(cell)
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{where}: {printable(text, 40)!r} is no row of a request; they count from 0.")
    return int(text)


def _moment(cell: Any, where: str) -> datetime | None:
    if cell is None:
        return None
    try:
        moment = datetime.fromisoformat(str(cell))
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise UsageError(
        f"{where}: {printable(str(cell), 40)!r} is no time with a zone.", hint="Write 2026-03-08T06:59:58Z."
    )


def _weight(cell: Any, where: str) -> float:
    if cell is None:
        return 1.0
    try:
        weight = float(cell)
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 < weight < 1e12:
        raise UsageError(f"{where}: {printable(str(cell), 40)!r} is no weight; write a number above 0.")
    return weight
