"""Calibrations that were run before, so that another rule or another gate need not run the rows again."""

import hashlib
import io
import os
import platform
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.errors import MlxError
from mlx_platform.core.files import write_atomic
from mlx_platform.inference.session import runtime
from mlx_platform.quantize.calibrate import BINS, Histogram
from mlx_platform.quantize.storage import files_of
from mlx_platform.quantize.target import cpu_flags

SCHEMA = "mlx.calibration/v1"
KEPT = 64  # entries; the one that was used longest ago goes first
_DIGITS = 64  # of a digest in hexadecimal
_SIZE_CAP = 1 << 28  # bytes of an entry

Seen = Mapping[str, Histogram]


@dataclass(frozen=True, slots=True)
class Recalled:
    """What calibration saw; `before` says that an earlier run saw it, `note` why it could not be kept."""

    seen: Seen
    before: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class CalibrationCache:
    """Histograms of earlier calibrations in a folder of the user's.

    An entry counts for the very bytes of the prepared model, the same tensors, the same rows, the same
    runtime and the same processor. One that is damaged is as good as none.

    Attributes:
        folder: made when it is first needed.
        rows: what tells the calibration rows, as the model gets them, from all others.
    """

    folder: Path
    rows: str

    def recall(
        self, prepared: Path, tensors: Sequence[str], run: Callable[[], Seen], *, extremes_only: bool
    ) -> Recalled:
        """What an earlier run saw, or what `run` sees now.

        Args:
            prepared: the model file.
            tensors: that are watched.
            run: calibrates.
            extremes_only: whether extremes are enough; histograms serve as well.
        """
        model = [_digest(path) for path in files_of(prepared)]
        keys = {bare: self._key(model, tensors, extremes_only=bare) for bare in (False, True)}
        for bare in (False, True) if extremes_only else (False,):
            found = self._find(keys[bare], tensors)
            if found is not None:
                return Recalled(found, before=True)
        seen = run()
        return Recalled(seen, before=False, note=self._keep(keys[extremes_only], seen))

    def _key(self, model: Sequence[str], tensors: Sequence[str], *, extremes_only: bool) -> str:
        parts = {
            "schema": SCHEMA,
            "model": model,
            "tensors": sorted(tensors),
            "rows": self.rows,
            "extremes_only": extremes_only,
            "runtime": runtime().__version__,
            # The kernels for floats depend on them.
            "processor": [platform.machine(), *sorted(cpu_flags())],
        }
        return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def _find(self, key: str, tensors: Sequence[str]) -> Seen | None:
        path = self.folder / key
        try:
            with path.open("rb") as file:
                content = file.read(_SIZE_CAP)
        except OSError:
            return None
        seen = _read(content, key)
        if seen is None or set(seen) != set(tensors):
            return None
        with suppress(OSError):
            os.utime(path)
        return seen

    def _keep(self, key: str, seen: Seen) -> str:
        try:
            write_atomic(self.folder / key, _written(key, seen), mode=0o600)
        except MlxError as error:
            return f"The calibration could not be kept for another time. {error.message}"
        entries = sorted(self.folder.iterdir(), key=_used, reverse=True)
        for old in entries[KEPT:]:
            with suppress(OSError):
                old.unlink()
        return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process was faster to remove it
        return 0.0


def _written(key: str, seen: Seen) -> bytes:
    """A digest of all that follows it, then arrays by name."""
    names = orjson.dumps([key, *seen])
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        names=np.frombuffer(names, np.uint8),
        bins=np.array([histogram.bins for histogram in seen.values()], np.int64).reshape(-1, BINS),
        counts=np.array([histogram.count for histogram in seen.values()], np.int64),
        numbers=np.array([(one.lowest, one.highest, one.limit) for one in seen.values()], np.float64),
    )
    content = buffer.getvalue()
    return hashlib.sha256(content).hexdigest().encode() + content


def _read(content: bytes, key: str) -> Seen | None:
    stated, content = content[:_DIGITS], content[_DIGITS:]
    if hashlib.sha256(content).hexdigest().encode() != stated:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found: dict[str, Any] = {name: arrays[name] for name in arrays.files}
        own, *names = orjson.loads(found["names"].tobytes())
        if own != key:
            return None
        rows = zip(names, found["bins"], found["counts"], found["numbers"], strict=True)
        return {name: Histogram.restored(bins, int(count), *numbers) for name, bins, count, numbers in rows}
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile):
        return None
