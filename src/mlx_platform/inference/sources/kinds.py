"""Which type all cells of a text column have, without holding them."""

from collections.abc import Callable
from functools import cache
from typing import Any

_FIRST, _SLICE = 16, 8192  # cells
_FLOAT = "float"


class ColumnSurvey:
    """Narrows down the type of a CSV column, block by block, the way Arrow infers it from a whole file.

    Times of day stay texts.

    Attributes:
        word: the first cell that is no number, with its row from 0, where there are any numbers before it.
    """

    def __init__(self) -> None:
        self.word: tuple[int, str] | None = None
        self._possible = list(_tests())
        self._seen = False
        self._rows = 0

    def look(self, cells: Any) -> None:
        """Take the next cells [any], an Arrow array of texts, into account."""
        start, self._rows = self._rows, self._rows + len(cells)
        present = _present(cells) if self._possible else []
        if not len(present):
            return
        self._seen = True
        tests = _tests()
        kept: list[str] = []
        for kind in self._possible:
            # What fits the narrower type fits the wider one.
            if any(_is_within(narrow, kind) for narrow in kept) or tests[kind](present):
                kept.append(kind)
        if _FLOAT in self._possible and _FLOAT not in kept:
            self.word = _first_word(cells, start)
        self._possible = kept

    @property
    def kind(self) -> Any:
        """The Arrow type."""
        import pyarrow as pa

        if not self._seen:
            return pa.null()
        return _kinds()[self._possible[0]] if self._possible else pa.string()


@cache
def _kinds() -> dict[str, Any]:
    import pyarrow as pa

    return {
        "int": pa.int64(),
        "bool": pa.bool_(),
        "date": pa.date32(),
        "seconds": pa.timestamp("s"),
        "zoned": pa.timestamp("s", "UTC"),
        "nanoseconds": pa.timestamp("ns"),
        "zoned_nanoseconds": pa.timestamp("ns", "UTC"),
        _FLOAT: pa.float64(),
    }


def _is_within(narrow: str, wide: str) -> bool:
    return (narrow, wide) in {
        ("int", _FLOAT),
        ("date", "seconds"),
        ("date", "nanoseconds"),
        ("seconds", "nanoseconds"),
        ("zoned", "zoned_nanoseconds"),
    }


@cache
def _tests() -> dict[str, Callable[[Any], bool]]:
    tests: dict[str, Callable[[Any], bool]] = {
        name: lambda cells, kind=kind: _casts(cells, kind)  # type: ignore[misc]
        for name, kind in _kinds().items()
    }
    return tests | {"bool": _are_flags}


def _casts(cells: Any, kind: Any) -> bool:
    # A cast that fails does so for every cell, slowly: a few tell already for most columns.
    starts = [0, _FIRST, *range(_FIRST + _SLICE, len(cells), _SLICE)]
    ends = [*starts[1:], len(cells)]
    return all(_slice_casts(cells[start:end], kind) for start, end in zip(starts, ends, strict=True))


def _slice_casts(cells: Any, kind: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        cells.cast(kind)
    except pa.ArrowInvalid:
        try:
            pc.utf8_trim_whitespace(cells).cast(kind)
        except pa.ArrowInvalid:
            return False
    return True


def _are_flags(cells: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    true, _null, false = _spellings()
    return bool(pc.all(pc.is_in(cells, value_set=pa.concat_arrays([true, false]))).as_py())


@cache
def _spellings() -> tuple[Any, Any, Any]:
    """How CSV spells true, null and false."""
    import pyarrow as pa
    from pyarrow import csv

    options = csv.ConvertOptions()
    true, null, false = (
        pa.array(values, pa.string())
        for values in (options.true_values, options.null_values, options.false_values)
    )
    return true, null, false


def _first_word(cells: Any, start: int) -> tuple[int, str] | None:
    missing = set(_spellings()[1].to_pylist())
    for row, cell in enumerate(cells.to_pylist(), start):
        if cell not in missing and not is_number(cell):
            return row, cell
    return None


def is_number(text: str) -> bool:
    """Whether a text is one that a number can be read from."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _present(cells: Any) -> Any:
    import pyarrow.compute as pc

    missing = pc.is_in(cells, value_set=_spellings()[1])
    return cells.filter(pc.invert(missing)) if pc.any(missing).as_py() else cells
