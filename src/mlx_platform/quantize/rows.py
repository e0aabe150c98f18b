"""Whether calibration rows are fit for their purpose: complete, enough, and none of the rows that judge."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Columns, row_count
from mlx_platform.core.text import plural, printable

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
    """A warning about too few rows to calibrate on, or nothing."""
    return (
        ""
        if rows >= FEW_ROWS
        else f"Only {plural(rows, 'calibration row')}: a few hundred give sound ranges."
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
    keys = row_keys(judged, names)
    known = set(row_keys(calibration, names))
    return Overlap(sum(key in known for key in keys), rows, 1 - len(set(keys)) / rows)


def row_keys(columns: Columns, names: Sequence[str]) -> list[bytes]:
    """A 16-byte digest of every row; numbers count by their value in single precision, whatever their type.

    Models take single precision, so a CSV file and a Parquet file of the same rows must look the same.
    """
    numeric = [name for name in names if columns[name].dtype.kind in "biuf"]
    rows = len(columns[names[0]])
    parts = [columns[name].reshape(rows, -1).astype(np.float32) for name in numeric]
    # Adding zero turns -0.0 into 0.0.
    table = np.ascontiguousarray(np.concatenate(parts, axis=1) + 0.0) if parts else np.empty((rows, 0))
    others = [[_cell(cell) for cell in columns[name].tolist()] for name in names if name not in numeric]
    return [
        hashlib.blake2b(b"".join([table[row].tobytes(), *cells]), digest_size=16).digest()
        for row, cells in enumerate(zip(*others, strict=True) if others else [()] * rows)
    ]


def _cell(cell: object) -> bytes:
    if isinstance(cell, np.ndarray):
        content = str(cell.shape).encode() + cell.tobytes()
    elif isinstance(cell, bytes):
        content = cell
    else:
        content = repr(cell).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()
