"""CSV files, block by block, with the column types that the whole file agrees with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import first_line, printable
from mlx_platform.inference.sources.arrays import columns_of
from mlx_platform.inference.sources.file import Advance, DataFile, Utf8File, reading
from mlx_platform.inference.sources.kinds import ColumnSurvey
from mlx_platform.inference.sources.source import Source, check_names

_BLOCK = 4 << 20
_LARGE_BLOCK = 64 << 20
_STRADDLES = "straddling object"


class CsvSource(Source):
    """See `Source`."""

    def __init__(self, path: Path, advance: Advance | None = None) -> None:
        self.path = path
        self._file = DataFile(path)
        self.size = self._file.size
        self._block = _BLOCK
        surveys = self._survey(advance)
        self.columns = tuple(surveys)
        self._kinds = {name: survey.kind for name, survey in surveys.items()}
        self._words = {name: survey.word for name, survey in surveys.items()}
        if not self.rows:
            raise UndecidedError(f"{path} has columns, but no rows.")

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Array]]:
        names = self.columns if columns is None else tuple(columns)
        with self._open(self._kinds, names) as (text, reader):
            for batch in reader:
                for start in range(0, batch.num_rows, rows):
                    yield columns_of(batch.slice(start, rows))
            if text.sha256.hexdigest() != self._fingerprint:
                raise self._file.changed()
        self._file.check()

    @property
    def fingerprint(self) -> str:
        self._file.check()
        return self._fingerprint

    def word(self, column: str) -> tuple[int, str] | None:
        return self._words.get(column)

    def locate(self, row: int) -> str:
        line = self._line_of(row)
        return f"{self.path}, line {line:,}" if line else super().locate(row)

    def _survey(self, advance: Advance | None) -> dict[str, ColumnSurvey]:
        try:
            return self._survey_blocks(advance)
        except UsageError as error:
            if _STRADDLES not in error.message or self._block == _LARGE_BLOCK:
                raise
            self._block = _LARGE_BLOCK
        try:
            return self._survey_blocks(None)
        except UsageError as error:
            if _STRADDLES not in error.message:
                raise
            raise UsageError(
                f"{self.path}: a row is longer than {_LARGE_BLOCK / 1e6:.0f} MB.",
                hint="A quotation mark that is never closed takes in everything behind it.",
            ) from error

    def _survey_blocks(self, advance: Advance | None) -> dict[str, ColumnSurvey]:
        import pyarrow as pa

        names = check_names(self.path, self._header())
        rows = 0
        last = ""
        surveys = {name: ColumnSurvey() for name in names}
        with self._open(dict.fromkeys(names, pa.string()), names, advance) as (text, reader):
            for batch in reader:
                rows += batch.num_rows
                last = batch.column(len(names) - 1)[-1].as_py() if batch.num_rows else last
                for index, survey in enumerate(surveys.values()):
                    survey.look(batch.column(index))
        if "\n" in last and text.last != b'"':
            # The parser takes the end of the file for the end of the text.
            raise UsageError(
                f"{self.path}: a quotation mark that is never closed takes in everything behind it, "
                f"from line {self._line_of(rows - 2) + 1:,} on.",
                hint='Write a quotation mark within a text twice: "".',
            )
        self._fingerprint = text.sha256.hexdigest()
        self._file.check()
        self.rows = rows
        return surveys

    def _header(self) -> list[str]:
        with self._open({}, None) as (_text, reader):
            names: list[str] = reader.schema.names
        if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
            raise UsageError(
                f"{self.path} has the single column {printable(names[0], 80)!r}: its values are not "
                "separated by commas.",
                hint="Write it again with commas, or as Parquet.",
            )
        return names

    @contextmanager
    def _open(
        self, kinds: dict[str, Any], names: Sequence[str] | None, advance: Advance | None = None
    ) -> Iterator[tuple[Utf8File, Any]]:
        import pyarrow as pa
        from pyarrow import csv

        text = Utf8File(self._file, advance)
        with reading(self.path):
            try:
                reader = csv.open_csv(
                    text,
                    # Only a reader that goes one by one can say in which row something is wrong.
                    read_options=csv.ReadOptions(block_size=self._block, use_threads=False),
                    parse_options=csv.ParseOptions(newlines_in_values=True),
                    convert_options=csv.ConvertOptions(
                        column_types=kinds, include_columns=None if names is None else list(names)
                    ),
                )
                with reader:
                    yield text, reader
            except pa.ArrowInvalid as error:
                self._file.check()
                raise self._broken(error) from error
            finally:
                text.close()

    def _broken(self, error: Exception) -> UsageError:
        message = first_line(error).removeprefix("CSV parse error: ")
        _, found, rest = message.partition("Row #")
        number, _, problem = rest.partition(": ")
        if found and number.isdecimal():
            # The parser counts rows, and the header is its first.
            line = self._line_of(int(number) - 2) or int(number)
            return UsageError(f"{self.path}, line {line:,}: {problem}.", line=line)
        return UsageError(f"{self.path} cannot be read: {message}.")

    def _line_of(self, row: int) -> int:
        """The line in which a row ends, from 1; 0 when it cannot be told."""
        import csv

        try:
            with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
                lines = csv.reader(file)
                number = -2
                for cells in lines:
                    number += bool(cells)
                    if number == row:
                        return lines.line_num
        except (OSError, csv.Error):
            return 0
        return 0
