"""How the versions of a model stand with its aliases: the one answer for every command."""

from collections.abc import Mapping
from dataclasses import field

from mlx_platform.core.values import frozen
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.row import Row
from mlx_platform.registry.version import Version, version_of


@frozen
class Standing:
    """Who holds the aliases of a model, and which were rolled back from a version and not regained.

    `doubt` says why nobody can tell, and is empty where somebody can.
    """

    holders: Mapping[str, int] = field(default_factory=dict)
    rolled_back: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    doubt: str = ""

    def version(self, row: Row) -> Version | None:
        """A row as a version, with what it holds and lost; None for what is none."""
        return version_of(row, self.holders, self.rolled_back.get(row.number, ()), self.doubt)


UNASKED = Standing()
"""Of versions whose aliases nobody wants to know."""


def rolled_back(journal: Journal) -> dict[int, tuple[str, ...]]:
    """By version, the aliases that were rolled back from it and that it did not get back since."""
    found: dict[int, tuple[str, ...]] = {}
    for alias in journal.aliases():
        for number in journal.rolled_back(alias):
            found[number] = (*found.get(number, ()), alias)
    return found
