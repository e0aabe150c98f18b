"""A model that answers a file's rows batch by batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, row_count
from mlx_platform.core.text import printable
from mlx_platform.workflows.evaluation.kept import Column
from mlx_platform.workflows.subject import Subject

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.sources.source import Source


@dataclass(frozen=True, slots=True)
class Running:
    """How models run.

    Attributes:
        batch_size: rows of one run.
        threads: of one run; 0 as the settings say.
        device: see `open_session`.
        latency: take times even where no gate asks.
        timed_rows: of one call whose time is taken.
    """

    batch_size: int = 64
    threads: int = 0
    device: str = "auto"
    latency: bool = False
    timed_rows: int = 1


class Answerer:
    """Collects the answers of one model; `baseline` says that another one is judged."""

    def __init__(self, subject: Subject, model: "Model", batch_size: int, *, baseline: bool) -> None:
        self.subject = subject
        self.model = model
        self._batch_size = batch_size
        self._baseline = baseline
        self._columns: dict[str, Column] = {}

    @property
    def role(self) -> str:
        """What to call the model in a sentence."""
        return f"the {'baseline' if self._baseline else 'model'} {printable(self.subject.ref)}"

    def answer(self, source: "Source", features: Mapping[str, Array], start: int) -> None:
        """Answer a batch of columns, whose first row is row `start` of the source.

        Raises:
            UsageError: names the file, the row or line, and the column that the model cannot take.
        """
        from mlx_platform.inference.steps.step import CellError

        try:
            answers = self.model.predict(features, batch_size=self._batch_size).columns
        except CellError as error:
            cell = features[error.column][error.row] if error.column in features else None
            raise self._told(
                refused(source, error.column, start + error.row, cell, error.problem, error.hint)
            ) from error
        except UsageError as error:
            where = f"{source.path}, rows {start:,} to {start + row_count(features) - 1:,}"
            raise self._told(
                UsageError(f"{where}: {error.message}", hint=error.hint, **error.details)
            ) from error
        if "label_index" in answers:
            # What the index of a class and the probabilities say already.
            answers = {
                name: column for name, column in answers.items() if name not in {"label", "confidence"}
            }
            answers["label_index"] = answers["label_index"].astype(_index_type(len(self.model.labels)))
        for name, column in answers.items():
            self._columns.setdefault(name, Column(source.rows)).add(column)

    def columns(self) -> dict[str, Array]:
        """All answers [rows] by column, after the last row."""
        return {name: column.finish() for name, column in self._columns.items()}

    def _told(self, error: UsageError) -> UsageError:
        if not self._baseline:
            return error
        message = f"T{self.role[1:]} cannot answer these rows. {error.message}"
        return UsageError(message, hint=error.hint, **error.details)


def _index_type(classes: int) -> type[np.signedinteger[Any]]:
    return np.int16 if 0 < classes < np.iinfo(np.int16).max else np.int64


def refused(source: "Source", column: str, row: int, cell: object, problem: str, hint: str) -> UsageError:
    """The error about one cell of a file, under the place that people find it by.

    Args:
        source: the file.
        column: the cell's column.
        row: its row, from 0.
        cell: what it holds.
        problem: what is wrong with it, such as `holds no value` or `'x' is no number`.
        hint: what to do about it.
    """
    from mlx_platform.inference.sources.kinds import is_number

    word = source.word(column)
    if (
        word is not None
        and problem.rstrip(".").endswith("number")
        and isinstance(cell, str)
        and is_number(cell)
    ):
        # One bad cell makes texts of all numbers of a CSV column; the first of them is not to blame.
        row, text = word
        problem = f"{printable(repr(text), 80)} is no number"
    colon = "" if problem.startswith(("holds ", "has ")) else ":"
    told = f"{source.locate(row)}: column {printable(column, 128)!r}{colon} {problem.rstrip('.')}."
    return UsageError(told, hint=hint, row=row, column=column)
