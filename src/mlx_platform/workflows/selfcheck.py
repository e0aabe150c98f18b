"""Whether a version can be served: its bytes are its digest's, it loads, and it answers its golden cases."""

from dataclasses import dataclass

from mlx_platform.core.errors import CancelledError, IntegrityError, MlxError, UnavailableError
from mlx_platform.core.text import first_line
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """How many golden cases ran, and what went wrong, one sentence each."""

    cases: int
    problems: tuple[str, ...]


def self_check(context: Context, version: Version) -> SelfCheck:
    """Fetch and verify a version's package, load it on the CPU, and run its golden cases.

    Neither metrics nor data nor the run that made the version are needed.

    Raises:
        IntegrityError: bytes are missing or changed.
        UnavailableError: the store cannot be reached.
    """
    with context.progress.stage(f"verifying {version.ref}"):
        package = context.catalog.fetch(version)
    with context.progress.stage(f"loading {version.ref}"):
        try:
            from mlx_platform.inference.model import Model

            # The CPU is everywhere, and starts at once.
            model = Model.load(
                package,
                name=version.name,
                version=str(version.number),
                device="cpu",
                threads=context.settings.serving.intra_op_threads,
            )
            return SelfCheck(len(package.golden()), tuple(model.self_check()))
        except (IntegrityError, UnavailableError, CancelledError):
            raise
        except MlxError as error:
            return SelfCheck(0, (f"{version.ref} does not load: {error.message}",))
        except (ImportError, OSError) as error:
            return SelfCheck(0, (f"{version.ref} cannot be loaded on this machine: {first_line(error)}.",))
