"""Making a package a version, once whatever else happens at the same time."""

from typing import TYPE_CHECKING, Literal

from mlx_platform.core.errors import ConflictError
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.lookup import Lookup
from mlx_platform.registry.publication import publish
from mlx_platform.registry.removal import Removal
from mlx_platform.registry.version import CONTENT, LABEL, Lineage, Version

if TYPE_CHECKING:
    from mlx_platform.inference.package import Package


class Registration:
    """Registers packages in one registry."""

    def __init__(self, backend: Backend, lookup: Lookup, removal: Removal) -> None:
        self._backend = backend
        self._lookup = lookup
        self._removal = removal

    def register(
        self, name: str, package: "Package", lineage: Lineage, *, if_exists: Literal["reuse", "fail"]
    ) -> tuple[Version, bool]:
        """Make a package a version of a model, and say whether it is new; see `Catalog.register`.

        Raises:
            ConflictError: the content is there and `if_exists` is `fail`.
        """
        with self._backend.alone():
            known = self.same_content(name, package.content_digest)
            if known and if_exists == "fail":
                raise _same(known)
            if known:
                self._write_label(known)  # whoever registered it may have died before
                return known, False
            number = publish(self._backend.store, name, package, lineage)
            first = self.same_content(name, package.content_digest)
            if first and first.number < number:
                # Only where no lock reaches: another machine registered the same content at the same time.
                self._removal.withdraw(self._lookup.get(name, number))
                if if_exists == "fail":
                    raise _same(first)
                return first, False
        self._write_label(self._lookup.get(name, number))
        return self._lookup.get(name, number), True

    def same_content(self, name: str, content: str) -> Version | None:
        """The first version of a model with this content digest."""
        same = self._backend.reader.tagged(name, CONTENT, content)
        return self._lookup.get(name, min(same)) if same else None

    def _write_label(self, version: Version) -> None:
        if version.tags.get(LABEL) != version.label:
            self._backend.writer.set_tags(version.name, version.number, {LABEL: version.label})


def _same(version: Version) -> ConflictError:
    return ConflictError(f"{version.ref} has the same content.", version=version.number)
