"""What a command is about: a registered version, or a file that nobody has registered yet."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import NotFoundError
from mlx_platform.core.files import exists
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.lookup import UnregisteredError
from mlx_platform.registry.ref import GRAMMAR, AliasRef, PathRef, Ref, parse_ref
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import Package


@frozen
class Subject:
    """A sealed package with the name it goes by; `version` is None when it is not registered."""

    name: str
    version: Version | None
    package: "Package"
    source: str

    @property
    def ref(self) -> str:
        return self.version.ref if self.version else self.source

    @property
    def number(self) -> str:
        """The version number that the protocol and the traffic log show; `0` when unregistered."""
        return str(self.version.number) if self.version else "0"

    @property
    def sealed(self) -> bool:
        """Whether evidence about it can be kept: it is registered, and its bytes cannot change."""
        return self.version is not None and self.version.sealed

    @property
    def warnings(self) -> tuple[str, ...]:
        return not_sealed(self.version) if self.version else ()

    def document(self) -> dict[str, Any]:
        """What a command was about, JSON-ready; the version of an unregistered file is null."""
        return {
            "ref": self.ref,
            "name": self.name,
            "version": self.version.number if self.version else None,
            "digest": self.package.digest,
        }


@contextmanager
def open_subject(context: Context, text: str) -> Iterator[Subject]:
    """Resolve a reference and hold its verified package for as long as the block runs.

    Args:
        context: the command's context.
        text: `NAME@ALIAS`, `NAME/12`, a label, or the path of a package folder or an `.onnx` file, which is
            built into a package of its own for the time of the block.

    Raises:
        NotFoundError: no such version or file.
        UsageError: a bare name, or a file that is no usable model.
        IntegrityError: bytes that do not match their digest.
    """
    ref = parse_ref(text)
    if not isinstance(ref, PathRef):
        version = resolved(context, ref, text)
        yield Subject(version.name, version, context.catalog.fetch(version), text)
        return
    path = Path(ref.path)
    if not exists(ref.path):
        raise NotFoundError(f"There is no file or folder {printable(text, 200)!r}.", hint=GRAMMAR)
    with tempfile.TemporaryDirectory(prefix="mlx-") as folder:
        yield Subject(path.resolve().stem, None, _package(path, Path(folder) / "package"), text)


def resolved(context: Context, ref: Ref, text: str) -> Version:
    """The registered version of a reference, where the path of a file would do as well.

    Raises:
        NotFoundError: no such version; when a file or folder is called so, how to write that.
        UsageError: a bare name.
    """
    try:
        return context.catalog.resolve(ref)
    except UnregisteredError as error:
        kind = "folder" if Path(text).is_dir() else "file"
        raise NotFoundError(
            f"There is no model {printable(text, 200)!r} in the registry, but a {kind} of that name.",
            hint=f"If you mean the {kind}, write: ./{printable(text, 200)}",
        ) from error


def _package(path: Path, out: Path) -> "Package":
    from mlx_platform.inference.build import BuildOptions, build_package
    from mlx_platform.inference.package import MANIFEST, open_package

    if (path / MANIFEST).is_file():
        return open_package(path)
    return build_package(path, out, BuildOptions()).package


def adoption(context: Context, version: Version) -> tuple[str, str]:
    """What to do about a version that plain MLflow registered: in words, and the command where one helps."""
    problem = context.catalog.not_adoptable(version)
    if problem is None:
        return f"Adopt it with: mlx adopt {version.ref}", f"mlx adopt {version.ref}"
    return f"{problem.message} {problem.hint}".rstrip(), ""


def not_sealed(version: Version, advice: str = "") -> tuple[str, ...]:
    """What to say of a version that plain MLflow registered; nothing about ours."""
    advice = advice or f"See: mlx show {version.ref}"
    problem = f"{version.ref} is not sealed: its bytes may change, and evidence about it is not kept."
    return () if version.sealed or version.stripped else (f"{problem} {advice}",)


def alias_warnings(context: Context, text: str) -> tuple[str, ...]:
    """What to say of a reference that goes by an alias: that MLflow's own alias is elsewhere."""
    ref = parse_ref(text)
    return context.catalog.differences(ref.name, ref.alias) if isinstance(ref, AliasRef) else ()


def open_model(
    context: Context, subject: Subject, *, device: str = "auto", threads: int = 0, memory: int = 0
) -> "Model":
    """Load the subject for inference, with the threads that the settings ask for unless told otherwise."""
    from mlx_platform.inference.model import Model

    return Model.load(
        subject.package,
        name=subject.name,
        version=subject.number,
        device=device,
        threads=threads or context.settings.serving.intra_op_threads,
        memory=memory,
    )
