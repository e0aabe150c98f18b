"""What `--expect` says: the holder that somebody has seen."""

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable


def expected_holder(text: str, name: str) -> int | None:
    """Read a version number of a model, alone or as `NAME/12`; `none` is nobody.

    Raises:
        UsageError: it is neither, or a version of another model.
    """
    if text.lower() == "none":
        return None
    model, slash, number = text.rpartition("/")
    if slash and model != name:
        raise UsageError(f"{printable(text, 100)!r} is no version of {name}.", hint="Write its number alone.")
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 10):
        raise UsageError(
            f"{printable(text, 100)!r} is no version to expect.", hint="Write its number, or none for nobody."
        )
    return int(number)
