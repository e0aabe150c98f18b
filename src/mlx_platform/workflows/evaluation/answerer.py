"""A model that answers a file's rows batch by batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    """How models run: rows of one call, threads (0 as the settings say), and the device."""

    batch_size: int = 64
    threads: int = 0
    device: str = "auto"


class Answerer:
    """Collects the answers of one model; `baseline` says that another one is judged."""

    def __init__(self, subject: Subject, model: "Model", batch_size: int, *, baseline: bool) -> None:
        self.subject = subject
        self.model = model
        self._batch_size = batch_size
        self._baseline = baseline
        self._columns: dict[str, Column] = {}

    def answer(self, source: "Source", features: Mapping[str, Array], start: int) -> None:
        """Answer a batch of columns, whose first row is row `start` of the source.

        Raises:
            UsageError: names the file, the row or line, and the column that the model cannot take.
        """
        from mlx_platform.inference.steps.step import CellError

        try:
            answers = self.model.predict(features, batch_size=self._batch_size).columns
        except CellError as error:
            problem = f"column {printable(error.column, 128)!r}: {error.problem}"
            raise self._told(
                refused(source, start + error.row, problem, error.hint, column=error.column)
            ) from error
        except UsageError as error:
            where = f"{source.path}, rows {start:,} to {start + row_count(features) - 1:,}"
            raise self._told(
                UsageError(f"{where}: {error.message}", hint=error.hint, **error.details)
            ) from error
        for name, column in answers.items():
            # What an index of a class or its probability says already.
            if name in {"label", "confidence"} and "label_index" in answers:
                continue
            self._columns.setdefault(name, Column()).add(column)

    def columns(self) -> dict[str, Array]:
        """All answers [rows] by column, after the last row."""
        return {name: column.finish() for name, column in self._columns.items()}

    def _told(self, error: UsageError) -> UsageError:
        if not self._baseline:
            return error
        message = f"The baseline {printable(self.subject.ref)} cannot answer these rows. {error.message}"
        return UsageError(message, hint=error.hint, **error.details)


def refused(source: "Source", row: int, problem: str, hint: str, **details: Any) -> UsageError:
    """The error about one row of a file, counted from 0, under the name that people find it by."""
    return UsageError(f"{source.locate(row)}: {problem.rstrip('.')}.", hint=hint, row=row, **details)
