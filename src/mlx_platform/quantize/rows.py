"""Whether calibration rows are fit for their purpose: complete, enough, and none of the rows that judge."""

from dataclasses import dataclass

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Columns, row_count
from mlx_platform.core.text import plural, printable
from mlx_platform.inference.digests import row_digests

FEW_ROWS = 100
SHARED_LIMIT = 0.05


def refuse_not_finite(columns: Columns, source: str) -> None:
    """Stop at the first NaN or infinity among numeric columns.

    Args:
        columns: the feature columns.
        source: the file, for the message.

    Raises:
        UsageError: names the column and the row, counted from 0.
    """
    for name, column in columns.items():
        if column.dtype.kind != "f" or np.isfinite(column).all():
            continue
        row = int(np.argwhere(~np.isfinite(column))[0][0])
        kind = "NaN" if np.isnan(column[row]).any() else "infinity"
        raise UsageError(
            f"{printable(source)}: column {printable(name)!r} holds {kind} in row {row}.",
            hint="Quantization follows the values it sees; remove or fill such rows as production does.",
            column=name,
            row=row,
        )


def few_rows(rows: int) -> str:
    """A warning about too few different rows to calibrate on, or nothing."""
    return (
        ""
        if rows >= FEW_ROWS
        else f"Only {plural(rows, 'different calibration row')}: a few hundred give sound ranges."
    )


@dataclass(frozen=True, slots=True)
class Overlap:
    """`shared` rows to be judged on are calibration rows too; `repeated` is their own share of repeats."""

    shared: int
    rows: int
    repeated: float

    @property
    def share(self) -> float:
        return self.shared / self.rows

    @property
    def too_large(self) -> bool:
        """Whether it is more than the repeats that such data have anyway explain."""
        return self.share > SHARED_LIMIT + self.repeated


def overlap(calibration: Columns, judged: Columns) -> Overlap:
    """Count the rows that two sets have in common, by the columns that both have."""
    names = sorted(set(calibration) & set(judged))
    rows = row_count(judged)
    if not names:
        return Overlap(0, rows, 0.0)
    ours, theirs = (row_digests({name: side[name] for name in names}) for side in (judged, calibration))
    return Overlap(int(np.isin(ours, theirs).sum()), rows, 1 - len(np.unique(ours)) / rows)
