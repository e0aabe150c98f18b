"""What `--expect` says: the holder that somebody has seen."""

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable


def expected_holder(text: str) -> int | None:
    """Read a version number, alone or as `NAME/12`; `none` is nobody.

    Raises:
        UsageError: it is neither.
    """
    if text.lower() == "none":
        return None
    number = text.rpartition("/")[2]
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 10):
        raise UsageError(
            f"{printable(text, 100)!r} is no version to expect.", hint="Write its number, or none for nobody."
        )
    return int(number)
