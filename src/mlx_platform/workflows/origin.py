"""Where a model to be registered comes from: a path, or something that the registry has already."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.runs import lineage_of
from mlx_platform.registry.version import REGISTERED_FROM, Lineage, Version
from mlx_platform.workflows.context import Context

if TYPE_CHECKING:
    from mlx_platform.inference.package import Package

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[/\\].*", re.DOTALL)
_LOGGED = re.compile(r"models:/m-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Origin:
    """What is registered.

    Attributes:
        path: the file or folder that a package is built from.
        package: the package that is there already, for a version of the registry.
        lineage: what is known about it without anybody saying so.
        warnings: sentences.
    """

    path: Path
    package: "Package | None" = None
    lineage: Lineage = field(default_factory=Lineage)
    warnings: tuple[str, ...] = ()


@contextmanager
def open_origin(context: Context, source: Path | str) -> Iterator[Origin]:
    """Find what a source means, and hold its files for as long as the block runs.

    Args:
        context: the command's context.
        source: a path, `models:/NAME/3`, `models:/NAME@ALIAS`, `models:/m-ID` or `runs:/RUN/PATH`.

    Raises:
        NotFoundError: no such file, version or run.
        UsageError: a URI of another kind, or no ONNX model.
        IntegrityError: bytes are missing, changed, or said to be where no model may be read.
    """
    text = str(source)
    if not isinstance(source, str) or not _URI.fullmatch(text):
        yield Origin(_existing(Path(source)))
    elif text.startswith("models:/") and not _LOGGED.fullmatch(text):
        origin = origin_of(context, context.catalog.resolve(text))
        tags = {**origin.lineage.tags, REGISTERED_FROM: text}
        yield replace(origin, lineage=replace(origin.lineage, tags=tags))
    elif text.startswith(("models:/", "runs:/")):
        with tempfile.TemporaryDirectory(prefix="mlx-register-") as folder:
            yield _of_run(context, text, Path(folder))
    else:
        raise UsageError(
            f"{printable(text, 200)!r} is nothing that can be registered from.",
            hint="Name a file, a folder, models:/NAME/3, models:/NAME@ALIAS or runs:/RUN_ID/PATH.",
        )


def _existing(path: Path) -> Path:
    try:
        found = path.exists()
    except OSError:  # a name that no file can have
        found = False
    if not found:
        raise NotFoundError(f"There is no model {printable(str(path), 200)}.")
    return path


def origin_of(context: Context, version: Version) -> Origin:
    """A version of the registry, sealed or not, as something to register from."""
    with context.progress.stage(f"fetching {version.ref}"):
        package = context.catalog.fetch(version)
    warnings: tuple[str, ...] = ()
    run = None
    if not version.sealed and version.run_id:
        run = context.catalog.run(version.run_id)
        if run is None:
            warnings = (f"The run of {version.ref} is gone: its parameters and metrics are not known.",)
    lineage, lost = lineage_of(run, version)
    if version.quarantined:
        warnings = (*warnings, f"{version.ref} is quarantined: {printable(version.quarantined, 200)}.")
    return Origin(package.root, package, lineage, (*warnings, *lost))


def _of_run(context: Context, uri: str, folder: Path) -> Origin:
    run = context.catalog.run_of(uri)
    with context.progress.stage("fetching the model"):
        path = context.catalog.take(uri, folder)
    lineage, lost = lineage_of(run, None)
    return Origin(path, None, replace(lineage, tags={**lineage.tags, REGISTERED_FROM: uri}), lost)
