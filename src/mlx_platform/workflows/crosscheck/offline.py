"""`mlx consistency --offline`: what a training script made of rows against what the package makes of them."""

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array, Columns, row_count
from mlx_platform.core.text import listed
from mlx_platform.evaluation.agreement import SAME_RUN, compare_answers
from mlx_platform.evaluation.consistency import Tally
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.inference.sources.opening import open_dataset
from mlx_platform.inference.sources.source import Source
from mlx_platform.inference.steps.step import CellError

_ROWS = 256
_PLACE = re.compile(r"(.+)\[(\d+)\]")  # a tensor's place in the name of a column


def compare_offline(
    model: Model,
    path: Path,
    tally: Tally,
    *,
    beside: Collection[str],
    most: int | None,
    advance: Callable[[int], None],
) -> None:
    """Count row by row whether the package's features and answers are those that the file has.

    Args:
        model: the package.
        path: a file with the raw columns, and beside them what the script made of them: columns called as
            the input tensors or answers, either with lists in their cells or one column for each place,
            such as `x[0]` and `x[1]`.
        tally: of the rows.
        beside: columns that are not compared, such as that of the truth.
        most: rows; None compares all.
        advance: told of rows that are done.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a raw column is missing, nothing of what the package makes is there, or a cell cannot be
            used; names row and column.
        UndecidedError: there are no rows.
    """
    source = open_dataset(path)
    for name in model.columns:
        source.require(name)
    made = _made(model, source, beside)
    others = {name for names in made.values() for name in names}
    raw = model.columns or tuple(name for name in source.columns if name not in others.union(beside))
    columns = tuple(dict.fromkeys((*raw, *others)))
    done = 0
    for batch in source.batches(_ROWS, columns):
        rows = row_count(batch) if most is None else min(row_count(batch), most - done)
        if not rows:
            break
        taken = {name: column[:rows] for name, column in batch.items()}
        try:
            _count(model, {name: taken[name] for name in raw}, taken, made, tally, first=done + 1)
        except CellError as error:
            raise error.moved(done) from error
        done += rows
        advance(rows)
    if not done:
        raise UndecidedError(f"{path} has no rows.")


def _made(model: Model, source: Source, beside: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The columns that hold each tensor or answer, of those that the file has and the model does not take."""
    aside = {*model.columns, *beside}
    tensors = [spec.name for spec in model.spec.inputs]
    answers = [name for step in model.spec.post_steps() for name in step.answers]
    known = list(dict.fromkeys((*tensors, *answers, *(spec.name for spec in model.spec.outputs))))
    places: dict[str, dict[int, str]] = {}
    for column in source.columns:
        place = _PLACE.fullmatch(column)
        if place:
            places.setdefault(place[1], {})[int(place[2])] = column
    found: dict[str, tuple[str, ...]] = {}
    for name in known:
        if name in aside:
            continue
        if name in source.columns:
            found[name] = (name,)
        elif name in places:
            if set(places[name]) != set(range(len(places[name]))):
                raise UsageError(f"{source.path} lacks a place of {name!r} before {max(places[name])}.")
            found[name] = tuple(places[name][number] for number in sorted(places[name]))
    if not found:
        raise UsageError(
            f"{source.path} has nothing that this package makes.",
            hint=f"Name columns as it does: {listed([name for name in known if name not in aside])}; "
            f"or one for each place, such as {known[0]}[0].",
        )
    return found


def _count(
    model: Model,
    raw: Columns,
    batch: Columns,
    made: dict[str, tuple[str, ...]],
    tally: Tally,
    *,
    first: int,
) -> None:
    encoded = model.prepare(raw)
    ours: dict[str, Array] = dict(encoded.feeds)
    features = set(ours)
    if not features.issuperset(made):
        answers = model.predict(raw)
        ours = {**answers.tensors, **answers.columns, **ours}
    ours = {name: ours[name] for name in made}
    theirs = {name: _theirs([batch[column] for column in columns]) for name, columns in made.items()}
    for row in range(row_count(batch)):
        other = {name: array[row : row + 1] for name, array in ours.items()}
        one = {name: _like(array[row : row + 1], other[name]) for name, array in theirs.items()}
        found = compare_answers(one, other, SAME_RUN, measured=True)
        tally.add(f"row {first + row:,}", found, _hashes(one, features), _hashes(other, features))


def _hashes(row: Columns, features: set[str]) -> dict[str, str]:
    stages = {
        "tensor": {name: array for name, array in row.items() if name in features},
        "output": {name: array for name, array in row.items() if name not in features},
    }
    return {stage: stage_hash(arrays) for stage, arrays in stages.items() if arrays}


def _theirs(columns: Sequence[Array]) -> Array:
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _like(theirs: Array, ours: Array) -> Array:
    """A row of the file in the package's own type and shape, where it can be brought into it."""
    array = theirs
    if array.dtype.kind == "O" and ours.dtype.kind not in "OUS":
        try:
            array = np.asarray([np.asarray(cell, dtype=np.float64) for cell in array.tolist()])
        except (TypeError, ValueError):
            return theirs
    if array.dtype.kind in "biuf" and ours.dtype.kind in "biuf":
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(ours.dtype)
        # Whole numbers that lose something on the way would agree with what they are not.
        if ours.dtype.kind == "f" or np.array_equal(converted, array):
            array = converted
    return array.reshape(ours.shape) if array.size == ours.size else array
