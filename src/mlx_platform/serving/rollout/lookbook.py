"""The looks of a rollout, line by line in a file beside its server: what a report draws its curves from."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.settings import Settings

KEPT = 500
"""Looks that are kept of a rollout, the newest ones; up to twice as many lie in the file."""
_logger = logging.getLogger(__name__)


def looks_folder(settings: Settings) -> Path:
    """Where servers keep looks: in the cache, so that a report finds them whatever flags they were given."""
    return settings.path(settings.cache.dir) / "rollouts"


class Lookbook:
    """Writes looks to `FOLDER/ID.jsonl`. What cannot be written is said once and left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, int] = {}
        self._silent = False

    def add(self, rollout: str, look: Mapping[str, Any]) -> None:
        """Append a look, which must be JSON-ready."""
        path = self._folder / f"{rollout}.jsonl"
        try:
            lines = self._lines.get(rollout)
            if lines is None:
                lines = len(path.read_bytes().splitlines()) if path.exists() else 0
            if lines >= 2 * KEPT:
                kept = path.read_bytes().splitlines(keepends=True)[-KEPT:]
                write_atomic(path, b"".join(kept), mode=0o600)
                lines = len(kept)
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(orjson.dumps(look, option=orjson.OPT_APPEND_NEWLINE))
            self._lines[rollout] = lines + 1
        except (OSError, UsageError) as error:
            if not self._silent:
                _logger.warning("The looks of rollouts cannot be kept in %s: %s", self._folder, error)
            self._silent = True


def read_looks(folder: Path, rollout: str) -> tuple[dict[str, Any], ...]:
    """The looks that are kept of a rollout, oldest first; lines that cannot be read are left out."""
    found = []
    try:
        lines = (folder / f"{rollout}.jsonl").read_bytes().splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue  # the last one, if its writer died
    return tuple(look for look in found if isinstance(look, dict))
