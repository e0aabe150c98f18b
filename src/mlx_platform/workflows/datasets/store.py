"""Labelled rows on disk: one folder for each increment, named by the digest of what it holds.

An increment knows the one before it. It is there whole or not at all, and never changed afterwards.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_RESERVED = ("id", "label", "weight", "mlx.input_hash", "mlx.time", "mlx.version")


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
        packages: their digests.
        strategies: by which they were drawn.
        seeds: of the draws.
        first: the time of the first request.
        last: and of the last.
        fates: what became of the labels that were imported.
        files: the SHA-256 of each file beside it.
    """

    name: str
    digest: str
    parent: str
    created: str
    rows: int
    weight: float
    models: tuple[str, ...]
    packages: tuple[str, ...]
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    first: str
    last: str
    fates: dict[str, Any]
    files: dict[str, str]

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
            UsageError: no name of a dataset.
        """
        name, _, digest = text.partition("@")
        check_name(name)
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
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != increment.files.get(ROWS):
                raise IntegrityError(
                    f"The rows of {increment.ref} are not those that were imported.",
                    hint=f"Put {path} back from a copy, or import the labels into another dataset.",
                )
            table = pq.read_table(pa.BufferReader(content))
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"The rows of {increment.ref} cannot be read.") from error
        return table

    def hashes(self, name: str) -> dict[str, Any]:
        """The label of every row that is there, by the hash of its inputs; the newest wins."""
        found: dict[str, Any] = {}
        for increment in self.chain(name):
            table = self.rows(increment)
            found |= dict(zip(table["mlx.input_hash"].to_pylist(), table["label"].to_pylist(), strict=True))
        return found

    def named(self, text: str) -> Increment | None:
        """The increment that a version says it was trained on; None where it names none that is here."""
        name, _, digest = text.partition("@")
        if len(digest) < _SHORT:
            return None
        try:
            check_name(name)
            chain = self.upto(text)
        except (NotFoundError, UsageError):
            return None  # any text may stand there
        return chain[-1]

    @contextmanager
    def importing(self, name: str) -> Iterator[None]:
        """Keep other imports away, from the look at what is there until the increment is written.

        Raises:
            UsageError: no name for a folder.
            UnavailableError: another import is writing.
        """
        check_name(name)
        lock = self._root / name / ".lock"
        with file_lock(lock, timeout=_LOCK_SECONDS, purpose="importing labels"):
            yield

    def add(self, name: str, rows: Sequence[SampledRow], fates: dict[str, Any]) -> Increment:
        """Keep rows as the next increment; only under `importing`.

        Raises:
            UsageError: rows whose columns have no common type, or have names of the dataset's own.
        """
        chain = self.chain(name)
        parent = chain[-1].digest if chain else ""
        content = _parquet(rows)
        increment = Increment(
            name=name,
            digest=_digest(rows, parent),
            parent=parent,
            created=rfc3339(self._clock()),
            rows=len(rows),
            weight=sum(row.weight for row in rows),
            models=tuple(sorted({f"{row.model}/{row.version}" for row in rows})),
            packages=tuple(sorted({row.digest for row in rows})),
            strategies=tuple(sorted({row.strategy for row in rows})),
            seeds=tuple(sorted({row.seed for row in rows})),
            first=min(row.time for row in rows),
            last=max(row.time for row in rows),
            fates=fates,
            files={ROWS: hashlib.sha256(content).hexdigest()},
        )
        with staged_folder(self._root / name / increment.digest[:_SHORT]) as made:
            (made / ROWS).write_bytes(content)
            (made / ABOUT).write_bytes(orjson.dumps(increment.document(), option=orjson.OPT_INDENT_2))
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
        lists = {name: tuple(known[name]) for name in ("models", "packages", "strategies", "seeds")}
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


def _parquet(rows: Sequence[SampledRow]) -> bytes:
    """The columns of all rows, null where a row has none, and what training needs beside them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row.inputs))
    taken = [name for name in names if name in _RESERVED]
    if taken:
        raise UsageError(
            f"The rows have a column {taken[0]!r}, which a dataset keeps for itself.",
            hint=f"Not to be names of inputs: {', '.join(_RESERVED)}.",
        )
    columns = {name: [row.inputs.get(name) for row in rows] for name in names} | {
        "id": [row.id for row in rows],
        "label": [row.label for row in rows],
        "weight": [row.weight for row in rows],
        "mlx.input_hash": [row.input_hash for row in rows],
        "mlx.time": [row.time for row in rows],
        "mlx.version": [f"{row.model}/{row.version}" for row in rows],
    }
    try:
        table = pa.table({name: pa.array(cells) for name, cells in columns.items()})
    except pa.ArrowException as error:
        raise UsageError(f"The rows have no common columns: {printable(str(error), 200)}.") from error
    content = pa.BufferOutputStream()
    pq.write_table(table, content)
    return bytes(content.getvalue())
