"""`mlx pull`: a version's package on this machine."""

from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.text import plural
from mlx_platform.registry.cache import copy_package
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import size_text
from mlx_platform.workflows.subject import not_sealed


def pull(context: Context, ref: str, *, output: Path | None = None) -> Result:
    """Fetch a version's package, verify every digest, and copy it to a folder if one is named.

    Raises:
        NotFoundError: no such model, version, alias or label.
        UsageError: the output folder exists, or cannot be written.
        IntegrityError: bytes are missing or changed.
    """
    if output is not None and output.exists():
        raise UsageError(f"{output} exists already.", hint="Name a folder that does not exist yet.")
    version = context.catalog.resolve(ref)
    with context.progress.stage(f"pulling {version.ref}"):
        package = context.catalog.fetch(version)
        if output is not None:
            copy_package(package, output)
    place = output or package.root
    files = [entry.path for entry in package.manifest.files]
    return Result(
        command="pull",
        data={
            "ref": version.ref,
            "name": version.name,
            "version": version.number,
            "digest": package.digest,
            "size": package.size,
            "path": str(place),
            "model": str(place / package.model_path.name),
            "files": files,
        },
        report=Report(
            title="pull",
            summary=str(place),
            facts=(
                Fact("version", version.ref),
                Fact("digest", package.digest),
                Fact("content", f"{plural(len(files), 'file')}, {size_text(package.size)}, all verified"),
            ),
            next_steps=(f"mlx serve {version.ref}",),
        ),
        warnings=not_sealed(version, f"Adopt it with: mlx adopt {version.ref}"),
    )
