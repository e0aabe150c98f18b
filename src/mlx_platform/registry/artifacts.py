"""Where a version's bytes may be: what the registry says about it is checked before anything is opened."""

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.version import model_id_of

_REMOTE = {"s3", "gs", "abfs", "abfss", "wasb", "wasbs", "hdfs", "dbfs", "mlflow-artifacts"}
_COPIED = re.compile(r"models:/[^/:@]+/[0-9]+")  # what MLflow's copy_model_version leaves
# Fullwidth forms become ordinary slashes, dots and tildes in some file systems and tools.
_TRICKS = "\\#?;$\uff5e\uff0e\uff0f"
_DECODINGS = 10
_MAX_LENGTH = 2048
_MODELS = "models"
_ARTIFACTS = "artifacts"


@frozen
class ArtifactRoot:
    """Where a registry without a server keeps its bytes: a `uri`, and a `folder` when it is on this disk."""

    uri: str
    folder: Path | None


def artifact_root(configured: str, path: Path) -> ArtifactRoot:
    """The root that the settings name: a URI as it stands, or else the path it was resolved to."""
    if "://" in configured:
        return ArtifactRoot(configured.rstrip("/"), None)
    folder = path.absolute()
    return ArtifactRoot(str(folder), folder)


def locate(location: str, source: str, root: ArtifactRoot, *, server: bool) -> Path | str:
    """Decide where to read a version's bytes.

    Args:
        location: what the registry says.
        source: the version's `source`: `models:/m-...`, a version it was copied from, or the location.
        root: what the settings allow.
        server: whether a tracking server hands out the locations; stores of its kind are then allowed.

    Returns:
        A folder inside the root, or the URI of a remote store.

    Raises:
        IntegrityError: the location points anywhere else, or is written in a way that hides where.
    """
    _refuse_tricks(_below(source, root))
    _refuse_tricks(_below(location, root))
    model = model_id_of(source)
    if not model and not _COPIED.fullmatch(source) and source != location:
        raise _elsewhere(source)
    path = _local_path(location)
    if path is None:
        return _remote(location, root, server=server)
    if root.folder is None:
        raise _elsewhere(location)
    # A registry that was moved as a whole still names the old place: MLflow's layout below the root is fixed.
    moved = root.folder / _MODELS / model / _ARTIFACTS
    if model and path.parts[-3:] == moved.parts[-3:] and moved.is_dir():
        path = moved
    resolved, allowed = path.resolve(), root.folder.resolve()
    if resolved == allowed or not resolved.is_relative_to(allowed):
        raise _elsewhere(location)
    return resolved


def locate_foreign(location: str, roots: Sequence[ArtifactRoot], *, server: bool) -> Path | str:
    """Decide where to read the bytes of a version that plain MLflow registered.

    Args:
        location: what the registry says.
        roots: what the settings allow.
        server: whether a tracking server hands out the locations; stores of its kind are then allowed.

    Returns:
        A folder inside one of the roots, or the URI of a remote store.

    Raises:
        IntegrityError: the location points anywhere else, or is written in a way that hides where.
    """
    text = location
    for root in roots:
        text = _below(text, root)
    _refuse_tricks(text)
    path = _local_path(location)
    if path is None:
        for root in roots:
            if root.folder is None and location.startswith(root.uri + "/"):
                return location
        if server and urlsplit(location).scheme in _REMOTE:
            return location
        raise _not_allowed(location)
    for root in roots:
        if root.folder is None:
            continue
        allowed = root.folder.resolve()
        for candidate in (path, *_moved(path, root.folder)):
            resolved = candidate.resolve()
            if resolved != allowed and resolved.is_relative_to(allowed):
                return resolved
    raise _not_allowed(location)


def _moved(path: Path, folder: Path) -> list[Path]:
    # Below a folder of the same name MLflow's layout is the same, wherever that folder stands by now.
    parts = path.parts
    if folder.name not in parts:
        return []
    last = len(parts) - 1 - parts[::-1].index(folder.name)
    return [folder.joinpath(*parts[last + 1 :])]


def _below(text: str, root: ArtifactRoot) -> str:
    # The configured part is the user's own, whatever characters it has; only what follows is foreign.
    prefix = root.uri + "/"
    return text.removeprefix(prefix) if text.startswith(prefix) else text


def _refuse_tricks(text: str) -> None:
    if len(text) > _MAX_LENGTH:
        raise _elsewhere(text)
    for _ in range(_DECODINGS):
        parts = re.split(r"[/:]", text)
        suspicious = (
            not text
            or not text.isprintable()
            or any(char in text for char in _TRICKS)
            or any(part == ".." or part.startswith("~") for part in parts)
            or text != text.strip(" .")
        )
        if suspicious:
            raise _elsewhere(text)
        try:
            decoded = unquote(text, errors="strict")
        except UnicodeDecodeError as error:
            raise _elsewhere(text) from error
        if decoded == text:
            return
        text = decoded
    raise _elsewhere(text)


def _local_path(location: str) -> Path | None:
    parts = urlsplit(location)
    if parts.scheme == "file" and location.startswith(("file:///", "file:/")) and not parts.netloc:
        return Path(unquote(parts.path))
    if location.startswith("/") and not location.startswith("//"):
        return Path(location)
    return None


def _remote(location: str, root: ArtifactRoot, *, server: bool) -> str:
    scheme = urlsplit(location).scheme
    if scheme in _REMOTE and (server or (not root.folder and location.startswith(root.uri + "/"))):
        return location
    raise _elsewhere(location)


def _not_allowed(text: str) -> IntegrityError:
    return IntegrityError(
        f"The registry says that the model is at {printable(text, 200)!r}, where none may be read.",
        hint="If it is a store of yours, name its folder or URI in `[registry] sources` of mlx.toml.",
    )


def _elsewhere(text: str) -> IntegrityError:
    return IntegrityError(
        f"The registry says that the bytes are at {printable(text, 200)!r}, where no package may be.",
        hint="Packages are kept below `[registry] artifacts`; register the model again with: mlx register",
    )
