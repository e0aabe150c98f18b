"""Requests that disagree, shown without what people sent unless somebody asks for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.report import Table
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable
from mlx_platform.workflows.replay.observer import Mismatch

_CELLS = 8
_TEXT = 200  # characters of a value


def example_document(mismatch: Mismatch, ref: str, *, show_values: bool) -> dict[str, Any]:
    """A request, JSON-ready; its inputs and answers are there only with `show_values`."""
    record = mismatch.request.record
    document: dict[str, Any] = {
        "request_id": record.request_id,
        "version": ref,
        "time": rfc3339(record.time),
        "replica": record.server_id,
        "stage": mismatch.stage or None,
        "outputs": {
            name: {
                "disagreeing": found.disagreeing,
                "reasons": dict(found.reasons),
                "largest": found.largest,
                "largest_relative": found.largest_relative,
            }
            for name, found in mismatch.outputs.items()
            if found.disagreeing
        },
        "inputs": _described(mismatch.request.inputs),
    }
    if show_values:
        document["values"] = {
            "inputs": _shown(mismatch.request.inputs),
            "logged": _shown(mismatch.request.outputs),
            "anew": _shown(mismatch.answers) if mismatch.answers is not None else None,
        }
    return document


def example_table(mismatches: Sequence[Mismatch], *, show_values: bool) -> Table:
    """The same as lines of a table."""
    columns = ("request", "time", "replica", "first stage", "differs", "inputs")
    rows = []
    for mismatch in mismatches:
        record = mismatch.request.record
        row = [
            printable(record.request_id, 128),
            both_zones(record.time),
            printable(record.server_id, 64),
            mismatch.stage or "unknown",
            _differs(mismatch),
            _line(_shown(mismatch.request.inputs) if show_values else _described(mismatch.request.inputs)),
        ]
        if show_values:
            row += [_line(_shown(mismatch.request.outputs)), _line(_shown(mismatch.answers or {}))]
        rows.append(tuple(row))
    if show_values:
        return Table("Worst examples", (*columns, "logged", "anew"), tuple(rows))
    return Table("Worst examples; --show-values tells what was sent", columns, tuple(rows))


def _differs(mismatch: Mismatch) -> str:
    parts = []
    for name, found in mismatch.outputs.items():
        if found.disagreeing:
            by = f" by {found.largest:.3g}" if found.largest else ""
            parts.append(f"{printable(name, 60)}: {', '.join(found.reasons)}{by}")
    return "; ".join(parts) or "cannot be answered any more"


def _described(arrays: Mapping[str, Array]) -> dict[str, str]:
    """What stands in for values: their kind and size."""
    return {name: _description(array) for name, array in arrays.items()}


def _description(array: Array) -> str:
    if array.dtype.kind in "OUS":
        cells = array.reshape(-1).tolist()
        lengths = [len(cell) for cell in cells if isinstance(cell, str | bytes)]
        if len(lengths) == len(cells) == 1:
            return f"text of {lengths[0]:,} characters"
        return f"{len(cells):,} values"
    return f"{array.dtype} {'x'.join(map(str, array.shape))}"


def _shown(arrays: Mapping[str, Array]) -> dict[str, str]:
    """The first values, safe to show."""
    found = {}
    for name, array in arrays.items():
        cells = np.asarray(array).reshape(-1)[:_CELLS].tolist()
        more = ", …" if array.size > _CELLS else ""
        found[name] = printable(", ".join(map(str, cells)), _TEXT) + more
    return found


def _line(values: Mapping[str, str]) -> str:
    return "; ".join(f"{printable(name, 60)}: {value}" for name, value in values.items())
