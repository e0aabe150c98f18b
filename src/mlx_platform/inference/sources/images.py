"""Folders of images, read as they are needed."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.inference.sources.source import Source

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"}
_LARGEST = 256 << 20
_BATCH_BYTES = 64 << 20


class ImageSource(Source):
    """See `Source`. `image` holds the bytes, `path` the name, `label` the sub-folder, if there is any."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path = path
        self._files = list(files)
        self._names = [file.relative_to(path).as_posix() for file in files]
        self._labels = [name.split("/")[0] if "/" in name else None for name in self._names]
        self.columns = ("image", "path", *(("label",) if any(self._labels) else ()))
        self.rows = len(self._files)
        self._sizes = [_size(file) for file in self._files]
        self.size = sum(self._sizes)
        self._fingerprint = ""

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Array]]:
        names = self.columns if columns is None else tuple(columns)
        digest = hashlib.sha256()
        for start, stop in self._spans(rows):
            span = slice(start, stop)
            whole = {"path": text_column(self._names[span]), "label": text_column(self._labels[span])}
            if "image" in names:
                whole["image"] = text_column([self._read(place, digest) for place in range(start, stop)])
            yield {name: whole[name] for name in names}
        if "image" in names:
            self._keep(digest.hexdigest())

    @property
    def fingerprint(self) -> str:
        if not self._fingerprint:
            digest = hashlib.sha256()
            for place in range(len(self._files)):
                self._read(place, digest)
            self._keep(digest.hexdigest())
        return self._fingerprint

    def locate(self, row: int) -> str:
        return str(self._files[row])

    def _spans(self, rows: int) -> Iterator[tuple[int, int]]:
        start, held = 0, 0
        for place, size in enumerate(self._sizes):
            if place > start and (place - start >= rows or held + size > _BATCH_BYTES):
                yield start, place
                start, held = place, 0
            held += size
        yield start, len(self._sizes)

    def _read(self, place: int, digest: "hashlib._Hash") -> bytes:
        file = self._files[place]
        try:
            with file.open("rb") as stream:
                content = stream.read(self._sizes[place] + 1)
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
        if len(content) != self._sizes[place]:
            raise self._changed(file)
        digest.update(f"{self._names[place]}\0{hashlib.sha256(content).hexdigest()}\n".encode())
        return content

    def _keep(self, fingerprint: str) -> None:
        if self._fingerprint and fingerprint != self._fingerprint:
            raise self._changed(self.path)
        self._fingerprint = fingerprint

    @staticmethod
    def _changed(path: Path) -> UsageError:
        return UsageError(f"{path} changed while it was read.", hint="Name a copy that nobody writes to.")


def _size(file: Path) -> int:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    if size > _LARGEST:
        raise UsageError(f"{file} is larger than {_LARGEST / 1e6:.0f} MB, and no image.")
    return size
