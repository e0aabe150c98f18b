"""Labelled rows on disk: one folder for each increment, named by the digest of what it holds.

An increment knows the one before it. It is there whole or not at all, and never changed afterwards.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.files import file_lock, staged_folder
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.evaluation.sample_format import SampledRow
from mlx_platform.workflows.context import Context

SCHEMA = "mlx.increment/v1"
ROWS = "rows.parquet"
ABOUT = "increment.json"
_SHORT = 16  # hex digits of a digest that name a folder
_LOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Increment:
    """Labelled rows that were imported together.

    Attributes:
        name: of the dataset.
        digest: of its rows and its parent.
        parent: the digest of the increment before, "" for the first.
        created: RFC 3339.
        rows: how many.
        weight: the requests that they stand for.
        models: the versions that had answered them, `NAME/NUMBER`.
        strategies: by which they were drawn.
        first: the time of the first request.
        last: and of the last.
        fates: what became of the labels that were imported.
    """

    name: str
    digest: str
    parent: str
    created: str
    rows: int
    weight: float
    models: tuple[str, ...]
    strategies: tuple[str, ...]
    first: str
    last: str
    fates: dict[str, Any]

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.digest[:_SHORT]}"

    def document(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "ref": self.ref, **asdict(self)}


class Datasets:
    """The datasets of a project.

    Args:
        context: the command's context; `[dataset] dir` says where they are.
    """

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._root = context.settings.path(context.settings.dataset.dir)

    def names(self) -> list[str]:
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if path.is_dir() and self.chain(path.name))

    def chain(self, name: str) -> tuple[Increment, ...]:
        """The increments of a dataset, each after its parent.

        Raises:
            IntegrityError: one is missing in between, or cannot be read.
        """
        folder = self._root / name
        if not folder.is_dir():
            return ()
        found = {each.parent: each for each in self._increments(folder)}
        chain: list[Increment] = []
        while (following := found.pop(chain[-1].digest if chain else "", None)) is not None:
            chain.append(following)
        if found:
            lost = next(iter(found.values()))
            raise IntegrityError(
                f"{lost.ref} follows an increment that is not there: {lost.parent[:_SHORT]}."
            )
        return tuple(chain)

    def upto(self, text: str) -> tuple[Increment, ...]:
        """The increments up to one, `NAME@DIGEST`, or all of `NAME`.

        Raises:
            NotFoundError: there is no such dataset or increment.
        """
        name, _, digest = text.partition("@")
        chain = self.chain(name)
        if not chain:
            raise NotFoundError(
                f"There is no dataset {printable(name, 80)!r}.", hint=did_you_mean(name, self.names())
            )
        if not digest:
            return chain
        places = [place for place, each in enumerate(chain) if each.digest.startswith(digest)]
        if len(places) != 1:
            raise NotFoundError(
                f"{printable(name, 80)} has no increment {printable(digest, 80)!r}.",
                hint=f"See: mlx dataset show {printable(name, 80)}",
            )
        return chain[: places[0] + 1]

    def rows(self, increment: Increment) -> Any:
        """The rows of an increment as an Arrow table.

        Raises:
            IntegrityError: they are not those that it was made of.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._root / increment.name / increment.digest[:_SHORT] / ROWS
        try:
            table = pq.read_table(path, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"The rows of {increment.ref} cannot be read.") from error
        if table.num_rows != increment.rows:
            raise IntegrityError(f"{increment.ref} holds {table.num_rows:,} rows, not {increment.rows:,}.")
        return table

    def hashes(self, name: str) -> dict[str, Any]:
        """The label of every row that is there, by the hash of its inputs; the newest wins."""
        found: dict[str, Any] = {}
        for increment in self.chain(name):
            table = self.rows(increment)
            found |= dict(zip(table["mlx.input_hash"].to_pylist(), table["label"].to_pylist(), strict=True))
        return found

    def add(self, name: str, rows: Sequence[SampledRow], fates: dict[str, Any]) -> Increment:
        """Keep rows as the next increment.

        Raises:
            UsageError: no name for a folder, or rows whose columns have no common type.
            UnavailableError: another import is writing.
        """
        check_name(name)
        folder = self._root / name
        with file_lock(folder / ".lock", timeout=_LOCK_SECONDS, purpose="importing labels"):
            chain = self.chain(name)
            parent = chain[-1].digest if chain else ""
            increment = Increment(
                name=name,
                digest=_digest(rows, parent),
                parent=parent,
                created=rfc3339(self._clock()),
                rows=len(rows),
                weight=sum(row.weight for row in rows),
                models=tuple(sorted({f"{row.model}/{row.version}" for row in rows})),
                strategies=tuple(sorted({row.strategy for row in rows})),
                first=min(row.time for row in rows),
                last=max(row.time for row in rows),
                fates=fates,
            )
            _write(folder, increment, rows)
        return increment

    def _increments(self, folder: Path) -> Iterator[Increment]:
        for path in sorted(folder.glob(f"*/{ABOUT}")):
            if path.parent.name.startswith("."):
                continue
            yield _read(path)


def _read(path: Path) -> Increment:
    try:
        document = orjson.loads(path.read_bytes())
        known = {entry.name: document[entry.name] for entry in fields(Increment)}
        if document["schema"] != SCHEMA:
            raise IntegrityError(f"{path} is of the schema {printable(str(document['schema']), 80)!r}.")
        lists = {name: tuple(known[name]) for name in ("models", "strategies")}
        return Increment(**{**known, **lists})
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path} is no increment.") from error


def check_name(name: str) -> None:
    """Refuse what is no name of a dataset.

    Raises:
        UsageError: it has other characters than letters, digits, `.`, `_` and `-`.
    """
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not name or not plain.isalnum() or not name.isascii() or not name[0].isalnum() or len(name) > 128:
        raise UsageError(
            f"{printable(name, 80)!r} is no name of a dataset.", hint="Use letters, digits, '.', '_' and '-'."
        )


def _digest(rows: Sequence[SampledRow], parent: str) -> str:
    """Of what rows hold and say, in one order, and of the increment before."""
    digest = hashlib.sha256(f"{SCHEMA} {parent}\\n".encode())
    for row in sorted(rows, key=lambda each: each.input_hash):
        content = {"inputs": row.inputs, "label": row.label, "weight": row.weight, "hash": row.input_hash}
        digest.update(orjson.dumps(content, option=orjson.OPT_SORT_KEYS) + b"\\n")
    return digest.hexdigest()


def _write(folder: Path, increment: Increment, rows: Sequence[SampledRow]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = [
        {
            **row.inputs,
            "id": row.id,
            "label": row.label,
            "weight": row.weight,
            "mlx.input_hash": row.input_hash,
            "mlx.time": row.time,
            "mlx.version": f"{row.model}/{row.version}",
        }
        for row in rows
    ]
    try:
        table = pa.Table.from_pylist(cells)
    except pa.ArrowException as error:
        raise UsageError(f"The rows have no common columns: {printable(str(error), 200)}.") from error
    with staged_folder(folder / increment.digest[:_SHORT]) as made:
        pq.write_table(table, made / ROWS, write_page_checksum=True)
        (made / ABOUT).write_bytes(orjson.dumps(increment.document(), option=orjson.OPT_INDENT_2))
