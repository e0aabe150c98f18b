"""What is left of a deleted version: who deleted it, when and why, so that its number never just ends.

It is a tag of the model, because those of the version go with it.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen

_PREFIX = "mlx.deleted."


@frozen
class Tombstone:
    """What is left of a deleted version; every text in it is untrusted."""

    number: int
    label: str
    digest: str
    source: str
    actor: str
    reason: str
    time: str

    def document(self) -> dict[str, Any]:
        return {
            "version": self.number,
            "label": self.label,
            "digest": self.digest,
            "source": self.source,
            "actor": self.actor,
            "reason": self.reason,
            "time": self.time,
        }

    def as_tags(self) -> dict[str, str]:
        """The tag of the model that keeps it."""
        return {f"{_PREFIX}{self.number}": json.dumps(self.document(), sort_keys=True)}

    def sentence(self, name: str) -> str:
        """Who deleted it, when and why."""
        why = f": {printable(self.reason, 200)}" if self.reason else ""
        who = f"{printable(self.actor, 80)} on {printable(self.time, 40)}"
        return f"{name}/{self.number} was deleted by {who}{why.rstrip('.')}."


def tombstones(tags: Mapping[str, str]) -> dict[int, Tombstone]:
    """The deleted versions of a model, from the model's tags."""
    found = {}
    for key, text in tags.items():
        number = key.removeprefix(_PREFIX)
        if key.startswith(_PREFIX) and number.isascii() and number.isdigit() and len(number) < 10:
            content = _object(text)
            known = {entry.name: str(content.get(entry.name, "")) for entry in fields(Tombstone)}
            found[int(number)] = Tombstone(**known | {"number": int(number)})  # type: ignore[arg-type]
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
