"""What reports show of answers: confused classes, calibration, curves, errors. Inputs are not shown."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mlx_platform.core.report import Bars, Drawing, Matrix, Plot, Points, Section, Series, Table
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import plural
from mlx_platform.evaluation.diagrams import (
    Bin,
    Curve,
    most_confused,
    precision_curve,
    reliability,
    residuals,
    roc_curve,
)
from mlx_platform.evaluation.judge import finite, number, signed
from mlx_platform.evaluation.metrics import confusion
from mlx_platform.evaluation.ranking_metrics import CUT, ndcg_by_query
from mlx_platform.evaluation.scored import Classified, Predicted, Ranked, Scored, Tagged
from mlx_platform.workflows.evaluation.errors import errors_document, errors_table
from mlx_platform.workflows.evaluation.findings import Findings

_MAPPED = 100  # classes of which every pair is counted in the report
_LISTED = 20
_CHARTED = 20


def sections_of(findings: Findings) -> Iterable[Section | Drawing]:
    """All that can be drawn of the answers, by task."""
    match findings.scored:
        case Classified() as scored:
            yield from _classes(findings, scored)
        case Tagged() as scored:
            yield _tags(findings, scored)
            yield from _calibration(findings)
        case Predicted() as scored:
            yield from _residuals(scored)
        case Ranked() as scored:
            yield _query_bars(scored)
    yield errors_table(findings)


def answers_document(findings: Findings) -> dict[str, Any]:
    """The same as numbers, JSON-ready."""
    scored = findings.scored
    found: dict[str, Any] = {"errors": errors_document(findings)}
    if isinstance(scored, Classified):
        counts = confusion(scored)
        small = scored.classes <= _MAPPED
        found["confusion"] = {
            "labels": list(findings.labels) if small else None,
            "counts": counts.tolist() if small else None,
            "most": [
                {
                    "truth": findings.labels[pair.truth],
                    "answer": findings.labels[pair.answer],
                    "rows": pair.rows,
                    "share": pair.share,
                }
                for pair in most_confused(counts, _MAPPED)
            ],
        }
        found["classes"] = _class_documents(findings, counts)
        found["curves"] = {
            name: {"x": list(curve.x), "y": list(curve.y)}
            for name, curve in (("roc", roc_curve(scored)), ("precision_recall", precision_curve(scored)))
            if curve
        }
    if isinstance(scored, Classified | Tagged):
        found["reliability"] = [_bin_document(one) for one in _bins(findings, scored)]
    if isinstance(scored, Predicted) and (drawn := residuals(scored)):
        found["residuals"] = {
            "edges": list(drawn.edges),
            "counts": list(drawn.counts),
            "quantiles": {f"{share:g}": value for share, value in drawn.quantiles},
        }
    return found


# Classes


def _classes(findings: Findings, scored: Classified) -> Iterable[Section | Drawing]:
    counts = confusion(scored)
    labels = findings.labels
    if scored.classes <= _MAPPED:
        values = tuple(tuple(int(cell) for cell in row) for row in counts)
        yield Matrix(f"Confusion (rows: truth, columns: answer{_plain(scored)})", labels, labels, values)
    pairs = most_confused(counts, _LISTED)
    if pairs and scored.classes > 2:
        rows = tuple(
            (labels[pair.truth], labels[pair.answer], f"{pair.rows:,}", f"{pair.share:.1%}") for pair in pairs
        )
        yield Table("Most confused", ("truth", "answer", "rows", "of the class"), rows, numeric=(2, 3))
    if 2 < scored.classes <= _CHARTED:
        yield _recall_bars(findings, scored)
    yield _class_table(findings, counts)
    yield from _calibration(findings)
    yield from _curves(findings)


def _plain(scored: Classified | Tagged) -> str:
    """What counts say where metrics weigh their rows."""
    return "" if scored.weights is None else "; rows are counted, not weighted"


def _recall(counts: Array) -> Array:
    """The share of right answers of each class; NaN for one without rows."""
    rows = counts.sum(axis=1)
    recall = np.full(len(rows), np.nan)
    np.divide(counts.diagonal(), rows, out=recall, where=rows > 0)
    return recall


def _recall_bars(findings: Findings, scored: Classified) -> Bars:
    sides = [(name, confusion(side)) for name, side in _sides(findings) if isinstance(side, Classified)]
    met = np.flatnonzero(np.bincount(scored.truth, minlength=scored.classes))  # the same on both sides
    series = tuple(Series(name, tuple(_recall(counts)[met].tolist())) for name, counts in sides)
    return Bars("Recall by class", tuple(findings.labels[code] for code in met), series, unit="share")


def _sides(findings: Findings) -> list[tuple[str, Scored]]:
    """The candidate, and the baseline if that is another model."""
    sides = [(findings.subject.ref, findings.scored)]
    comparison, baseline = findings.comparison, findings.baseline
    if baseline is not None and comparison is not None and not comparison.identical:
        sides.append((f"{baseline.ref} (baseline)", baseline.scored))
    return sides


def _class_documents(findings: Findings, counts: Array) -> list[dict[str, Any]]:
    true, answered, hits = counts.sum(axis=1), counts.sum(axis=0), counts.diagonal()
    return [
        {
            "label": findings.labels[code],
            "rows": int(true[code]),
            "answered": int(answered[code]),
            "right": int(hits[code]),
            "precision": float(hits[code] / answered[code]) if answered[code] else None,
            "recall": float(hits[code] / true[code]) if true[code] else None,
        }
        for code in range(len(counts))
    ]


def _class_table(findings: Findings, counts: Array) -> Table:
    met = [one for one in _class_documents(findings, counts) if one["rows"] or one["answered"]]
    met.sort(key=lambda one: -1.0 if one["recall"] is None else one["recall"])
    rows = tuple(
        (
            one["label"],
            f"{one['rows']:,}",
            f"{one['answered']:,}",
            "" if one["precision"] is None else number(one["precision"]),
            "" if one["recall"] is None else number(one["recall"]),
        )
        for one in met[:_CHARTED]
    )
    more = f", {len(rows)} of {len(met):,}" if len(met) > len(rows) else ""
    weighed = _plain(findings.scored) if isinstance(findings.scored, Classified) else ""
    title = f"Classes, lowest recall first{more}{weighed}"
    return Table(title, ("class", "rows", "answered", "precision", "recall"), rows, numeric=(1, 2, 3, 4))


def _tags(findings: Findings, scored: Tagged) -> Table:
    true, answered = scored.truth.sum(axis=0), scored.answer.sum(axis=0)
    hits = (scored.truth & scored.answer).sum(axis=0)
    order = sorted(
        np.flatnonzero(true + answered), key=lambda code: hits[code] / true[code] if true[code] else -1.0
    )
    rows = tuple(
        (
            findings.labels[code],
            f"{true[code]:,}",
            f"{answered[code]:,}",
            number(hits[code] / answered[code]) if answered[code] else "",
            number(hits[code] / true[code]) if true[code] else "",
        )
        for code in order[:_MAPPED]
    )
    columns = ("class", "rows", "answered", "precision", "recall")
    title = f"Classes, lowest recall first{_plain(scored)}"
    return Table(title, columns, rows, numeric=(1, 2, 3, 4))


# Probabilities


def _bins(findings: Findings, scored: Classified | Tagged) -> tuple[Bin, ...]:
    return reliability(scored, findings.asked.defaults.confidence)


def _bin_document(one: Bin) -> dict[str, Any]:
    return {
        "from": one.lower,
        "to": one.upper,
        "rows": one.rows,
        "predicted": finite(one.predicted),
        "observed": finite(one.observed),
        "lower": finite(one.low),
        "upper": finite(one.high),
    }


def _calibration(findings: Findings) -> Iterable[Plot]:
    scored = findings.scored
    if not isinstance(scored, Classified | Tagged):
        return
    bins = _bins(findings, scored)
    if not bins:
        return
    met = [one for one in bins if one.rows and math.isfinite(one.observed)]
    points = Points(
        findings.subject.ref,
        tuple(one.predicted for one in met),
        tuple(one.observed for one in met),
        lower=tuple(one.low for one in met),
        upper=tuple(one.high for one in met),
    )
    said, came_true = _axes(findings, scored)
    yield Plot(
        "Calibration",
        said,
        came_true,
        (points,),
        kind="dots",
        guide=((0.0, 0.0), (1.0, 1.0)),
        counts=tuple((one.lower, one.upper, one.rows) for one in bins),
        note=(
            "Dots on the dashed line keep their word; below it the model is too sure. Whiskers are "
            f"{findings.asked.defaults.confidence:.0%} Wilson intervals, bars the rows of each bin."
        ),
    )


def _axes(findings: Findings, scored: Classified | Tagged) -> tuple[str, str]:
    if isinstance(scored, Tagged):
        return "probability of a class", "share of rows that have it"
    if scored.classes == 2:
        positive = findings.labels[scored.positive]
        return f"probability of {positive}", f"share of {positive}"
    return "confidence in the answer", "share of right answers"


def _curves(findings: Findings) -> Iterable[Plot]:
    sides = [(name, side) for name, side in _sides(findings) if isinstance(side, Classified)]
    roc = [(name, curve) for name, side in sides if (curve := roc_curve(side))]
    if roc:
        guide = ((0.0, 0.0), (1.0, 1.0))
        x, y = "false positives, share of the negatives", "found, share of the positives"
        yield Plot("ROC curve", x, y, _points(roc), guide=guide, note="The dashed line is a guess.")
    precision = [(name, curve) for name, side in sides if (curve := precision_curve(side))]
    if precision:
        share = _share(findings)
        yield Plot(
            "Precision and recall",
            "recall",
            "precision",
            _points(precision),
            guide=((0.0, share), (1.0, share)),
            note="The dashed line is a guess: the share of the positives.",
        )


def _points(curves: Sequence[tuple[str, Curve]]) -> tuple[Points, ...]:
    return tuple(Points(name, curve.x, curve.y) for name, curve in curves)


def _share(findings: Findings) -> float:
    scored = findings.scored
    if not isinstance(scored, Classified):
        return math.nan
    return float(np.average(scored.truth == scored.positive, weights=scored.weights))


# Numbers


def _residuals(scored: Predicted) -> Iterable[Section | Drawing]:
    found = residuals(scored)
    if found is None:
        return
    picked = len(found.answer)
    which = "" if picked == scored.rows else f"{picked:,} of {plural(scored.rows, 'row')}, evenly picked. "
    low, high = min(found.answer), max(found.answer)
    yield Plot(
        "Residuals",
        "answer",
        "answer less truth",
        (Points("rows", found.answer, found.error),),
        kind="dots",
        guide=((low, 0.0), (high, 0.0)),
        note=f"{which}Without a pattern beside the dashed line the model has learnt what there was.",
    )
    middles = tuple(
        f"{(start + end) / 2:.3g}" for start, end in zip(found.edges[:-1], found.edges[1:], strict=True)
    )
    counts = Series("rows", tuple(map(float, found.counts)))
    yield Bars("Distribution of the errors", middles, (counts,))
    rows = tuple((f"{share:.0%}", signed(value)) for share, value in found.quantiles)
    yield Table("Quantiles of the error", ("share of rows below", "error"), rows, numeric=(1,))


# Rankings


def _query_bars(scored: Ranked) -> Bars:
    values = ndcg_by_query(scored)[2]
    counts, edges = np.histogram(values[np.isfinite(values)], 20, (0.0, 1.0))
    labels = tuple(f"{start:g}" for start in edges[:-1].round(2).tolist())
    queries = Series("queries", tuple(map(float, counts.tolist())))
    return Bars(f"NDCG@{CUT} of the queries, from", labels, (queries,))
