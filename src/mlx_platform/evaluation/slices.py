"""Slices: rows that share the values of one or more columns, measured and judged apart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable
from mlx_platform.evaluation.compare import Comparison
from mlx_platform.evaluation.gates import Gate, Key, cell_text
from mlx_platform.evaluation.judge import Judged, Known
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.resample import Codes
from mlx_platform.evaluation.scored import Scored

MOST_SLICES = 1000
MIN_ROWS = 50
"""Of a slice in a report that no gate asks for."""


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What was found out about one slice.

    Attributes:
        by: the columns that make it.
        key: the columns with the slice's values.
        rows: how many it has; 0 for one that is asked for and has none.
        measurements: of the candidate on its rows, by metric; none for one that is too small for everything.
        judged: the gates' answers about it, in the order of the gates.
        too_small: it has fewer rows than each gate about it, or the report, asks for.
        comparison: with the baseline on its rows.
    """

    by: tuple[str, ...]
    key: Key
    rows: int
    measurements: Mapping[str, Measurement]
    judged: tuple[Judged, ...] = ()
    too_small: bool = False
    comparison: Comparison | None = None

    @property
    def name(self) -> str:
        """`lang=de`, `lang=de, device=phone`."""
        return name_of(self.key)


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice with what gates about it are answered by; `scored` is the candidate on its rows."""

    key: Key
    rows: int
    scored: Scored | None = None
    known: Known | None = None

    @property
    def name(self) -> str:
        return name_of(self.key)

    @property
    def by(self) -> tuple[str, ...]:
        """The columns that make it."""
        return tuple(column for column, _value in self.key)


def name_of(key: Key) -> str:
    """`lang=de, device=phone`, as text that is safe to show."""
    return ", ".join(f"{printable(column, 60)}={printable(value, 60) or '(empty)'}" for column, value in key)


def split(columns: Mapping[str, Array], by: Sequence[str]) -> dict[Key, Codes]:
    """The rows of each slice, by its key; in the order in which slices first appear.

    Args:
        columns: columns [rows] by name.
        by: those whose values make a slice.

    Raises:
        UsageError: a column has cells that are no values, or there are too many slices.
    """
    codes = np.zeros(len(next(iter(columns.values()))), np.int64)
    texts: list[list[str]] = []
    for column in by:
        own, names = _codes(columns[column], column)
        codes = codes * max(len(names), 1) + own
        texts.append(names)
        _met, codes = np.unique(codes, return_inverse=True)  # so that the product stays small
        codes = codes.reshape(-1)
    _met, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    if len(first) > MOST_SLICES:
        raise UsageError(
            f"{printable('+'.join(by), 120)} makes {len(first):,} slices, and at most {MOST_SLICES:,} are "
            "judged.",
            hint="Slice by a column with few values.",
        )
    order = np.argsort(codes.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(codes.reshape(-1), minlength=len(first)))
    groups = np.split(order, ends[:-1]) if len(first) else []
    cells = {column: columns[column] for column in by}
    found = {}
    for group in sorted(groups, key=lambda rows: rows[0]):
        row = int(group[0])
        found[tuple((column, cell_text(_cell(cells[column], row))) for column in by)] = group
    return found


def _cell(column: Array, row: int) -> Any:
    value = column[row]
    return value.item() if isinstance(value, np.generic) else value


def _codes(column: Array, name: str) -> tuple[Codes, list[str]]:
    """A code for every row by the text of its cell, and the texts."""
    if column.ndim != 1:
        raise UsageError(
            f"The column {printable(name)!r} cannot make slices: its cells are no single values."
        )
    known: dict[str, int] = {}
    seen: dict[tuple[type, Any], int] = {}
    codes = np.empty(len(column), np.int64)
    for row, cell in enumerate(column.tolist()):
        if isinstance(cell, list | dict):
            raise UsageError(
                f"Row {row} of the column {printable(name)!r} cannot be in a slice: it is no single value."
            )
        key = (type(cell), cell)
        if key not in seen:
            seen[key] = known.setdefault(cell_text(cell), len(known))
        codes[row] = seen[key]
    return codes, list(known)


def requested(gates: Iterable[Gate], extra: Sequence[tuple[str, ...]] = ()) -> dict[tuple[str, ...], int]:
    """The columns that make slices, each with the fewest rows that some gate or the report asks for."""
    found: dict[tuple[str, ...], int] = dict.fromkeys(extra, MIN_ROWS)
    for gate in gates:
        for by in gate.slices.by if gate.slices else ():
            least = gate.slices.min_rows if gate.slices else MIN_ROWS
            found[by] = min(found.get(by, least), least)
    return found
