"""Rows that a model may have seen before it is judged by them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.inference.digests import Digests, row_digests
from mlx_platform.registry.version import DATASET_FINGERPRINT
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject

if TYPE_CHECKING:
    from mlx_platform.inference.sources.source import Source

_BATCH_ROWS = 8192
_SHOWN = 5
CALIBRATION_DATA, CALIBRATION_FINGERPRINT = "calibration_data", "calibration_fingerprint"
"""Parameters of a quantized version."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What the evaluated rows share with another file.

    Attributes:
        source: the file, or what the model did with the very file that it is evaluated on.
        shared: evaluated rows that are in it.
        rows: evaluated rows.
        examples: the first of the shared rows, counted from 0.
    """

    source: str
    shared: int
    rows: int
    examples: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        return self.shared / self.rows

    @property
    def message(self) -> str:
        where = f"are in {self.source}"
        return f"{self.shared:,} of {plural(self.rows, 'row')} ({self.share:.2%}) {where}"

    def document(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "shared": self.shared,
            "rows": self.rows,
            "share": self.share,
            "examples": list(self.examples),
        }


@dataclass(frozen=True, slots=True)
class Other:
    """A file to look for the evaluated rows in; with a fingerprint, only while it is the file that had it."""

    path: Path
    what: str = ""
    fingerprint: str = ""

    @property
    def source(self) -> str:
        path = printable(str(self.path))
        return f"{path}, {self.what}" if self.what else path


def other_files(context: Context, named: Sequence[str], subject: Subject) -> tuple[Other, ...]:
    """The files that are named, and the one that a version was calibrated on, where it is still there."""
    found = [Other(_path(context, name)) for name in named]
    version = subject.version
    recorded = version.params.get(CALIBRATION_DATA, "") if version else ""
    if version and recorded and _path(context, recorded).exists():
        what = f"which {version.ref} was calibrated on"
        found.append(
            Other(
                _path(context, recorded), what, version.params.get(CALIBRATION_FINGERPRINT, "") or "unknown"
            )
        )
    return tuple(found)


def _path(context: Context, name: str) -> Path:
    """A path as somebody writes it here or in the settings' folder."""
    path = Path(name).expanduser()
    return path if path.exists() else context.settings.path(name)


def overlap_with(context: Context, other: Other, columns: Sequence[str], digests: Digests) -> Overlap | None:
    """Look for the evaluated rows in another file; None when a recorded file is another one by now.

    Args:
        context: the command's context.
        other: the file.
        columns: the features, which make a row.
        digests: of the evaluated rows' features [rows].

    Raises:
        UsageError: a file that is named lacks a feature, so that its rows cannot be compared.
    """
    from mlx_platform.inference.sources.opening import open_dataset

    if other.fingerprint:
        try:
            source = open_dataset(other.path)
            same = source.fingerprint == other.fingerprint and set(columns) <= set(source.columns)
        except MlxError:
            return None  # nobody asked for it, and it is no longer what it was
        if not same:
            return None
    else:
        source = open_dataset(other.path)
    missing = next((name for name in columns if name not in source.columns), None)
    if missing is not None:
        raise UsageError(
            f"{other.path} has no column {printable(missing, 80)!r}, so its rows cannot be compared with the "
            "evaluated ones.",
            hint="Name a file with the same features.",
        )
    shared = _shared(context, source, columns, digests)
    examples = np.flatnonzero(shared)[:_SHOWN].tolist()
    return Overlap(other.source, int(shared.sum()), len(digests), tuple(examples))


def _shared(context: Context, source: "Source", columns: Sequence[str], digests: Digests) -> Array:
    """Which of the digests are those of some row of a file [rows]."""
    known = np.unique(digests)
    seen = np.zeros(len(known), dtype=np.bool_)
    total = source.size if source.rows is None else source.rows
    with context.progress.stage(
        f"looking for the rows in {printable(source.path.name, 80)}", total
    ) as advance:
        before = 0
        for batch in source.batches(_BATCH_ROWS, columns):
            theirs = row_digests(batch)
            places = np.searchsorted(known, theirs).clip(max=len(known) - 1)
            seen[places[known[places] == theirs]] = True
            advance(len(theirs) if source.rows is not None else source.position - before)
            before = source.position
    return seen[np.searchsorted(known, digests)]


def same_file(subject: Subject, fingerprint: str, rows: int) -> tuple[Overlap, ...]:
    """Whether the data are, byte for byte, what the version was trained or calibrated on, as recorded."""
    version = subject.version
    if version is None:
        return ()
    known = {
        f"the rows that {version.ref} was registered with as its training data": version.tags.get(
            DATASET_FINGERPRINT, ""
        ),
        f"the rows that {version.ref} was calibrated on": version.params.get(CALIBRATION_FINGERPRINT, ""),
    }
    return tuple(Overlap(what, rows, rows) for what, recorded in known.items() if recorded == fingerprint)


def overlap_checks(overlaps: Sequence[Overlap], most: float | None) -> tuple[Check, ...]:
    """What speaks against the rows, where a limit is asked for; rows that are new say nothing of the model.

    Args:
        overlaps: with each of the files.
        most: the share of rows that may be in a file, 0 to 1.
    """
    if most is None:
        return ()
    limit = f"<= {most:.2%}"
    if not overlaps:
        message = "no file is named that they could be in; name it with dataset.disjoint_from"
        return (Check("overlap", Verdict.UNDECIDED, "", limit, message, "data"),)
    return tuple(
        Check("overlap", Verdict.FAIL, f"{one.share:.2%}", limit, one.message, "data")
        for one in overlaps
        if one.share > most
    )


def overlap_warnings(overlaps: Iterable[Overlap]) -> tuple[str, ...]:
    return tuple(
        f"{printable(one.message)}: judged by rows that it knows, a model looks better than it is."
        for one in overlaps
        if one.shared
    )
