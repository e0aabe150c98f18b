"""Choosing among many versions: what is asked about is read for all of them, the rest only of those chosen.

With ten thousand versions most of the time goes into their tags; a condition needs one or two of a dozen.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain

from mlx_platform.core.values import frozen
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.fields import Field, Known, of_aliases, sort_versions, suggestion, tags_of
from mlx_platform.registry.ledger import Ledger
from mlx_platform.registry.standing import Standing
from mlx_platform.registry.version import ARCHIVED, DIGEST, PROMPT, QUARANTINED, Version
from mlx_platform.registry.where import Where

_ALWAYS = (ARCHIVED, DIGEST, PROMPT, QUARANTINED)
_SLACK = 20  # archived versions that are expected among the newest
_WHOLE = 1000  # from here on one sweep over all tags is faster than asking for versions by their numbers


@frozen
class Asked:
    """Which versions are wanted.

    `since` is the earliest time of registration; `sort` a field, and whether descending, else the newest come
    first; `alias` is what they must hold. Archived versions are left out unless `archived`; one that holds an
    alias all the same never is.
    """

    where: Where | None = None
    alias: str | None = None
    since: datetime | None = None
    sort: tuple[Field, bool] | None = None
    archived: bool = False
    limit: int | None = 20

    @property
    def fields(self) -> tuple[Field, ...]:
        named = self.where.fields if self.where else ()
        return (*named, self.sort[0]) if self.sort else named

    @property
    def aliases(self) -> bool:
        """Whether the answer depends on who holds an alias."""
        return self.alias is not None or any(of_aliases(field) for field in self.fields)


@frozen
class Selection:
    """The first versions, up to the limit, and how many there are: None when nobody counted.

    `incomplete` when it was asked who holds an alias, and a broken journal kept its answer back.
    """

    versions: tuple[Version, ...]
    total: int | None
    warnings: tuple[str, ...] = ()
    incomplete: bool = False


def select(backend: Backend, ledger: Ledger, names: Sequence[str], asked: Asked) -> Selection:
    """Find versions of some models.

    Raises:
        IntegrityError: one model was named whose journal is broken, and it is asked who holds an alias.
    """
    standings, broken = _standings(ledger, names, strict=asked.aliases and len(names) == 1)
    plain = not asked.fields and asked.since is None and asked.alias is None
    if len(names) == 1 and plain and asked.limit is not None:
        return Selection(_newest(backend, names[0], standings[names[0]], asked, asked.limit), None, broken)
    keys = sorted({*_ALWAYS, *(key for field in asked.fields for key in tags_of(field))})
    found = [
        version
        for name in names
        for version in _versions(
            backend, name, standings[name], numbers=_held(standings[name], asked), keys=keys
        )
        if _wanted(version, asked)
    ]
    chosen = [version for version in found if asked.where is None or asked.where.matches(Known(version))]
    if asked.sort:
        chosen = sort_versions(chosen, asked.sort[0], descending=asked.sort[1])
    elif len(names) > 1:
        chosen.sort(key=lambda version: version.created, reverse=True)
    warnings = (*broken, *_unheard(backend, names, standings, found, asked))
    whole = _whole(backend, standings, chosen[: asked.limit])
    return Selection(whole, len(chosen), warnings, incomplete=bool(broken) and asked.aliases)


def _standings(
    ledger: Ledger, names: Sequence[str], *, strict: bool
) -> tuple[dict[str, Standing], tuple[str, ...]]:
    standings = {name: ledger.standing(name) if strict else ledger.standing_if_known(name) for name in names}
    doubts = (standing.doubt for standing in standings.values() if standing.doubt)
    return standings, tuple(f"{doubt} Who holds its aliases is not known." for doubt in doubts)


def _held(standing: Standing, asked: Asked) -> list[int] | None:
    """The numbers that can be wanted where it is asked who holds an alias."""
    return None if asked.alias is None else [standing.holders.get(asked.alias, 0)]


def _wanted(version: Version, asked: Asked) -> bool:
    if version.archived and not version.aliases and not asked.archived:
        return False
    return asked.since is None or version.created >= asked.since


def _newest(backend: Backend, name: str, standing: Standing, asked: Asked, limit: int) -> tuple[Version, ...]:
    """The newest versions, from as few rows as are needed however many there are."""
    window = limit + (0 if asked.archived else _SLACK)
    while True:
        rows = backend.reader.rows(name, limit=window)
        versions = (standing.version(row) for row in rows)
        found = [version for version in versions if version and _wanted(version, asked)]
        if len(found) >= limit or len(rows) < window:
            return tuple(found[:limit])
        window *= 4


def _versions(
    backend: Backend,
    name: str,
    standing: Standing,
    *,
    numbers: Sequence[int] | None = None,
    keys: Sequence[str] | None = None,
    limit: int | None = None,
) -> Iterator[Version]:
    for row in backend.reader.rows(name, numbers=numbers, keys=keys, limit=limit):
        version = standing.version(row)
        if version:
            yield version


def _whole(
    backend: Backend, standings: Mapping[str, Standing], chosen: Sequence[Version]
) -> tuple[Version, ...]:
    """The chosen versions with everything that is known of them, in their order."""
    numbers: dict[str, list[int]] = {}
    for version in chosen:
        numbers.setdefault(version.name, []).append(version.number)
    whole = {
        (name, version.number): version
        for name, wanted in numbers.items()
        for version in _versions(
            backend, name, standings[name], numbers=None if len(wanted) >= _WHOLE else wanted
        )
    }
    # One that was deleted in between is no longer there.
    found = (whole.get((version.name, version.number)) for version in chosen)
    return tuple(version for version in found if version)


def _unheard(
    backend: Backend,
    names: Sequence[str],
    standings: Mapping[str, Standing],
    versions: Sequence[Version],
    asked: Asked,
) -> Iterator[str]:
    """A warning for each field that none of the versions has: most likely it is misspelt."""
    for field in dict.fromkeys(asked.fields):
        if versions and "." in field.text and all(Known(one).value(field) is None for one in versions):
            some = (_versions(backend, name, standings[name], limit=50) for name in names)
            hint = suggestion(field, chain.from_iterable(some))
            yield f"No version has {field.text}.{' ' if hint else ''}{hint}"
