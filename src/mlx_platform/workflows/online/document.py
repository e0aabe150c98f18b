"""An online evaluation as a JSON document."""

from typing import Any

import numpy as np

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.span import Grid
from mlx_platform.evaluation.judge import finite
from mlx_platform.workflows.evaluation.findings import measurement_document, slice_document
from mlx_platform.workflows.online.days import Day
from mlx_platform.workflows.online.joined import Fates, Joined
from mlx_platform.workflows.online.labels import Labels
from mlx_platform.workflows.online.measured import Online

LEFT_OUT = {
    "other_version": "answered by another version",
    "failed": "not answered with 200",
    "unlogged": "answer not in the log",
    "no_answer": "answer without what the metric needs",
    "unclear": "of several rows, without saying which",
    "late": "told too late",
    "unmatched": "of no request in this window",
    "again": "further request with the same id",
}
"""Labels that meet no answer, by the names of `Fates`."""


def delay_document(joined: Joined) -> dict[str, Any]:
    """How long labels take, in seconds, as far as somebody says when they were told."""
    known = joined.delays[np.isfinite(joined.delays)]
    if not len(known):
        return {"known": 0, "median": None, "p90": None}
    median, p90 = np.quantile(known, (0.5, 0.9))
    return {"known": len(known), "median": float(median), "p90": float(p90)}


def document_of(online: Online, labels: Labels, grid: Grid) -> dict[str, Any]:
    """Everything, JSON-ready."""
    joined, fates, shift = online.joined, online.joined.fates, online.shift
    return {
        "model": online.subject.document(),
        "window": {
            "first": rfc3339(joined.first) if joined.first else None,
            "last": rfc3339(joined.last) if joined.last else None,
            **grid.document(),
        },
        "log": joined.log.document(),
        "rows": {
            "answered": fates.answered,
            "labelled": fates.joined,
            "coverage": coverage_of(fates),
        },
        "labels": {
            "source": labels.source,
            "told": labels.told,
            "repeated": labels.repeated,
            "empty": labels.empty,
            "damaged": labels.damaged,
            "unusable": online.unusable,
            "unknown_classes": list(online.unknown),
            "contradicted": labels.contradicted.document(),
            **{name: getattr(fates, name).document() for name in LEFT_OUT},
        },
        "delay_seconds": delay_document(joined),
        "metrics": {name: measurement_document(one) for name, one in online.measurements.items()},
        "offline": None
        if online.offline is None
        else {"id": online.offline.id, "created": online.offline.created, "verdict": online.offline.verdict},
        "differences": {name: gap.document() if gap else None for name, gap in online.gaps.items()},
        "other_differences": {name: gap.document() for name, gap in online.others.items()},
        "windows": [_day_document(day) for day in online.days],
        "gates": [judged.document() for judged in online.judged],
        "slices": [slice_document(one) for one in online.slices],
        "bias": None
        if shift is None
        else {
            "distance": shift.distance,
            "p_value": finite(shift.p_value),
            "median_labelled": shift.medians[0],
            "median_others": shift.medians[1],
            "matters": shift.matters,
        },
    }


def coverage_of(fates: Fates) -> float | None:
    """The share of answered rows that have a label; each counts as much as requests that it stands for."""
    return fates.joined_weight / fates.answered_weight if fates.answered_weight else None


def _day_document(day: Day) -> dict[str, Any]:
    return {
        "since": rfc3339(day.since),
        "answered": day.answered,
        "labelled": day.labelled,
        "metrics": {name: measurement_document(one) for name, one in day.metrics.items()},
        "differences": {name: gap.document() for name, gap in day.gaps.items()},
    }
