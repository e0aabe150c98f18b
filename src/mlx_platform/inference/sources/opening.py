"""The way to the rows of a file or a folder."""

from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.inference.sources.file import Advance
from mlx_platform.inference.sources.folder import open_folder
from mlx_platform.inference.sources.formats import open_file
from mlx_platform.inference.sources.source import Source


def open_dataset(path: Path, advance: Advance | None = None) -> Source:
    """Open a data file by its suffix, a folder of such files, or a folder of images.

    CSV and JSON Lines say nothing about their columns, so they are read once here: a broken line or a mixed
    encoding is met before anything is done with the rows.

    Args:
        path: the file or folder.
        advance: told of the bytes read here.

    Raises:
        NotFoundError: there is no such file.
        UsageError: an unknown suffix, or a file that cannot be read.
        UndecidedError: no rows, so nothing can be said about them.
    """
    try:
        folder = path.is_dir()
    except OSError as error:
        raise UsageError(f"{printable(str(path))} cannot be read: {error.strerror}.") from error
    return open_folder(path) if folder else open_file(path, advance)
