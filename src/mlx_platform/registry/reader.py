"""What the catalog asks of a registry when it reads: a SQLite file, a server, or MLflow's client answers."""

from collections.abc import Sequence
from typing import Protocol

from mlx_platform.registry.row import Row
from mlx_platform.registry.sight import Glance

_RECENT = 100  # versions among which one is looked for that may just have been made


def name_filter(name: str) -> str:
    """MLflow's condition for a name; plain MLflow gives models names with a quote, too."""
    return f'name = "{name}"' if "'" in name else f"name = '{name}'"


class Reader(Protocol):
    """Everything returned is what the registry holds: untrusted text."""

    def names(self) -> tuple[str, ...]:
        """Every registered model, also those of the journal."""
        ...

    def count(self, name: str) -> int:
        """How many versions a model has; 0 when there is no such model."""
        ...

    def rows(
        self,
        name: str,
        *,
        numbers: Sequence[int] | None = None,
        limit: int | None = None,
        keys: Sequence[str] | None = None,
    ) -> tuple[Row, ...]:
        """A model's versions, newest first: all, the given ones, or the last `limit`.

        With `keys` only these tags are wanted; more may come.
        """
        ...

    def tagged(self, name: str, key: str, value: str) -> tuple[int, ...]:
        """The versions of a model that have a tag of exactly this value, newest first."""
        ...

    def aliases(self, name: str) -> dict[str, int]:
        """The holders of a model's aliases as MLflow has them."""
        ...

    def model_tags(self, name: str) -> dict[str, str]:
        """The tags of a registered model; {} when it has none or is not there."""
        ...

    def glance(self, name: str, journal: str) -> Glance:
        """The aliases and tags of a model, and the newest row of its journal; empty for what is not there."""
        ...

    def location(self, name: str, number: int) -> str:
        """Where the bytes of a version are said to be; empty when there is no such version."""
        ...


def number_of(reader: Reader, name: str, source: str) -> int | None:
    """The newest version of a model that was made from a source just now; None when there is none."""
    found = reader.rows(name, limit=_RECENT, keys=())
    return next((row.number for row in found if row.source == source), None)
