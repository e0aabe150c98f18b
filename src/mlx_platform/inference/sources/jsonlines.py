"""JSON Lines, block by block, with the column types that the whole file agrees with."""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import first_line, printable
from mlx_platform.inference.sources.arrays import columns_of
from mlx_platform.inference.sources.file import Advance, DataFile, Utf8File
from mlx_platform.inference.sources.source import Source, check_names

_BLOCK = 4 << 20
_LONGEST = 64 << 20
_DEEPEST = 100  # brackets within each other; the parser has no limit of its own but the stack's
_BOM = b"\xef\xbb\xbf"
_ROW = re.compile(r" in row (\d+)$")


class JsonLinesSource(Source):
    """See `Source`. One object per line; a column that a line does not name has no value there."""

    def __init__(self, path: Path, advance: Advance | None = None) -> None:
        self.path = path
        self._file = DataFile(path)
        self.size = self._file.size
        self._schema = self._survey(advance)
        if not self.rows:
            raise UndecidedError(f"{path} has no rows.")
        self.columns = check_names(path, self._schema.names)

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Array]]:
        import pyarrow as pa

        names = self.columns if columns is None else tuple(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        text = Utf8File(self._file)
        for first, block in self._blocks(text):
            table = self._parse(block, first, schema).select(list(names))
            for batch in table.combine_chunks().to_batches(max_chunksize=rows):
                yield columns_of(batch)
        if text.sha256.hexdigest() != self._fingerprint:
            raise self._file.changed()
        self._file.check()

    @property
    def fingerprint(self) -> str:
        self._file.check()
        return self._fingerprint

    def locate(self, row: int) -> str:
        number = -1
        try:
            with self.path.open("rb") as file:
                for line, content in enumerate(file, 1):
                    number += bool(content.strip())
                    if number == row:
                        return f"{self.path}, line {line:,}"
        except OSError:
            pass
        return super().locate(row)

    def _survey(self, advance: Advance | None) -> Any:
        import pyarrow as pa

        schema = pa.schema([])
        self.rows = 0
        text = Utf8File(self._file, advance)
        for first, block in self._blocks(text):
            table = self._parse(block, first, None)
            self.rows += table.num_rows
            schema = self._merged(schema, table.schema, first)
        self._fingerprint = text.sha256.hexdigest()
        self._file.check()
        return schema

    def _blocks(self, text: Utf8File) -> Iterator[tuple[int, bytes]]:
        """Whole lines, each block with the number of its first line."""
        held, line = b"", 1
        try:
            while chunk := text.read(_BLOCK):
                if text.offset == len(chunk):
                    chunk = chunk.removeprefix(_BOM)
                end = chunk.rfind(b"\n") + 1
                if end:
                    block = held + chunk[:end]
                    yield line, block
                    line += block.count(b"\n")
                    held = chunk[end:]
                else:
                    held += chunk
                if len(held) > _LONGEST:
                    raise UsageError(
                        f"{self.path}, line {line:,} is longer than {_LONGEST / 1e6:.0f} MB.",
                        hint="Write one object per line, and large contents as files of their own.",
                    )
            if held:
                yield line, held
        finally:
            text.close()

    def _parse(self, block: bytes, first: int, schema: Any) -> Any:
        import pyarrow as pa
        from pyarrow import json

        rows = self._check_lines(block, first)
        if not rows:
            return pa.table({}) if schema is None else schema.empty_table()
        options = json.ParseOptions()
        if schema is not None:
            options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        try:
            table = json.read_json(
                io.BytesIO(block),
                read_options=json.ReadOptions(block_size=len(block) + 1, use_threads=False),
                parse_options=options,
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise self._broken(block, first, first_line(error)) from error
        if table.num_rows != rows:
            raise self._broken(block, first, "a line holds more than one object")
        return table

    def _check_lines(self, block: bytes, first: int) -> int:
        """How many lines hold something, each of which must look like an object."""
        rows = 0
        for number, line in enumerate(block.split(b"\n"), first):
            start = line.lstrip()[:1]
            rows += bool(start)
            if start not in (b"", b"{"):
                # The parser ends the process over some lines that are valid JSON, but no objects.
                raise UsageError(
                    f"{self.path}: line {number:,} is no JSON object.", hint="Write one object per line."
                )
            if line.count(b"[") + line.count(b"{") > _DEEPEST and _depth(line) > _DEEPEST:
                raise UsageError(f"{self.path}: line {number:,} is nested more than {_DEEPEST} levels deep.")
        return rows

    def _broken(self, block: bytes, first: int, message: str) -> UsageError:
        import orjson

        message = message.removeprefix("JSON parse error: ")
        lines = [(number, line) for number, line in enumerate(block.split(b"\n"), first) if line.strip()]
        for number, line in lines:
            try:
                orjson.loads(line)
            except orjson.JSONDecodeError as error:
                return UsageError(
                    f"{self.path}: line {number:,} is no JSON: {first_line(error)}.", line=number
                )
        if match := _ROW.search(message):
            number = lines[min(int(match[1]), len(lines) - 1)][0]
            problem = message[: match.start()]
            return UsageError(f"{self.path}: line {number:,}: {problem}.", line=number)
        where = f"lines {first:,} to {lines[-1][0]:,}" if lines else f"line {first:,}"
        return UsageError(f"{self.path}: {where}: {message}.", line=first)

    def _merged(self, known: Any, found: Any, first: int) -> Any:
        """The columns of both, each with a type that takes the cells of both."""
        import pyarrow as pa

        fields = {field.name: field.type for field in known}
        for field in found:
            before = fields.get(field.name, pa.null())
            merged = _wider(before, field.type)
            if merged is None:
                raise UsageError(
                    f"{self.path}: the column {printable(field.name, 80)!r} holds {before} at first, and "
                    f"{field.type} from about line {first:,} on.",
                    hint="Write all values of a column alike.",
                    line=first,
                )
            fields[field.name] = merged
        return pa.schema(list(fields.items()))


def _depth(line: bytes) -> int:
    """How deeply brackets are nested, at most; brackets within texts do not count."""
    bare = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", line)
    depth = deepest = 0
    for byte in re.findall(rb"[\[\]{}]", bare):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _wider(one: Any, other: Any) -> Any:
    """The Arrow type that takes the cells of both, as the parser would choose it; None if there is none."""
    import pyarrow as pa

    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    # The parser takes texts that look like moments for such.
    if all(pa.types.is_timestamp(kind) or pa.types.is_string(kind) for kind in (one, other)):
        return pa.string()
    return _wider_nested(one, other)


def _wider_nested(one: Any, other: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _wider(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _wider_struct(one, other)
    return None


def _wider_struct(one: Any, other: Any) -> Any:
    import pyarrow as pa

    kinds: dict[str, Any] = {}
    for field in (*one, *other):
        kinds[field.name] = _wider(kinds.get(field.name, pa.null()), field.type)
        if kinds[field.name] is None:
            return None
    return pa.struct(list(kinds.items()))
