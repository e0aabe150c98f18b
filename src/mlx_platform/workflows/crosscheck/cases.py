"""The requests that are answered in two ways: those of a traffic log, or made of a file's rows."""

from collections.abc import Collection, Iterator
from itertools import cycle, islice
from pathlib import Path

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.tensors import Columns, row_count
from mlx_platform.inference.model import Model
from mlx_platform.inference.sources.opening import open_dataset
from mlx_platform.workflows.crosscheck.answering import Case
from mlx_platform.workflows.replay.requests import Request

_SIZES = (1, 1, 1, 2)  # rows of the requests that a file is cut into, in turn
_READ_ROWS = 1024


def case_of(request: Request) -> Case:
    """A logged request as it was sent."""
    asked = None if request.raw else tuple(sorted(request.outputs))
    return Case(request.record.request_id, request.inputs, request.raw, asked)


def cases_in(path: Path, model: Model, most: int, beside: Collection[str]) -> Iterator[Case]:
    """The first rows of a file as requests of one or two rows.

    Args:
        path: as `mlx eval` reads it; columns that the model does not take are left alone.
        model: tells which columns it takes.
        most: requests.
        beside: columns that are no inputs, where a model takes all columns in their order.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a column is missing, or the file is damaged.
        UndecidedError: it has no rows.
    """
    source = open_dataset(path)
    names = model.columns or tuple(name for name in source.columns if name not in beside)
    for name in names:
        source.require(name)
    found = False
    for case in islice(_cut(source.batches(_READ_ROWS, names)), most):
        found = True
        yield case
    if not found:
        raise UndecidedError(f"{path} has no rows.")


def _cut(batches: Iterator[Columns]) -> Iterator[Case]:
    sizes = cycle(_SIZES)
    first = 1
    for batch in batches:
        rows, start = row_count(batch), 0
        while start < rows:
            end = min(rows, start + next(sizes))
            one, last = first + start, first + end - 1
            name = f"row {one:,}" if one == last else f"rows {one:,} to {last:,}"
            yield Case(name, {name: column[start:end] for name, column in batch.items()}, raw=True)
            start = end
        first += rows
