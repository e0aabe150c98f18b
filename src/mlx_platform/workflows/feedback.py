"""`mlx feedback`: what became of requests, told to servers that take part in a rollout, or kept for later."""

import http.client
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import MlxError, NotFoundError, UnavailableError, UsageError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import first_line, plural, printable
from mlx_platform.traffic.feedback import Feedback, FeedbackWriter
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.watching.connection import connection_to

_BATCH = 500
_TIMEOUT = 30.0
_LINES = (".jsonl", ".ndjson")
_ID, _TIME, _VERSION = "id", "time", "version"


def feedback(
    context: Context,
    file: Path,
    *,
    servers: tuple[str, ...] = (),
    traffic: Path | None = None,
    source: str = "",
) -> Result:
    """Tell what became of requests, by the ids that their answers had.

    A line of JSONL is an entry such as `{"id": "a1", "outcomes": {"clicked": true}}`; a time with zone, a
    source and the version that answered may be in it. A table (CSV, Parquet) has a column `id`, perhaps one
    `time` and one `version`, and one for each outcome; an empty cell tells nothing. The whole file is read
    before anything is told.

    Args:
        context: settings and clock.
        file: the entries.
        servers: addresses of servers, each of which is told everything: it knows the requests it answered. A
            single one also counts requests that others answered, where an entry has their version.
        traffic: the folder of a traffic log instead, beside which the entries are kept.
        source: who says so, where an entry names nobody.

    Raises:
        NotFoundError: there is no such file or folder.
        UnavailableError: a server does not answer, or refuses.
        UsageError: an entry that cannot be used, names its line; or nobody to tell.
    """
    if bool(servers) == (traffic is not None):
        raise UsageError(
            "Nobody to tell." if not servers else "Servers keep what they are told themselves.",
            hint="Write --server URL, as often as there are servers, or --traffic DIR.",
        )
    entries = read_entries(file, context.clock(), source)
    if traffic is not None:
        return _keep(context, file, entries, traffic)
    if len(servers) > 1:  # each would count what names a version
        entries = [replace(entry, version="") for entry in entries]
    fates = {url: _tell(url, entries) for url in servers}
    return _told(file, entries, fates)


def read_entries(file: Path, now: datetime, source: str = "") -> list[Feedback]:
    """The entries of a file, JSONL or a table; `now` is the time of those that name none.

    Raises:
        NotFoundError: there is no such file.
        UsageError: an entry that cannot be used, names its line; or none at all.
    """
    found = []
    for where, document in _documents(file):
        try:
            found.append(Feedback.of(document, now=now, source=source))
        except UsageError as error:
            raise UsageError(f"{printable(str(file), 200)}, {where}: {error.message}") from error
    if not found:
        raise UsageError(f"{printable(str(file), 200)} holds no entries.")
    return found


def _documents(file: Path) -> Iterator[tuple[str, Any]]:
    if file.suffix.lower() in _LINES:
        return _lines(file)
    return _table(file)


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {printable(str(file), 200)}.") from error
    except OSError as error:
        raise UsageError(f"{printable(str(file), 200)} cannot be read: {first_line(error)}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"line {number:,}", orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise UsageError(f"{printable(str(file), 200)}, line {number:,}: this is no JSON.") from error


def _table(file: Path) -> Iterator[tuple[str, Any]]:
    from mlx_platform.inference.dataset import read_dataset

    table = read_dataset(file)
    ids = table.column(_ID)
    others = {name: table.columns[name] for name in (_TIME, _VERSION) if name in table.columns}
    outcomes = {name: column for name, column in table.columns.items() if name not in {_ID, *others}}
    for row in range(table.rows):
        cells = {name: cell_value(column[row]) for name, column in outcomes.items()}
        entry: dict[str, Any] = {
            "id": str(cell_value(ids[row])),
            "outcomes": {name: cell for name, cell in cells.items() if cell is not None},
        }
        for name, column in others.items():
            if (cell := cell_value(column[row])) is not None:
                entry[name] = str(cell)
        if entry["outcomes"]:
            yield f"row {row:,}", entry


def cell_value(value: Any) -> Any:
    """A cell as JSON has it; None for one that says nothing."""
    if getattr(value, "dtype", None) is not None and value.dtype.kind == "M":
        return None if value != value else f"{value.astype('datetime64[ms]')}Z"  # noqa: PLR0124 - no time
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float):
        if math.isnan(plain):
            return None
        return int(plain) if plain.is_integer() else plain
    return None if plain == "" else plain


def _keep(context: Context, file: Path, entries: Sequence[Feedback], traffic: Path) -> Result:
    if not traffic.is_dir():
        raise NotFoundError(
            f"There is no traffic log at {printable(str(traffic), 200)}.",
            hint="Write one with: mlx serve --traffic DIR",
        )
    writer = FeedbackWriter(traffic, clock=context.clock)
    try:
        for start in range(0, len(entries), _BATCH):
            writer.append(entries[start : start + _BATCH])
    except OSError as error:
        raise UnavailableError(f"The entries could not be kept: {first_line(error)}.") from error
    finally:
        writer.close()
    return Result(
        command="feedback",
        data={"file": str(file), "entries": len(entries), "kept": len(entries), "servers": []},
        report=Report(
            title="feedback",
            summary=f"{_count(entries)} kept beside {traffic}.",
        ),
    )


def _tell(url: str, entries: Sequence[Feedback]) -> Counter[str]:
    """Tell one server everything; what became of the entries there."""
    fates: Counter[str] = Counter()
    connection = connection_to(url, _TIMEOUT)
    try:
        for start in range(0, len(entries), _BATCH):
            fates.update(_post(connection, url, entries[start : start + _BATCH]))
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"{printable(url, 200)} does not answer: {first_line(error)}.",
            hint="Telling it all again is safe: what was told before counts once.",
        ) from error
    finally:
        connection.close()
    return fates


def _post(connection: http.client.HTTPConnection, url: str, entries: Sequence[Feedback]) -> Mapping[str, int]:
    body = orjson.dumps({"feedback": [entry.document() for entry in entries]})
    connection.request("POST", "/feedback", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    try:
        document = orjson.loads(content)
        if response.status == http.client.OK:
            return {str(fate): int(count) for fate, count in document["fates"].items()}
        said = printable(str(document["error"]), 300)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        said = "an answer that is none of mlx serve"
    kind: type[MlxError] = UnavailableError if response.status >= 429 else UsageError
    raise kind(f"{printable(url, 200)} refuses ({response.status}): {said}")


def _told(file: Path, entries: Sequence[Feedback], fates: Mapping[str, Counter[str]]) -> Result:
    total: Counter[str] = Counter()
    for counted in fates.values():
        total.update(counted)
    columns = list(total)
    rows = tuple((url, *(f"{counted[fate]:,}" for fate in columns)) for url, counted in fates.items())
    return Result(
        command="feedback",
        data={
            "file": str(file),
            "entries": len(entries),
            "kept": None,
            "servers": [{"url": url, "fates": dict(counted)} for url, counted in fates.items()],
        },
        report=Report(
            title="feedback",
            summary=f"{_count(entries)} told to {plural(len(fates), 'server')}; "
            f"{total['counted']:,} count in a rollout.",
            facts=(Fact("file", str(file)),),
            sections=(
                Table("What became of them", ("server", *columns), rows, tuple(range(1, len(columns) + 1))),
            ),
        ),
    )


def _count(entries: Sequence[Feedback]) -> str:
    return "1 entry" if len(entries) == 1 else f"{len(entries):,} entries"
