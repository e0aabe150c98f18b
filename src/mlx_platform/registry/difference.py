"""Where MLflow's aliases are not what the journal says: somebody moved one outside of mlx."""

from collections.abc import Mapping
from typing import Any

from mlx_platform.core.values import frozen
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.ref import is_alias


@frozen
class Difference:
    """One alias: who holds it by the journal and by MLflow; None is nobody.

    `seen` is false for an alias that the journal knows nothing of. MLflow's word counts for such a one.
    """

    alias: str
    journal: int | None
    mlflow: int | None
    seen: bool

    def sentence(self, name: str) -> str:
        """What happened, and the command that deals with it."""
        if not self.seen:
            return (
                f"{name}@{self.alias} was set to {self.mlflow} outside of mlx; its journal does not know who "
                f"did it. Take it over with: mlx doctor registry {name} --adopt {name}@{self.alias}"
            )
        return (
            f"MLflow says that {name}@{self.alias} is {self.mlflow or 'nobody'}, the journal says "
            f"{self.journal or 'nobody'}; the journal counts. Somebody changed one of them outside of mlx. "
            f"See: mlx doctor registry {name}"
        )

    def document(self) -> dict[str, Any]:
        """Everything about it, JSON-ready."""
        return {"alias": self.alias, "journal": self.journal, "mlflow": self.mlflow, "seen": self.seen}


def compare(journal: Journal, aliases: Mapping[str, int]) -> tuple[Difference, ...]:
    """Hold MLflow's aliases against a journal, by name; words that no alias of ours may be are left out."""
    seen = set(journal.aliases())
    found = []
    for alias in sorted(seen | {alias for alias in aliases if is_alias(alias)}):
        held, said = journal.holder(alias), aliases.get(alias)
        if held != said:
            found.append(Difference(alias, held, said, alias in seen))
    return tuple(found)
