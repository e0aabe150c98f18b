"""Requests that disagree, shown without what people sent unless somebody asks for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.report import Table
from mlx_platform.core.text import printable
from mlx_platform.workflows.replay.observer import Mismatch
from mlx_platform.workflows.replay.values import described, shown


def example_document(mismatch: Mismatch, ref: str, *, show_values: bool) -> dict[str, Any]:
    """A request, JSON-ready; its inputs and answers are there only with `show_values`."""
    record = mismatch.request.record
    document: dict[str, Any] = {
        "request_id": record.request_id,
        "version": ref,
        "time": rfc3339(record.time),
        "replica": record.server_id,
        "stage": mismatch.stage or None,
        "outputs": {name: found.document() for name, found in mismatch.outputs.items() if found.disagreeing},
        "inputs": described(mismatch.request.inputs),
    }
    if show_values:
        document["values"] = {
            "inputs": shown(mismatch.request.inputs),
            "logged": shown(mismatch.request.outputs),
            "anew": shown(mismatch.answers) if mismatch.answers is not None else None,
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
            _line(shown(mismatch.request.inputs) if show_values else described(mismatch.request.inputs)),
        ]
        if show_values:
            row += [_line(shown(mismatch.request.outputs)), _line(shown(mismatch.answers or {}))]
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


def _line(values: Mapping[str, str]) -> str:
    return "; ".join(f"{printable(name, 60)}: {value}" for name, value in values.items())
