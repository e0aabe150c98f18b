"""What a reference meant when the registry could last be asked."""

import hashlib
import json
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.settings import Settings
from mlx_platform.core.text import printable
from mlx_platform.registry.cache import FALLBACK, PackageCache
from mlx_platform.registry.ref import is_name
from mlx_platform.registry.version import DIGEST_PATTERN, UNKNOWN_TIME, Version

if TYPE_CHECKING:
    from mlx_platform.inference.package import Package


class LastKnown:
    """Notes beside the packages of this machine.

    Args:
        settings: where the cache is.
        shown: the registry, safe to print.
    """

    def __init__(self, settings: Settings, shown: str) -> None:
        self._cache = PackageCache(settings.path(settings.cache.dir), settings.folder / FALLBACK)
        self._shown = shown

    def keep(self, reference: str, name: str, number: int, digest: str, size: int, now: datetime) -> None:
        """Note which version a reference means, where anything can be written."""
        note = {"name": name, "number": number, "digest": digest, "size": size, "time": rfc3339(now)}
        with suppress(UnavailableError):  # whoever may not write here has no need of what is written
            self._cache.keep(self._key(reference), note)

    def recall(self, reference: str) -> "tuple[Version, Package, str] | None":
        """The version, its package and since when that is known; None unless all of it is here and sound."""
        note = self._cache.recall(self._key(reference)) or {}
        name, number, digest, time = (note.get(key) for key in ("name", "number", "digest", "time"))
        if not (isinstance(name, str) and is_name(name) and type(number) is int and isinstance(time, str)):
            return None
        if not (isinstance(digest, str) and DIGEST_PATTERN.fullmatch(digest)):
            return None
        package = self._cache.find(digest)
        if package is None:
            return None
        return _version(name, number, digest, package.size), package, printable(time, 40)

    def _key(self, reference: str) -> str:
        return hashlib.sha256(json.dumps(["last known", self._shown, reference]).encode()).hexdigest()


def _version(name: str, number: int, digest: str, size: int) -> Version:
    """A version of which nothing but its bytes is known."""
    known: dict[str, Any] = {"name": name, "number": number, "digest": digest, "size": size}
    empty: dict[Any, Any] = {str: "", bool: False, datetime: UNKNOWN_TIME, int: 0, tuple[str, ...]: ()}
    return Version(
        **{entry.name: known.get(entry.name, empty.get(entry.type, {})) for entry in fields(Version)}
    )
