"""The labelled rows of an evaluation, and the models' answers to them.

The file is read once, batch by batch, and all models answer each batch. Only what metrics and reports need is
kept of a row; its features are gone once it is answered.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.errors import IntegrityError, UsageError
from mlx_platform.core.tensors import Array, row_count
from mlx_platform.core.text import plural, printable
from mlx_platform.evaluation.gates import DatasetRules
from mlx_platform.evaluation.truth import CLASS_TASKS, is_empty, model_labels
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.answerer import Answerer, Running, refused
from mlx_platform.workflows.evaluation.kept import Column, Names
from mlx_platform.workflows.evaluation.layout import Layout, lay_out
from mlx_platform.workflows.evaluation.overlap import (
    Overlap,
    other_files,
    overlap_warnings,
    overlap_with,
    same_file,
)
from mlx_platform.workflows.subject import Subject, open_model

if TYPE_CHECKING:
    from mlx_platform.inference.digests import Digests
    from mlx_platform.inference.sources.source import Source

_BATCH_ROWS = 1024
"""Rows between two signs of progress."""
_ID_HINT = "An id names one row. Correct the rows, or name another column with --id."


@dataclass(frozen=True, slots=True)
class Data:
    """The file or folder that was read: SHA-256 of its bytes, and how many rows it has."""

    path: Path
    rows: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Rows:
    """What is known of every row but its features.

    Attributes:
        dataset: where they come from.
        label: the column of the truth.
        truth: as it stands there [rows].
        ids: what each row is called; its number, from 0, where no column says.
        weights: what each row counts [rows], if a column is named for it.
        groups: the values of the column that says which rows belong together [rows], if there is one.
        queries: the same for the queries of a ranking.
        slices: the columns that slices are made of [rows], by name.
        overlaps: rows that other files have as well.
        warnings: about the data.
        doubtful_ids: rows whose id is missing, or that of an earlier row.
    """

    dataset: Data
    label: str
    truth: Array
    ids: Sequence[object]
    weights: Array | None = None
    groups: Array | None = None
    queries: Array | None = None
    slices: Mapping[str, Array] = field(default_factory=dict)
    overlaps: tuple[Overlap, ...] = ()
    warnings: tuple[str, ...] = ()
    doubtful_ids: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """A model's answer columns, and the labels of its classes (empty where it has none)."""

    columns: dict[str, Array]
    labels: tuple[str, ...]


def answer_rows(
    context: Context,
    data: Path,
    rules: DatasetRules,
    subjects: Sequence[Subject],
    *,
    slices: Sequence[str] = (),
    running: Running | None = None,
) -> tuple[Rows, tuple[Answered, ...]]:
    """Read the rows and let every subject answer them, batch by batch.

    Args:
        context: the command's context, whose settings have the usual names of the columns.
        data: a file or folder.
        rules: what the command line and the gate file say about it, before the settings.
        subjects: the candidate, then its baselines. Those with the same package answer once.
        slices: columns to keep for slices.
        running: how the models run.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a column is missing; a row holds what a model cannot take, or an unknown label; the file
            is damaged or changes meanwhile. Names file, row or line, and column.
        IntegrityError: it is not the file that the gate file names.
        UndecidedError: there are no rows.
    """
    running = running or Running()
    source = _open(context, data, rules)
    answerers: dict[str, Answerer] = {}
    for place, subject in enumerate(subjects):
        if subject.package.digest not in answerers:
            model = open_model(context, subject, device=running.device, threads=running.threads)
            answerers[subject.package.digest] = Answerer(
                subject, model, running.batch_size, baseline=place > 0
            )
    layout = lay_out(
        source,
        rules,
        context.settings.evaluation,
        tuple(answerers.values()),
        slices=slices,
    )
    others = other_files(context, rules.disjoint_from, subjects[0])
    kept = _Kept(layout, source.rows, digests=bool(others))
    _pass(context, source, layout, kept, tuple(answerers.values()))
    rows = kept.rows(Data(source.path, kept.count, source.fingerprint))
    if layout.id_asked:
        kept.refuse_repeated(source)
    looked = [overlap_with(context, other, layout.features[0], kept.digests()) for other in others]
    overlaps = (
        *same_file(subjects[0], rows.dataset.fingerprint, kept.count),
        *(overlap for overlap in looked if overlap is not None),
    )
    warnings = (*layout.warnings, *kept.warnings(), *overlap_warnings(overlaps))
    rows = replace(rows, overlaps=overlaps, warnings=warnings)
    answered = {digest: _answered(answerer) for digest, answerer in answerers.items()}
    return rows, tuple(answered[subject.package.digest] for subject in subjects)


def _open(context: Context, data: Path, rules: DatasetRules) -> "Source":
    from mlx_platform.inference.sources.opening import open_dataset

    if rules.path and Path(rules.path).name != data.name:
        raise UsageError(
            f"The gates are for {printable(rules.path)}, not for {data}.",
            hint="Evaluate on that file, or take path out of the gate file's dataset table.",
        )
    size = data.stat().st_size if data.is_file() else None
    with context.progress.stage(f"reading {data.name}", size) as advance:
        source = open_dataset(data, advance)
    # Hours of answering would come to nothing otherwise.
    if rules.sha256 and rules.sha256.lower() != source.fingerprint:
        raise IntegrityError(
            f"{data} is not the data that the gate file names: its SHA-256 is {source.fingerprint}.",
            hint="Evaluate on that file, or change dataset.sha256.",
        )
    return source


def _pass(
    context: Context, source: "Source", layout: Layout, kept: "_Kept", answerers: Sequence[Answerer]
) -> None:
    """Read every row once."""
    names = " and ".join(answerer.subject.ref for answerer in answerers)
    labels = _labels(answerers)
    task = "ranking" if layout.query else answerers[0].model.spec.task
    total = source.size if source.rows is None else source.rows
    with context.progress.stage(f"answering with {names}", total) as advance:
        before = 0
        for batch in source.batches(_BATCH_ROWS, layout.columns):
            start, count = kept.count, row_count(batch)
            _check_cells(source, task, labels, layout, batch, start)
            for answerer, features in zip(answerers, layout.features, strict=True):
                answerer.answer(source, {name: batch[name] for name in features}, start)
            kept.add(batch)
            advance(count if source.rows is not None else source.position - before)
            before = source.position


def _labels(answerers: Sequence[Answerer]) -> tuple[str, ...]:
    """The labels of all models; none where one of them does not declare its own."""
    declared = [answerer.model.labels for answerer in answerers]
    return tuple(dict.fromkeys(label for labels in declared for label in labels)) if all(declared) else ()


def _check_cells(
    source: "Source",
    task: str,
    labels: Sequence[str],
    layout: Layout,
    batch: Mapping[str, Array],
    start: int,
) -> None:
    """Stop at the first row whose truth, weight or id cannot be used, rather than behind the last."""
    from mlx_platform.evaluation.truth import label_codes, numbers, tag_mask, weight_numbers

    column, truth = layout.label, batch[layout.label]
    with _placed(source, column, truth, start):
        if task in {"regression", "ranking"}:
            numbers(truth, column)
        elif task == "classification" and labels:
            label_codes(truth, labels, column)
        elif task == "multilabel" and labels:
            tag_mask(truth, labels, column)
    if layout.weight:
        with _placed(source, layout.weight, batch[layout.weight], start):
            weight_numbers(batch[layout.weight], layout.weight)
    if layout.id_asked:
        cells = batch[layout.id].tolist()
        row = next((row for row, cell in enumerate(cells) if is_empty(cell)), None)
        if row is not None:
            raise refused(source, layout.id, start + row, cells[row], "has no id", _ID_HINT)


@contextmanager
def _placed(source: "Source", column: str, cells: Array, start: int) -> Iterator[None]:
    """Say of a refused cell where it is to be found."""
    try:
        yield
    except UsageError as error:
        row = error.details.get("row")
        if row is None:
            raise
        _row, _column, problem = error.message.rpartition(f"column {printable(column)!r} ")
        raise refused(source, column, start + row, cells[row], problem, error.hint) from error


class _Kept:
    """Everything of the rows that outlives their batch."""

    def __init__(self, layout: Layout, rows: int | None, *, digests: bool) -> None:
        self._layout = layout
        self._truth = Column(rows)
        self._names = Names(rows) if layout.id else None
        self._columns = {name: Column(rows) for name in layout.kept}
        self._digests = Column(rows) if digests else None
        self._all_digests: Digests | None = None
        self._empty = dict.fromkeys(filter(None, (layout.group, layout.query)), 0)
        self.count = 0

    def add(self, batch: Mapping[str, Array]) -> None:
        layout = self._layout
        self._truth.add(batch[layout.label])
        if self._names is not None:
            self._names.add(batch[layout.id])
        for name, column in self._columns.items():
            column.add(batch[name])
        for name in self._empty:
            self._empty[name] += sum(map(is_empty, batch[name].tolist()))
        if self._digests is not None:
            from mlx_platform.inference.digests import row_digests

            self._digests.add(row_digests({name: batch[name] for name in layout.features[0]}))
        self.count += row_count(batch)

    def digests(self) -> "Digests":
        if self._digests is None:
            raise ValueError("no digests were asked for")
        if self._all_digests is None:
            self._all_digests = self._digests.finish()
        return self._all_digests

    def rows(self, data: Data) -> Rows:
        layout = self._layout
        columns = {name: column.finish() for name, column in self._columns.items()}
        return Rows(
            data,
            layout.label,
            self._truth.finish(),
            self._names.finish() if self._names is not None else range(self.count),
            columns[layout.weight] if layout.weight else None,
            columns[layout.group] if layout.group else None,
            columns[layout.query] if layout.query else None,
            {name: columns[name] for name in layout.slices},
            doubtful_ids=self._names.repeated + self._names.missing if self._names is not None else 0,
        )

    def refuse_repeated(self, source: "Source") -> None:
        """Refuse rows that share an id: each of them would count once more."""
        if self._names is None or self._names.first_repeat is None:
            return
        row, first = self._names.first_repeat
        problem = (
            f"holds the id {printable(str(self._names[row]), 80)!r} again; it is first in "
            f"{source.locate(first).removeprefix(f'{source.path}, ')}"
        )
        raise refused(source, self._layout.id, row, self._names[row], problem, _ID_HINT)

    def warnings(self) -> list[str]:
        found = []
        if self._names is not None and self._names.repeated:
            row = self._names.first_repeat[0] if self._names.first_repeat else 0
            repeated = _rows_that(self._names.repeated, "repeats", "repeat")
            column, first = printable(self._layout.id), printable(str(self._names[row]), 80)
            found.append(f"{repeated} an id of the column {column!r}, first {first!r}.")
        if self._names is not None and self._names.missing:
            missing = _rows_that(self._names.missing, "has", "have")
            found.append(f"{missing} no id in the column {printable(self._layout.id)!r}.")
        for column, what in ((self._layout.group, "group"), (self._layout.query, "query")):
            count = self._empty.get(column, 0)
            if count:
                lacking = _rows_that(count, "has", "have")
                found.append(
                    f"{lacking} no {what} in the column {printable(column)!r}: each is one by itself."
                )
        return found


def _rows_that(count: int, one: str, many: str) -> str:
    return f"{plural(count, 'row')} {one if count == 1 else many}"


def _answered(answerer: Answerer) -> Answered:
    columns = answerer.columns()
    model = answerer.model
    labels = model_labels(columns, model.labels) if model.spec.task in CLASS_TASKS else ()
    return Answered(columns, labels)
