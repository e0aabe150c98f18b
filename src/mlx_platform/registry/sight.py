"""What a server that follows a model looks at, again and again: cheap while nothing happens."""

from collections.abc import Mapping

from mlx_platform.core.values import frozen
from mlx_platform.registry.journal import Journal


@frozen
class Glance:
    """A registry's own word about a model: its aliases, its tags, and the end of its journal.

    `end` is the number of the newest row of the journal, 0 where there is none.
    """

    aliases: Mapping[str, int]
    tags: Mapping[str, str]
    end: int


@frozen
class Sight:
    """A model at a moment: who holds which alias, its tags, and its journal."""

    name: str
    holders: Mapping[str, int]
    tags: Mapping[str, str]
    journal: Journal

    @property
    def journal_end(self) -> int:
        """The number of the journal's newest row; while it stays the same, nothing moved."""
        return self.journal.end.number if self.journal.end else 0

    @property
    def head(self) -> int:
        """The number of the last event that counts, 0 for none: what the next transition comes after."""
        return self.journal.head.number if self.journal.head else 0
