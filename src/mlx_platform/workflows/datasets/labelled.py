"""Rows of a sample with the labels that somebody gave them, from whatever they were labelled in."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.evaluation.sample_format import SampledRow, read_sample

_NAMED = 5  # ids that a count names


@dataclass(slots=True)
class Fates:
    """What became of labels: how many, and the first ids of each.

    `labelled` are used. `unlabelled` rows have none yet, `unknown` ids are in no sample, `repeated` labels
    say the same again, of `contradicted` rows people said different things, `masked` rows do not hold what
    was asked, and `known` ones were imported before.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ids: dict[str, list[str]] = field(default_factory=dict)

    def add(self, fate: str, row_id: str) -> None:
        self.counts[fate] += 1
        named = self.ids.setdefault(fate, [])
        if len(named) < _NAMED:
            named.append(printable(row_id, 80))

    def document(self) -> dict[str, Any]:
        fates = ("labelled", "unlabelled", "unknown", "repeated", "contradicted", "masked", "known")
        return {fate: {"rows": self.counts[fate], "examples": self.ids.get(fate, [])} for fate in fates}


def read_labelled(
    paths: Sequence[Path], sample: Path | None, *, label: str, keep_masked: bool, fates: Fates
) -> list[SampledRow]:
    """The rows with a label that nobody contradicts, each once, in the order of their ids.

    Args:
        paths: JSON Lines of a sample, CSV with the columns `id` and the label, or an export of Label Studio.
        sample: the rows that ids of CSV and Label Studio stand for.
        label: the column of a CSV that holds it.
        keep_masked: also take rows whose personal data were masked.
        fates: counts them all.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a file cannot be read, or its ids stand for nothing.
    """
    rows = {row.id: row for row in read_sample(sample)} if sample else {}
    said: dict[str, Any] = {}
    contradicted: set[str] = set()
    for path in paths:
        for row_id, found in _labels(path, rows, label, known=sample is not None):
            if row_id not in rows:
                fates.add("unknown", row_id)
            elif found is None:
                fates.add("unlabelled", row_id)
            elif row_id not in said:
                said[row_id] = found
            elif _same(said[row_id]) == _same(found):
                fates.add("repeated", row_id)
            elif row_id not in contradicted:
                contradicted.add(row_id)
                fates.add("contradicted", row_id)
    chosen = (replace(rows[row_id], label=said[row_id]) for row_id in sorted(said.keys() - contradicted))
    return list(_usable(chosen, fates, keep_masked=keep_masked))


def _usable(rows: Iterable[SampledRow], fates: Fates, *, keep_masked: bool) -> Iterator[SampledRow]:
    """Rows that can be trained on; of those with the same inputs one, unless their labels differ."""
    every = list(rows)
    labels: dict[str, set[tuple[bool, Any]]] = {}
    for row in every:
        labels.setdefault(row.input_hash, set()).add(_same(row.label))
    seen: set[str] = set()
    for row in every:
        if row.masked and not keep_masked:
            fates.add("masked", row.id)
        elif len(labels[row.input_hash]) > 1:
            fates.add("contradicted", row.id)
        elif row.input_hash in seen:
            fates.add("repeated", row.id)
        else:
            seen.add(row.input_hash)
            fates.add("labelled", row.id)
            yield row


def _labels(path: Path, rows: dict[str, SampledRow], label: str, *, known: bool) -> Iterator[tuple[str, Any]]:
    """Ids with their labels; None where there is none yet."""
    kind = path.suffix.lower()
    if kind == ".jsonl":
        for row in read_sample(path):
            if not known:
                rows.setdefault(row.id, row)
            yield row.id, _plain(row.label)
        return
    if not known:
        raise UsageError(
            f"{path} names rows by their ids, and not what they hold.",
            hint="Name the sample: --sample F.jsonl; mlx sample draws it again with the same --seed.",
        )
    try:
        yield from _from_csv(path, label) if kind == ".csv" else _from_tasks(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError, csv.Error, orjson.JSONDecodeError) as error:
        raise UsageError(f"Cannot read {path}: {printable(str(error), 200)}.") from error


def _from_csv(path: Path, label: str) -> Iterator[tuple[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        table = csv.DictReader(lines)
        missing = [name for name in ("id", label) if name not in (table.fieldnames or ())]
        if missing:
            raise UsageError(
                f"{path} has no column {printable(missing[0], 80)!r}.",
                hint="It needs the ids of the sample and a label: --label-column NAME",
            )
        for line in table:
            yield str(line["id"]), (line[label] or "").strip() or None


def _from_tasks(path: Path) -> Iterator[tuple[str, Any]]:
    """An export of Label Studio as JSON; predictions and cancelled annotations are no labels.

    https://labelstud.io/guide/export#Label-Studio-JSON-format-of-annotated-tasks
    """
    tasks = orjson.loads(path.read_bytes())
    if not isinstance(tasks, list):
        raise UsageError(f"{path} is no export of Label Studio: it is no list of tasks.")
    for task in tasks:
        data = task.get("data") if isinstance(task, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(data.get("id"), str):
            raise UsageError(f"{path} holds a task without the id of a sampled row.")
        found = [
            value
            for annotation in _list(path, task, "annotations")
            if isinstance(annotation, Mapping) and not annotation.get("was_cancelled")
            for value in _values(path, annotation)
        ]
        if not found:
            yield data["id"], None
        for value in found:
            yield data["id"], value


def _list(path: Path, part: Mapping[str, Any], key: str) -> list[Any]:
    found = part.get(key) or []
    if not isinstance(found, list):
        raise UsageError(f"{path} is no export of Label Studio: {key!r} of a task is no list.")
    return found


def _values(path: Path, annotation: Mapping[str, Any]) -> Iterator[Any]:
    for result in _list(path, annotation, "result"):
        value = result.get("value") if isinstance(result, Mapping) else None
        if not isinstance(value, Mapping):
            continue
        if isinstance(value.get("choices"), list) and len(value["choices"]) == 1:
            yield _plain(value["choices"][0])
        elif "number" in value or "rating" in value:
            yield _plain(value.get("number", value.get("rating")))


def _same(label: Any) -> tuple[bool, Any]:
    """What labels are compared by: 3 and 3.0 are the same, and 1 and True are not."""
    return isinstance(label, bool), label


def _plain(label: Any) -> Any:
    """A label as text, number or truth value; what is empty or anything else is none."""
    if isinstance(label, str):
        return label.strip() or None
    return label if isinstance(label, int | float) else None
