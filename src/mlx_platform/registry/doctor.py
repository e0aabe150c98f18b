"""The registry looked at as a whole, and put right: what `mlx doctor registry` does, step by step."""

import hashlib
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mlx_platform.core.errors import ConflictError, IntegrityError, NotFoundError
from mlx_platform.core.text import listed, plural, printable
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.cache import Opener
from mlx_platform.registry.difference import Difference, compare
from mlx_platform.registry.examination import Finding
from mlx_platform.registry.examined import Examined
from mlx_platform.registry.journal import Event
from mlx_platform.registry.ledger import Ledger
from mlx_platform.registry.leftovers import unfinished
from mlx_platform.registry.ref import JOURNAL_PREFIX, is_name
from mlx_platform.registry.rollout import TAG_PREFIX, active_rollout
from mlx_platform.registry.sqlite_read import SqliteReader
from mlx_platform.registry.version import LABEL, SIZE, Version, version_of


class Doctor:
    """Examines one registry. Only `adopt`, `settle`, `name_version`, `tidy` and `discard` write."""

    def __init__(self, backend: Backend, ledger: Ledger) -> None:
        self._backend = backend
        self._ledger = ledger

    def names(self) -> tuple[str, ...]:
        """Every model that mlx can speak of."""
        return tuple(name for name in self._backend.reader.names() if is_name(name))

    def registry(self, now: datetime) -> list[Finding]:
        """What can be said of the registry apart from its models.

        Raises:
            UnavailableError: it cannot be reached.
        """
        reader = self._backend.reader
        names = reader.names()
        unknown = self._backend.database is not None and not isinstance(reader, SqliteReader)
        slow = "Its tables are not known here, so MLflow reads and writes them, which is slow."
        found = [
            Finding(
                "registry",
                self._backend.shown,
                sound=True,
                measured="tables of another MLflow" if unknown else plural(len(self.names()), "model"),
                expected="reachable, of a known form",
                note=slow if unknown else "",
            )
        ]
        others = [name for name in names if not is_name(name) and not name.startswith(JOURNAL_PREFIX)]
        if others:
            found.append(
                Finding(
                    "names",
                    self._backend.shown,
                    sound=True,
                    measured=listed([repr(name) for name in others], 3),
                    expected="names that a model of ours may have",
                    note=f"Only MLflow can use: {listed([repr(name) for name in others], 10)}.",
                )
            )
        models = set(names)
        for name in names:
            model = name.removeprefix(JOURNAL_PREFIX)
            if name.startswith(JOURNAL_PREFIX) and model not in models:
                found.append(
                    Finding(
                        "journal",
                        printable(model, 128),
                        sound=True,
                        measured="no such model",
                        expected="a model for each journal",
                        note=f"{printable(name, 140)} is about a model that was deleted or renamed.",
                    )
                )
        return found + [self._unfinished(model) for model in self._leftovers(now)]

    def examine(self, name: str) -> Examined:
        """A model with its journal, MLflow's aliases and every version.

        Raises:
            NotFoundError: there is no such model.
        """
        reader, journal = self._backend.reader, self._ledger.examine(name)
        aliases = reader.aliases(name)
        holders = dict(aliases)
        if not journal.problems:
            holders |= {alias: held for alias in journal.aliases() if (held := journal.holder(alias))}
        rows = reader.rows(name)
        if not rows and not journal.events and name not in reader.names():
            raise self._backend.no_model(name)
        versions = tuple(version for row in rows if (version := version_of(row, holders)))
        return Examined(name, journal, aliases, versions, reader.model_tags(name))

    def check_bytes(self, version: Version, *, deep: bool) -> Finding | None:
        """What is wrong with the bytes of a sealed version; None when nothing is.

        Args:
            version: the version.
            deep: read every byte and compare digests. Otherwise the manifest's digest is compared, and that
                files of the size it lists are there; those of a remote store are not asked for.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        try:
            opener = self._backend.opener(version)
        except IntegrityError as error:
            return Finding(
                "source",
                version.ref,
                sound=False,
                measured=printable(error.message, 300),
                expected="inside the allowed places",
                note=error.hint,
            )
        try:
            size = _read_package(opener, version.digest, deep=deep, files=deep or self._backend.local)
        except IntegrityError as error:
            return Finding(
                "bytes",
                version.ref,
                sound=False,
                measured=printable(error.message, 300),
                expected=f"digest {version.digest}",
                note=f"{version.ref} cannot be served from the registry; restore its bytes from a backup.",
            )
        if version.size in {0, size}:  # one that cannot be read is told with the other tags
            return None
        return Finding(
            "tags",
            version.ref,
            sound=True,
            measured=f"{SIZE}: {version.size}",
            expected=str(size),
            note=f"{version.ref}: the tag {SIZE} says {version.size:,} bytes; the package has {size:,}.",
        )

    def adopt(
        self, name: str, alias: str, *, actor: str, reason: str, evidence: Mapping[str, Any]
    ) -> Event | None:
        """Let the journal take over what MLflow says about an alias; None when they say the same.

        Raises:
            ConflictError: somebody moved the alias meanwhile.
            NotFoundError: the version that MLflow names is not there.
            IntegrityError: the journal is broken.
        """
        difference = self.difference(name, alias)
        if difference is None:
            return None
        to = None
        if difference.mlflow is not None:
            to = self._backend.load(name, difference.mlflow)
            if to is None:
                raise NotFoundError(
                    f"MLflow says that {name}@{alias} is {difference.mlflow}, which is not there.",
                    hint=f"Put the journal's holder back with: mlx doctor registry {name} --repair",
                )
        return self._ledger.move(
            name,
            alias,
            to,
            expect=difference.journal,
            kind="adopt",
            actor=actor,
            reason=reason,
            evidence=evidence,
        )

    def difference(self, name: str, alias: str) -> Difference | None:
        """What somebody did to one alias outside of mlx."""
        found = compare(self._ledger.journal(name), self._backend.reader.aliases(name))
        return next((one for one in found if one.alias == alias), None)

    def settle(self, name: str, alias: str | None) -> None:
        """Make one of MLflow's aliases, and the anchor, follow the journal.

        Raises:
            ConflictError: the version that the journal names is not there any more.
        """
        try:
            self._ledger.settle(name, alias)
        except NotFoundError as error:
            raise ConflictError(
                f"MLflow's alias {alias} of {name} cannot follow the journal: {error.message}",
                hint=f"Roll back or promote another version: mlx rollback {name}@{alias}" if alias else "",
            ) from error

    def name_version(self, version: Version) -> None:
        """Write down the label of a version whose registration was interrupted before that."""
        self._backend.writer.set_tags(version.name, version.number, {LABEL: version.label})

    def tidy(self, name: str) -> None:
        """Delete what servers left in the tags of a model, unless a rollout goes on."""
        if active_rollout(self._ledger.journal(name)) is None:
            tags = self._backend.reader.model_tags(name)
            self._backend.writer.delete_model_tags(name, [key for key in tags if key.startswith(TAG_PREFIX)])

    def discard(self, model: str) -> None:
        """Delete what an unfinished registration uploaded."""
        self._backend.store.discard_model(model)

    def _leftovers(self, now: datetime) -> tuple[str, ...]:
        database = self._backend.database
        return unfinished(database, timeout=self._backend.timeout, now=now) if database else ()

    def _unfinished(self, model: str) -> Finding:
        return Finding(
            "registration",
            printable(model, 80),
            sound=True,
            measured="uploaded, and no version",
            expected="a version of each upload",
            note=f"A registration was interrupted and left {printable(model, 80)} behind.",
            command="mlx doctor registry --repair",
            repair="registration",
        )


def _read_package(opener: Opener, digest: str, *, deep: bool, files: bool) -> int:
    """Look at the files of a package; returns the bytes that its manifest says they have together."""
    from mlx_platform.inference.package import MANIFEST, MANIFEST_CAP, parse_manifest

    with os.fdopen(opener(MANIFEST), "rb") as file:
        content = file.read(MANIFEST_CAP + 1)
    if hashlib.sha256(content).hexdigest() != digest:
        raise IntegrityError(f"{MANIFEST} has the digest {hashlib.sha256(content).hexdigest()}.")
    entries = parse_manifest(content).files
    for entry in entries if files else ():
        with os.fdopen(opener(entry.path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.size:
                raise IntegrityError(f"{entry.path} has {size:,} bytes instead of {entry.size:,}.")
            if deep and hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                raise IntegrityError(f"{entry.path} was changed: its digest is not the registered one.")
    return sum(entry.size for entry in entries)
