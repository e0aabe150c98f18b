"""What a search has measured, in a folder, so that an interrupted one goes on where it was."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import file_lock, write_atomic
from mlx_platform.core.text import printable
from mlx_platform.quantize.search import Reverted
from mlx_platform.quantize.sensitivity import Distance

SCHEMA = "mlx.search/v1"
FILE = "search.json"
_SIZE_CAP = 1 << 26  # bytes


class SearchState:
    """Distances by the layers that are float, and the candidates that the judging rows have seen.

    The rows that judge are looked at a few times only, whatever happens in between: a candidate that they saw
    in an earlier run is not a new look.
    """

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        """Read the state, if there is one.

        Args:
            path: the file; None keeps everything in memory.
            key: identifies model, rows and options.

        Raises:
            UsageError: the file is no such state, or that of another search.
        """
        self._path = path
        self._key = key
        self._measured: dict[Reverted, Distance] = {}
        self._looks: list[str] = []
        if path is not None and path.exists():
            self._read(path)

    @property
    def measured(self) -> int:
        """How many candidates are known."""
        return len(self._measured)

    def recall(self, reverted: Reverted) -> Distance | None:
        return self._measured.get(reverted)

    def keep(self, reverted: Reverted, distance: Distance) -> None:
        """Write a distance down.

        Raises:
            UsageError: the folder cannot be written.
        """
        self._measured[reverted] = distance
        self._write()

    def look(self, candidate: str) -> int:
        """The number of the look that a candidate gets or had, from 0.

        Args:
            candidate: a digest of its bytes.

        Raises:
            UsageError: the folder cannot be written.
        """
        if candidate not in self._looks:
            self._looks.append(candidate)
            self._write()
        return self._looks.index(candidate)

    def _read(self, path: Path) -> None:
        problem = UsageError(
            f"{printable(str(path))} is no state of a search.", hint="Name another folder with --resume."
        )
        try:
            if path.stat().st_size > _SIZE_CAP:
                raise problem
            content = orjson.loads(path.read_bytes())
        except OSError as error:
            raise UsageError(f"Cannot read {printable(str(path))}: {error.strerror}.") from error
        except orjson.JSONDecodeError as error:
            raise problem from error
        if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
            raise problem
        if content.get("key") != self._key:
            raise UsageError(
                f"{printable(str(path))} is the state of a search with another model, other rows or options.",
                hint="Repeat that search with its own options, or name another folder with --resume.",
            )
        try:
            self._looks = [str(look) for look in content["looks"]]
            for entry in content["measured"]:
                layers = Reverted(map(str, entry["float"]))
                self._measured[layers] = Distance(_number(entry["divergence"]), _number(entry["loss"]))
        except (KeyError, TypeError, ValueError) as error:
            raise problem from error

    def _write(self) -> None:
        if self._path is None:
            return
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "key": self._key,
            "looks": self._looks,
            "measured": [
                {"float": sorted(layers), "divergence": distance.divergence, "loss": distance.loss}
                for layers, distance in self._measured.items()
            ],
        }
        write_atomic(self._path, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _number(value: Any) -> float:
    """JSON has no infinity, and null in its place."""
    return math.inf if value is None else float(value)


def key_of(*parts: object) -> str:
    """A digest of everything that a search depends on."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


@contextmanager
def open_state(folder: Path | None, key: str) -> Iterator[SearchState]:
    """The state in a folder, for this process alone; without a folder, one that is forgotten.

    Raises:
        UsageError: there is the state of another search, or the folder cannot be written.
        UnavailableError: another process uses it.
    """
    if folder is None:
        yield SearchState()
        return
    with file_lock(folder / "lock", timeout=1.0, purpose=f"searching with the state in {folder}"):
        yield SearchState(folder / FILE, key)
