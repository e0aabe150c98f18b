"""What all sources of rows have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import did_you_mean, listed, printable


class Source(ABC):
    """Rows that are read batch by batch, as often as needed.

    Attributes:
        path: the file or folder.
        columns: names in file order.
        rows: how many there are; None where only reading them tells.
        size: bytes.
        position: bytes read in the pass that is under way.
    """

    path: Path
    columns: tuple[str, ...]
    rows: int | None
    size: int
    position: int = 0

    @abstractmethod
    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Array]]:
        """Read from the first row on.

        Args:
            rows: a batch has no more than these; it has fewer where rows are large.
            columns: the ones to read, all when None.

        Raises:
            UsageError: the file is damaged, or changed while it was read.
        """

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The SHA-256 of the bytes, in hex; of names and digests for a folder.

        Raises:
            UsageError: the data changed since they were opened.
        """

    def locate(self, row: int) -> str:
        """Where a row, counted from 0, is to be found: the file and the row or line."""
        return f"{self.path}, row {row:,}"

    def word(self, column: str) -> tuple[int, str] | None:  # noqa: ARG002 - most formats have types of their own
        """The first cell that makes texts of a column of numbers, and its row from 0; None without one."""
        return None

    def require(self, name: str) -> None:
        """Refuse a name that is no column.

        Raises:
            UsageError: the hint names the closest column and lists all.
        """
        if name not in self.columns:
            raise no_column(self.path, name, self.columns)


def no_column(path: Path, name: str, names: Sequence[str]) -> UsageError:
    closest = did_you_mean(name, names)
    hint = closest if closest.startswith("Known") else f"{closest} Columns: {listed(names)}."
    return UsageError(f"{path} has no column {printable(name, 80)!r}.", hint=hint)


def check_names(path: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The names of a file's columns.

    Raises:
        UsageError: there are none, or one is there twice.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"{path} has two columns {printable(name, 80)!r}.")
        seen.add(name)
    if not seen:
        raise UsageError(f"{path} has no columns.")
    return tuple(names)
