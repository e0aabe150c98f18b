"""A model as the registry has it, whether or not that makes sense."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlx_platform.registry.journal import Journal
from mlx_platform.registry.version import Version


@dataclass(frozen=True, slots=True)
class Examined:
    """A model as it was found: its journal, sound or not, MLflow's aliases, every version, and its tags."""

    name: str
    journal: Journal
    aliases: Mapping[str, int]
    versions: tuple[Version, ...]
    tags: Mapping[str, str] = field(default_factory=dict)

    def version(self, number: int | None) -> Version | None:
        return next((version for version in self.versions if version.number == number), None)

    @property
    def ours(self) -> bool:
        """Whether mlx ever wrote about the model; one of plain MLflow is nobody's concern but its owner's."""
        return bool(self.journal.end) or any(one.sealed or one.stripped for one in self.versions)
