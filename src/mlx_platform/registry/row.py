"""A model version as a registry stores it, before anybody has looked what it means."""

from collections.abc import Mapping
from datetime import UTC, datetime

from mlx_platform.core.values import frozen


@frozen
class Row:
    """A model version as the registry stores it: every text in it is untrusted."""

    name: str
    number: int
    created_ms: int
    source: str
    run_id: str
    description: str
    tags: Mapping[str, str]
    stage: str = ""
    """What MLflow had before it had aliases: `Staging`, `Production`, `Archived`, `None`."""


def created_at(row: Row) -> datetime | None:
    """When a row was made; None when what it says is no time."""
    try:
        return datetime.fromtimestamp(row.created_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
