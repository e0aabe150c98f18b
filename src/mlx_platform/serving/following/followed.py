"""What a server follows, as it is handed from process to process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlx_platform.core.settings import Settings
from mlx_platform.core.tables import known_keys, read_table


@dataclass(frozen=True, slots=True)
class Followed:
    """An alias of a model, and all settings, those of `serving` as they are in force."""

    name: str
    alias: str
    settings: Settings

    def document(self) -> dict[str, Any]:
        """JSON-ready, for another process."""
        written = asdict(self.settings)
        return {
            "name": self.name,
            "alias": self.alias,
            "folder": str(self.settings.folder),
            "settings": {key: written[key] for key in known_keys(Settings)},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Followed":
        """Read back what `document` wrote."""
        settings = read_table(Settings, document["settings"], source="the supervisor")
        settings = replace(settings, folder=Path(document["folder"]))
        return cls(document["name"], document["alias"], settings)
