"""The ways to answer a request."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from mlx_platform.core.errors import MlxError
from mlx_platform.core.tensors import Array, Columns, row_count
from mlx_platform.inference.model import Model
from mlx_platform.workflows.crosscheck.answering import Answered, Case, answer

BATCH_ROWS = 64
_THREADS = 4


class Side(Protocol):
    """One way to answer requests."""

    @property
    def name(self) -> str:
        """What it is called in a table."""

    def answers(self, cases: Sequence[Case]) -> list[Answered]:
        """One answer for each, in their order."""


class Alone:
    """Each request in a run of its own, as the pipeline of its package has it."""

    def __init__(self, model: Model, name: str) -> None:
        self.name = name
        self._model = model

    def answers(self, cases: Sequence[Case]) -> list[Answered]:
        return [answer(self._model, case) for case in cases]


class Crowded:
    """The same while other threads run other requests."""

    def __init__(self, model: Model) -> None:
        self.name = f"again, {_THREADS} at a time"
        self._model = model

    def answers(self, cases: Sequence[Case]) -> list[Answered]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="mlx-crowd") as crowd:
            return list(crowd.map(lambda case: answer(self._model, case), cases))


class RowByRow:
    """Each row in a run of its own."""

    name = "one row at a time"

    def __init__(self, model: Model) -> None:
        self._model = model

    def answers(self, cases: Sequence[Case]) -> list[Answered]:
        return [self._answer(case) for case in cases]

    def _answer(self, case: Case) -> Answered:
        if not case.rows:
            return answer(self._model, case)
        rows = [answer(self._model, _part(case, row, row + 1)) for row in range(case.rows)]
        problem = next((row.problem for row in rows if row.problem), "")
        if problem:
            return Answered(problem=problem)
        columns = {name: [row.columns[name] for row in rows] for name in rows[0].columns}
        if any(len({part.shape[1:] for part in parts}) > 1 for parts in columns.values()):
            return Answered(problem="the answers to its rows have different shapes")
        return Answered({name: np.concatenate(parts) for name, parts in columns.items()})


class Together:
    """Rows of many requests in one run, as many as fit into a batch."""

    def __init__(self, model: Model) -> None:
        self.name = f"up to {BATCH_ROWS} rows at a time"
        self._model = model

    def answers(self, cases: Sequence[Case]) -> list[Answered]:
        found: dict[int, Answered] = {}
        groups: dict[object, list[int]] = {}
        for number, case in enumerate(cases):
            groups.setdefault(_likeness(case) if case.rows else number, []).append(number)
        for numbers in groups.values():
            members = [cases[number] for number in numbers]
            found |= zip(numbers, self._together(members), strict=True)
        return [found[number] for number in range(len(cases))]

    def _together(self, cases: Sequence[Case]) -> list[Answered]:
        if not cases[0].rows:
            return [answer(self._model, case) for case in cases]
        names = cases[0].inputs
        joined = {name: np.concatenate([case.inputs[name] for case in cases]) for name in names}
        try:
            if cases[0].raw:
                columns = self._model.predict(joined, batch_size=BATCH_ROWS).columns
            else:
                columns = self._in_batches(joined, cases[0].asked)
        except MlxError:
            return [answer(self._model, case) for case in cases]  # one of them spoils it: they tell which
        ends = np.cumsum([case.rows or 0 for case in cases])
        if any(not column.ndim or len(column) != ends[-1] for column in columns.values()):
            return [Answered(problem="the answers have other rows than the inputs")] * len(cases)
        parts = {name: np.split(column, ends[:-1]) for name, column in columns.items()}
        return [
            Answered({name: part[number] for name, part in parts.items()}) for number in range(len(cases))
        ]

    def _in_batches(self, feeds: Columns, asked: Sequence[str] | None) -> dict[str, Array]:
        rows = row_count(feeds)
        found = [
            self._model.run({name: array[start : start + BATCH_ROWS] for name, array in feeds.items()}, asked)
            for start in range(0, rows, BATCH_ROWS)
        ]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _part(case: Case, start: int, end: int) -> Case:
    inputs = {name: column[start:end] for name, column in case.inputs.items()}
    return Case(case.name, inputs, case.raw, case.asked)


def _likeness(case: Case) -> object:
    """What requests of one run have in common."""
    shapes = tuple((name, array.dtype.str, array.shape[1:]) for name, array in sorted(case.inputs.items()))
    return case.raw, case.asked, shapes
