"""Rows of one's own that a model answers before it takes requests: they warm what golden cases leave cold."""

import time
from pathlib import Path

import orjson

from mlx_platform.core.errors import MlxError, NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.inference.model import Model

_LARGEST = 64 * 1024 * 1024


def rehearse(model: Model, path: Path, seconds: float) -> int:
    """Answer the requests of a JSONL file: a line is a body of `/predict`, or one row.

    Args:
        model: who answers; what it answers is not looked at.
        path: the file.
        seconds: after which the rest of the file is left.

    Returns:
        How many lines were answered.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a line that the model does not take; it names it.
    """
    end = time.monotonic() + seconds
    done = 0
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
            rows = (
                document["rows"] if isinstance(document, dict) and set(document) == {"rows"} else [document]
            )
            model.predict(model.rows_from_json(rows))
        except (ValueError, UsageError) as error:
            said = error.message if isinstance(error, MlxError) else "This is no JSON."
            raise UsageError(
                f"Line {number} of {printable(str(path), 200)} cannot be used: {said}"
            ) from error
        done += 1
        if time.monotonic() > end:
            break
    return done


def _lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise NotFoundError(f"The warm-up file {printable(str(path), 200)} cannot be read.") from error
    if len(content) > _LARGEST:
        raise UsageError(f"The warm-up file is larger than {_LARGEST // 1024**2} MiB.")
    return content.splitlines()
