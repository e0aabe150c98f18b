"""A profile made here: of rows in a file, or of the traffic of a log."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.tensors import Columns
from mlx_platform.drift.building import Built, build_in_passes
from mlx_platform.drift.counts import Key, features_of
from mlx_platform.drift.extract.inputs import InputFeatures, Learnt, learn
from mlx_platform.drift.extract.vocabulary import Vocabulary
from mlx_platform.drift.features import positions
from mlx_platform.drift.profile import Profile, profile_columns
from mlx_platform.drift.values import Categories, Column, Missing
from mlx_platform.drift.watched import Watched, served, watched
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.readers.opening import Reading
from mlx_platform.traffic.rows import RowBatch
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.counting import BATCH_ROWS, log_batches
from mlx_platform.workflows.drifting.parquet import chunks, columns, is_plain, open_table
from mlx_platform.workflows.drifting.window import Cut, Window
from mlx_platform.workflows.inputs import left_out
from mlx_platform.workflows.subject import Subject

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import Package

WHOLE_COLUMN = 4_000_000
"""Rows up to which a column of Parquet is profiled in one piece, which is exact."""

Batch = Mapping[Key, Column]


def profile_rows(context: Context, model: "Model | None", path: Path) -> Built:
    """Profile the rows of a data file, however many there are.

    Args:
        context: the command's context.
        model: answers them, so that its outputs are profiled as well; None profiles the columns as they are.
        path: of the file or folder.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it cannot be read.
        UndecidedError: it has no rows.
    """
    with context.progress.stage("profiling the baseline"):
        if model is None and is_plain(path):
            return _profile_table(context, path)
        if model is None:
            return build_in_passes(lambda _only: plain_rows(context, path))
        package = model.package
        learnt = learn(InputFeatures(package.spec, None), source_rows(context, package, path))
        look = InputFeatures(package.spec, package.root, learnt.own)
        places = positions(package.spec, package.spec.columns)
        built = build_in_passes(lambda _only: answered_rows(context, model, look, path), places)
        return _knowing(built, learnt.known)


def _profile_table(context: Context, path: Path) -> Built:
    aside = left_out(context, None)
    with open_table(path) as table:
        rows = table.metadata.num_rows
        if rows <= WHOLE_COLUMN:
            return Built(profile_columns(rows, columns(table, aside)))

        def pieces(only: Collection[Key] | None) -> Iterator[Batch]:
            names = set(table.schema_arrow.names) - aside
            wanted = names if only is None else names & {name for _, name in only}
            for name, column in chunks(table, set(table.schema_arrow.names) - wanted):
                yield {("input", name): column}

        return build_in_passes(pieces)


def _knowing(built: Built, vocabularies: Mapping[str, Vocabulary]) -> Built:
    return replace(built, profile=built.profile.with_vocabularies(vocabularies)) if vocabularies else built


def source_rows(context: Context, package: "Package | None", path: Path) -> Iterator[Columns]:
    """The raw columns of a file, batch by batch, without what is no input."""
    from mlx_platform.inference.sources.opening import open_dataset

    source = open_dataset(path)
    aside = left_out(context, package)
    names = [name for name in source.columns if name not in aside]
    yield from source.batches(BATCH_ROWS, names)


def plain_rows(context: Context, path: Path) -> Iterator[Batch]:
    """The rows of a file as features, as they are."""
    plain = Watched(None, (), {}, None)
    for rows in source_rows(context, None, path):
        yield features_of(plain.inputs(rows))


def answered_rows(context: Context, model: "Model", look: InputFeatures, path: Path) -> Iterator[Batch]:
    """The rows of a file as features, batch by batch, with the model's answers."""
    for rows in source_rows(context, model.package, path):
        yield features_of(look(rows), model.predict(rows).columns)


def profile_log(
    context: Context, subject: Subject | None, path: Path, cut: Cut, reading: Reading
) -> tuple[Built, Window]:
    """Profile the traffic of a log, inputs and answers as they were logged.

    Returns:
        The profile, and the account of what was read; its counts stay empty.

    Raises:
        UndecidedError: nothing in the log is meant.
    """
    package = subject.package if subject else None
    window = Window(str(path), cut, Profile(0, ()), {}, LogStats())

    def batches() -> Iterator[RowBatch]:
        nonlocal window
        window = Window(str(path), cut, Profile(0, ()), {}, LogStats())
        return log_batches(context, subject, path, window, reading)

    learnt = Learnt({}, {})
    if package:
        learnt = learn(InputFeatures(package.spec, None), (batch.inputs for batch in batches()))
    look = _look(package, learnt.own)

    def pieces(_only: Collection[Key] | None) -> Iterator[Batch]:
        for batch in batches():
            found = features_of(look.inputs(batch.inputs), look.outputs(batch.endpoint, batch.outputs))
            yield found | served(batch.latency_ms, batch.request_rows)

    built = build_in_passes(pieces, look.places)
    return _knowing(built, learnt.known), window


def _look(package: "Package | None", vocabularies: Mapping[str, Vocabulary]) -> Watched:
    """What is watched of a package whose profile is still to be made: each of its columns."""
    names = package.spec.columns if package else ()
    profile = profile_columns(1, ((name, Categories({}, Missing(null=1))) for name in names))
    return watched(package, profile.with_vocabularies(vocabularies))
