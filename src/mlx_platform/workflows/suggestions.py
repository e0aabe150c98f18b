"""What a registry has to offer to somebody who is typing: models, aliases, versions, labels.

It must be quick, so only the newest versions are offered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from mlx_platform.core.clock import system_clock
from mlx_platform.core.settings import Settings
from mlx_platform.core.text import plural
from mlx_platform.registry.address import parse_address
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.fields import known_fields, plain_fields
from mlx_platform.registry.ledger import Ledger
from mlx_platform.registry.ref import (
    AliasRef,
    LabelRef,
    NameRef,
    PathRef,
    VersionRef,
    is_alias,
    is_name,
    parse_ref,
)
from mlx_platform.registry.version import ARCHIVED, DIGEST, PROMPT, QUARANTINED

if TYPE_CHECKING:
    from mlx_platform.registry.reader import Reader
    from mlx_platform.registry.standing import Standing
    from mlx_platform.registry.version import Version

MOST = 50  # proposals of a kind
_PATIENCE = 0.2  # seconds for a registry that is busy or silent
_KEYS = (ARCHIVED, DIGEST, PROMPT, QUARANTINED)

Proposal = tuple[str, str]
"""A word, and what it means."""


class Suggestions:
    """Proposals from one registry.

    Raises:
        MlxError: from every method, when the registry cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = replace(settings, registry=replace(settings.registry, timeout=_PATIENCE))

    @property
    def quick(self) -> bool:
        """Whether the registry can be asked at all: a database would need MLflow, which takes seconds."""
        return self._kind != "database"

    @property
    def remote(self) -> bool:
        return self._kind == "server"

    @cached_property
    def _kind(self) -> str:
        return parse_address(self._settings.registry.uri, self._settings.folder).kind

    @cached_property
    def _backend(self) -> Backend:
        return Backend(self._settings)

    @property
    def _reader(self) -> "Reader":
        return self._backend.reader

    def models(self, start: str = "") -> list[Proposal]:
        """Models whose names begin so."""
        names = [name for name in self._reader.names() if is_name(name) and name.startswith(start)]
        # Counting costs a question for each; a server may be far away.
        if self.remote or len(names) > MOST:
            return [(name, "") for name in names[:MOST]]
        return [(name, plural(self._reader.count(name), "version")) for name in names]

    def aliases(self, name: str) -> list[Proposal]:
        """The aliases of a model, with the version that holds each."""
        return [(alias, f"version {number}") for alias, number in sorted(self._holders(name).items())]

    def numbers(self, name: str) -> list[Proposal]:
        """The newest versions of a model by number."""
        return [(str(version.number), _meaning(version)) for version in self._versions(name)]

    def labels(self, name: str) -> list[Proposal]:
        """The newest versions of a model by label."""
        return [
            (version.label, f"version {version.number}, {version.state}") for version in self._versions(name)
        ]

    def targets_of_rollback(self, name: str, alias: str) -> list[Proposal]:
        """Where an alias may go back to, best first."""
        if not is_name(name):
            return []
        journal = Ledger(self._backend, system_clock).journal(name)
        lost = journal.rolled_back(alias)
        numbers = [number for number in journal.rollback_targets(alias) if number not in lost][:MOST]
        standing = self._standing(name)
        rows = {row.number: row for row in self._reader.rows(name, numbers=numbers, keys=_KEYS)}
        found = [standing.version(rows[number]) for number in numbers if number in rows]
        return [
            (str(version.number), _meaning(version))
            for version in found
            if version and not version.archived and not version.quarantined
        ]

    def fields(self, ref: str) -> list[Proposal]:
        """What `mlx show` can print alone: of every version, and what this one has."""
        version = self._version(ref)
        own = known_fields(version) if version else ()
        return [(name, "") for name in (*plain_fields(), *own)]

    def targets(self, name: str) -> list[Proposal]:
        """The aliases that something can be promoted to: those configured, and those in use."""
        held = self._holders(name) if name else {}
        configured = self._settings.promotion
        return [
            (alias, f"now version {held[alias]}" if alias in held else "held by no version")
            for alias in dict.fromkeys((*configured, *sorted(held)))
            if is_alias(alias)
        ]

    def gates(self, alias: str) -> list[Proposal]:
        """What `--override` takes for this alias."""
        policy = self._settings.promotion.get(alias)
        needs: Iterable[str] = policy.needs if policy else ()
        return [
            *((kind, "evidence that the alias needs") for kind in needs),
            ("all", "every gate that speaks of missing evidence"),
            ("quarantine", "a version that was rolled back"),
            ("self-check", "a package that does not load"),
        ]

    def sinks(self) -> list[Proposal]:
        """The configured receivers of events."""
        return [(sink.name, sink.kind) for sink in self._settings.events.sinks]

    def _standing(self, name: str) -> "Standing":
        return Ledger(self._backend, system_clock).standing_if_known(name)

    def _holders(self, name: str) -> Mapping[str, int]:
        return self._standing(name).holders if is_name(name) else {}

    def _version(self, text: str) -> "Version | None":
        ref = parse_ref(text)
        if isinstance(ref, AliasRef):
            number = None if ref.back else self._holders(ref.name).get(ref.alias)
        else:
            number = ref.number if isinstance(ref, VersionRef | LabelRef) else None
        if number is None or isinstance(ref, NameRef | PathRef):
            return None
        rows = self._reader.rows(ref.name, numbers=[number])
        return self._standing(ref.name).version(rows[0]) if rows else None

    def _versions(self, name: str) -> "list[Version]":
        if not is_name(name):
            return []
        standing = self._standing(name)
        rows = self._reader.rows(name, limit=MOST, keys=_KEYS)
        return [version for row in rows if (version := standing.version(row))]


def _meaning(version: "Version") -> str:
    return f"{version.state}, {version.created:%Y-%m-%d}"
