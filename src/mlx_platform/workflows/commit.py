"""The commit of the training code, as git tells it."""

import re
import subprocess
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable

_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}(\+dirty)?")
_SECONDS = 20


def commit_of(text: str, folder: Path) -> str:
    """The commit that a user named, or with `auto` the one that is checked out.

    Args:
        text: a commit hash, `auto`, or empty for none.
        folder: where to look with `auto`.

    Returns:
        The hash; `+dirty` behind it says that files differed from the commit.

    Raises:
        UsageError: no commit hash, or `auto` where there is no repository.
    """
    if not text:
        return ""
    if text != "auto":
        if not _COMMIT.fullmatch(text):
            raise UsageError(
                f"{printable(text, 100)!r} is no commit.", hint="Write a hash of 7 digits or more, or auto."
            )
        return text.lower()
    head = _git(folder, "rev-parse", "HEAD").strip()
    dirty = _git(folder, "status", "--porcelain", "--untracked-files=no").strip()
    return f"{head}+dirty" if dirty else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],  # noqa: S607 - the git on the user's path is the one that is meant
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"There is no git commit to be read in {folder}.",
            hint="Write the commit: --git-commit SHA, or leave the option out.",
        ) from error
    return done.stdout
