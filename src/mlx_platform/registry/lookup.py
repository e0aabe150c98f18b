"""From a reference to the version that it means."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.files import exists
from mlx_platform.core.text import plural, printable
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.ledger import Ledger
from mlx_platform.registry.ref import REGISTERED, AliasRef, LabelRef, NameRef, PathRef, Ref, parse_ref
from mlx_platform.registry.standing import UNASKED, Standing
from mlx_platform.registry.tombstone import Tombstone, tombstones
from mlx_platform.registry.version import Version

_PACKAGE_FILES = ("model.onnx", "manifest.json")  # of which a folder that holds a model has one


class UnregisteredError(UsageError):
    """A file or a folder where only a registered version will do."""


class Lookup:
    """Finds registered versions in one registry."""

    def __init__(self, backend: Backend, ledger: Ledger) -> None:
        self._backend = backend
        self._ledger = ledger

    def resolve(self, ref: str | Ref) -> Version:
        """The registered version that a reference means; see `Catalog.resolve`."""
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        if isinstance(ref, PathRef):
            raise _path(ref.path)
        if isinstance(ref, NameRef):
            raise self._bare_name(ref.name)
        if isinstance(ref, AliasRef):
            return self._resolve_alias(ref)
        if isinstance(ref, LabelRef):
            return self._resolve_label(ref)
        return self.get(ref.name, ref.number)

    def get(self, name: str, number: int) -> Version:
        """One version of a model.

        Raises:
            NotFoundError: no such model or version.
        """
        return self._get(name, number, self._ledger.standing_if_known(name))

    def alone(self, name: str, number: int) -> Version:
        """The same without its aliases, which cost further reads.

        Raises:
            NotFoundError: no such model or version.
        """
        return self._get(name, number, UNASKED)

    def _get(self, name: str, number: int, standing: Standing) -> Version:
        version = self._backend.load(name, number, standing)
        if version:
            return version
        gone = tombstones(self._backend.reader.model_tags(name)).get(number)
        if gone:
            raise _deleted(name, gone)
        newest = self._backend.reader.rows(name, limit=1)
        if not newest:
            raise self._backend.no_model(name)
        raise NotFoundError(
            f"There is no version {name}/{number}; the newest is {name}/{newest[0].number}.",
            hint=f"See: mlx list {name}",
        )

    def _bare_name(self, name: str) -> UsageError | NotFoundError:
        if not self._backend.reader.count(name):
            # model.skops is a name as well, and nobody means a model by it where such a file lies.
            return _path(name) if _may_be_a_model(Path(name)) else self._backend.no_model(name)
        aliases = [f"{name}@{alias}" for alias in self._ledger.holders(name)]
        known = ", ".join(aliases) if aliases else f"none yet; see: mlx list {name}"
        return UsageError(f"{name!r} is a model; say which version of it.", hint=f"Its aliases: {known}")

    def _resolve_alias(self, ref: AliasRef) -> Version:
        journal = self._ledger.journal(ref.name)
        standing = self._ledger.standing(ref.name, journal)
        number = standing.holders.get(ref.alias)
        if ref.back:
            before = journal.previous_holders(ref.alias)
            number = before[ref.back - 1] if ref.back <= len(before) else None
        if number is None:
            raise self._nobody(ref, standing.holders)
        version = self._get(ref.name, number, standing)
        moves = [event for event in journal.moves(ref.alias) if event.to_version == number]
        if moves and moves[-1].digest != version.digest:
            raise IntegrityError(
                f"{version.ref} is not the package that was moved to {ref.alias}: its digest has changed.",
                hint=_instead(journal, ref),
                expected=moves[-1].digest,
                actual=version.digest,
            )
        return version

    def _nobody(self, ref: AliasRef, holders: Iterable[str]) -> NotFoundError:
        if not self._backend.reader.count(ref.name):
            return self._backend.no_model(ref.name)
        if ref.back:
            return NotFoundError(
                f"{ref.name}@{ref.alias} does not have {plural(ref.back, 'earlier holder')}.",
                hint=f"See: mlx history {ref.name} --alias {ref.alias}",
            )
        known = ", ".join(f"{ref.name}@{alias}" for alias in holders) or "none yet"
        return NotFoundError(
            f"No version of {ref.name} holds the alias {ref.alias!r}.",
            hint=f"Aliases: {known}. Move it with: mlx promote {ref.name}/NUMBER --to {ref.alias}",
        )

    def _resolve_label(self, ref: LabelRef) -> Version:
        version = self._backend.load(ref.name, ref.number, self._ledger.standing_if_known(ref.name))
        if version and version.label == ref.text:
            return version  # also where plain MLflow gave a model the same name: one names no version
        if self._backend.reader.count(ref.text):
            raise self._bare_name(ref.text)
        gone = None if version else tombstones(self._backend.reader.model_tags(ref.name)).get(ref.number)
        if gone and gone.label == ref.text:
            raise _deleted(ref.name, gone)
        raise NotFoundError(f"There is no version with the label {ref.text!r}.", hint="See: mlx list")


def _instead(journal: Journal, ref: AliasRef) -> str:
    """What to do about a version that cannot be used: only who holds the alias now can be rolled back."""
    if not ref.back and journal.rollback_targets(ref.alias):
        return f"Promote a sound version, or roll back: mlx rollback {ref.name}@{ref.alias}"
    return f"Promote a sound version; see: mlx list {ref.name}"


def _may_be_a_model(path: Path) -> bool:
    return path.is_file() or any((path / name).is_file() for name in _PACKAGE_FILES)


def _path(path: str) -> UsageError:
    shown = printable(path, 200)
    if not exists(path):
        return UsageError(f"{shown!r} is no reference to a version, and no file.", hint=REGISTERED)
    return UnregisteredError(
        f"{shown!r} is a {'file' if Path(path).is_file() else 'folder'}, and a registered version is needed.",
        hint=f"Register it with: mlx register NAME {shlex.quote(shown)}",
    )


def _deleted(name: str, gone: Tombstone) -> NotFoundError:
    return NotFoundError(gone.sentence(name), hint=f"See: mlx history {name}", deleted=gone.document())
