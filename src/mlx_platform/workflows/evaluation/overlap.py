"""Rows that a model may have seen before it is judged by them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.inference.digests import Digests, row_digests
from mlx_platform.registry.version import DATASET_FINGERPRINT
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject

_BATCH_ROWS = 8192
_SHOWN = 5
CALIBRATION_FINGERPRINT = "calibration_fingerprint"


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


def overlap_with(context: Context, path: Path, columns: Sequence[str], digests: Digests) -> Overlap:
    """Look for the evaluated rows in another file.

    Args:
        context: the command's context.
        path: the file.
        columns: the features, which make a row.
        digests: of the evaluated rows' features [rows].

    Raises:
        UsageError: the file lacks a feature, so that its rows cannot be compared.
    """
    from mlx_platform.inference.sources.source import open_dataset

    source = open_dataset(path)
    missing = next((name for name in columns if name not in source.columns), None)
    if missing is not None:
        raise UsageError(
            f"{path} has no column {printable(missing, 80)!r}, so its rows cannot be compared with the "
            "evaluated ones.",
            hint="Name a file with the same features.",
        )
    known = np.unique(digests)
    seen = np.zeros(len(known), dtype=np.bool_)
    with context.progress.stage(f"looking for the rows in {path.name}", source.rows) as advance:
        for batch in source.batches(_BATCH_ROWS, columns):
            theirs = row_digests(batch)
            places = np.searchsorted(known, theirs).clip(max=len(known) - 1)
            seen[places[known[places] == theirs]] = True
            advance(len(theirs))
    shared = seen[np.searchsorted(known, digests)]
    examples = np.flatnonzero(shared)[:_SHOWN].tolist()
    return Overlap(str(path), int(shared.sum()), len(digests), tuple(examples))


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
