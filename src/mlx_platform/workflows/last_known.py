"""What a reference meant when the registry could last be asked, for servers that must start without it."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.text import printable
from mlx_platform.registry.ref import PathRef, is_name, parse_ref
from mlx_platform.registry.version import DIGEST_PATTERN, UNKNOWN_TIME, Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject, alias_warnings, open_subject

if TYPE_CHECKING:
    from mlx_platform.registry.cache import PackageCache


@contextmanager
def open_last_known(context: Context, text: str) -> Iterator[tuple[Subject, tuple[str, ...]]]:
    """Resolve a reference like `open_subject`, or recall what it meant when the registry is away.

    Yields:
        The subject, and what to say of it.

    Raises:
        MlxError: see `open_subject`; UnavailableError only where nothing is known, or its bytes are not here.
    """
    with ExitStack() as stack:
        try:
            subject = stack.enter_context(open_subject(context, text))
            warnings = (*alias_warnings(context, text), *subject.warnings)
        except UnavailableError as error:
            recalled = _recall(context, text)
            if recalled is None:
                raise
            subject, since = recalled
            problem = f"The registry cannot be asked ({error.message.rstrip('.')})"
            warnings = (f"{problem}: {printable(text, 200)} is {subject.ref}, as it was at {since}.",)
        else:
            _remember(context, text, subject)
        yield subject, warnings


def _remember(context: Context, text: str, subject: Subject) -> None:
    if isinstance(parse_ref(text), PathRef) or not subject.sealed or subject.version is None:
        return
    version = subject.version
    note = {"name": version.name, "number": version.number, "digest": version.digest, "size": version.size}
    note["time"] = rfc3339(context.clock())
    with suppress(UnavailableError):  # whoever may not write here has no need of what is written
        _cache(context).keep(_key(context, text), note)


def _recall(context: Context, text: str) -> tuple[Subject, str] | None:
    """What was kept, when it is whole and its package is in the cache."""
    cache = _cache(context)
    note = cache.recall(_key(context, text)) or {}
    name, number, digest, time = (note.get(key) for key in ("name", "number", "digest", "time"))
    if not (isinstance(name, str) and is_name(name) and type(number) is int and isinstance(time, str)):
        return None
    if not (isinstance(digest, str) and DIGEST_PATTERN.fullmatch(digest)):
        return None
    package = cache.find(digest)
    if package is None:
        return None
    return Subject(name, _version(name, number, digest, package.size), package, text), printable(time, 40)


def _version(name: str, number: int, digest: str, size: int) -> Version:
    """A version of which nothing but its bytes is known."""
    known: dict[str, Any] = {"name": name, "number": number, "digest": digest, "size": size}
    empty: dict[Any, Any] = {str: "", bool: False, datetime: UNKNOWN_TIME, int: 0, tuple[str, ...]: ()}
    return Version(
        **{entry.name: known.get(entry.name, empty.get(entry.type, {})) for entry in fields(Version)}
    )


def _key(context: Context, text: str) -> str:
    registry = context.catalog.shown
    return hashlib.sha256(json.dumps(["last known", registry, text]).encode()).hexdigest()


def _cache(context: Context) -> "PackageCache":
    from mlx_platform.registry.cache import FALLBACK, PackageCache

    settings = context.settings
    return PackageCache(settings.path(settings.cache.dir), settings.folder / FALLBACK)
