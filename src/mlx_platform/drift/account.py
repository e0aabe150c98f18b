"""What has been counted, so that nothing is counted twice."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from mlx_platform.core.span import Span

Numbers = npt.NDArray[np.int64]
Overlap = Literal["none", "some", "all"]
"""How much of one account another one holds already."""

_FIRST_MARK = 256
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class CountedFile:
    """A file of rows, known by its bytes wherever it lies.

    Attributes:
        name: of the file, for people.
        size: bytes.
        marks: digests of its first 256, 512, 1024 ... bytes, the last of all of them: a file that has grown
            since begins with what was counted.
        span: of the records that were taken from it.
    """

    name: str
    size: int
    marks: tuple[str, ...]
    span: Span

    def holds(self, other: "CountedFile") -> Overlap:
        """How much of another file's rows this one has counted."""
        if not _meet(self.span, other.span):
            return "none"
        if self.size == other.size and self.marks[-1] == other.marks[-1]:
            return "all" if _within(other.span, self.span) else "some"
        shared = min(len(self.marks), len(other.marks)) - 1
        return "some" if shared and self.marks[shared - 1] == other.marks[shared - 1] else "none"

    def document(self) -> dict[str, Any]:
        ends = {"since": self.span.since, "until": self.span.until}
        return {
            "name": self.name,
            "size": self.size,
            "marks": list(self.marks),
            **{name: end.isoformat() if end else None for name, end in ends.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        marks = tuple(map(str, document["marks"]))
        ends = [document["since"], document["until"]]
        span = Span(*(datetime.fromisoformat(end) if end else None for end in ends))
        return cls(str(document["name"]), int(document["size"]), (marks or ("",)), span)


def count_file(path: Path, span: Span) -> CountedFile:
    """What identifies a file that is about to be counted.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    marks: list[str] = []
    size, following = 0, _FIRST_MARK
    with path.open("rb") as file:
        while block := file.read(min(_CHUNK, following - size)):
            digest.update(block)
            size += len(block)
            if size == following:
                marks.append(digest.hexdigest())
                following *= 2
    return CountedFile(path.name, size, (*marks, digest.hexdigest()), span)


@dataclass(frozen=True, slots=True)
class Account:
    """What counts were made of.

    Attributes:
        runs: of our own logs, the numbers of the records: `server/boot` to half-open runs [n, 2].
        files: of everything else.
    """

    runs: Mapping[str, Numbers] = field(default_factory=dict)
    files: tuple[CountedFile, ...] = ()

    def __add__(self, more: "Account") -> "Account":
        runs = dict(self.runs)
        for stream, found in more.runs.items():
            runs[stream] = _joined(np.concatenate([runs[stream], found])) if stream in runs else found
        return Account(dict(sorted(runs.items())), (*self.files, *more.files))

    def holds(self, other: "Account") -> Overlap:
        """How much of what another account lists has been counted here."""
        found = {*self._records(other), *self._files(other)}
        if not found or found == {"none"}:
            return "none"
        return "all" if found == {"all"} else "some"

    def shared(self, other: "Account") -> str:
        """What both have counted, in words."""
        streams = [stream for stream in other.runs if stream in self.runs]
        parts = [
            f"{both:,} records of the server {stream.partition('/')[0]}"
            for stream in streams
            if (both := _common(self.runs[stream], other.runs[stream]))
        ]
        parts += [file.name for file in other.files if any(own.holds(file) != "none" for own in self.files)]
        return ", ".join(parts[:5])

    def _records(self, other: "Account") -> Iterator[Overlap]:
        for stream, runs in other.runs.items():
            both = _common(self.runs[stream], runs) if stream in self.runs else 0
            yield "none" if not both else "all" if both == _length(runs) else "some"

    def _files(self, other: "Account") -> Iterator[Overlap]:
        for file in other.files:
            found = {own.holds(file) for own in self.files}
            yield "all" if "all" in found else "some" if "some" in found else "none"

    def document(self) -> dict[str, Any]:
        return {
            "runs": {stream: runs.reshape(-1).tolist() for stream, runs in self.runs.items()},
            "files": [file.document() for file in self.files],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        runs = {
            str(stream): np.asarray(ends, dtype=np.int64).reshape(-1, 2)
            for stream, ends in document["runs"].items()
        }
        return cls(runs, tuple(map(CountedFile.from_document, document["files"])))


def runs_of(numbers: Iterable[int]) -> Numbers:
    """Numbers in any order as half-open runs [n, 2]."""
    found = np.unique(np.fromiter(numbers, np.int64))
    if not len(found):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(found) != 1)
    return np.stack([found[np.append(0, breaks + 1)], found[np.append(breaks, len(found) - 1)] + 1], axis=1)


def _joined(runs: Numbers) -> Numbers:
    """Runs in any order, those that touch or overlap made one."""
    if not len(runs):
        return runs
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(runs[:, 1])
    opens = np.append(True, runs[1:, 0] > reach[:-1])
    closes = np.append(np.flatnonzero(opens)[1:] - 1, len(runs) - 1)
    return np.stack([runs[opens, 0], reach[closes]], axis=1)


def _length(runs: Numbers) -> int:
    return int((runs[:, 1] - runs[:, 0]).sum())


def _common(one: Numbers, other: Numbers) -> int:
    """How many numbers lie in both."""
    return _length(one) + _length(other) - _length(_joined(np.concatenate([one, other])))


def _meet(one: Span, other: Span) -> bool:
    apart = (one.until and other.since and one.until <= other.since) or (
        other.until and one.since and other.until <= one.since
    )
    return not apart


def _within(inner: Span, outer: Span) -> bool:
    since = outer.since is None or (inner.since is not None and outer.since <= inner.since)
    return since and (outer.until is None or (inner.until is not None and inner.until <= outer.until))
