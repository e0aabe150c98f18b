"""The worst answers of an evaluation, named by the ids of their rows. Inputs are not shown."""

from typing import Any

import numpy as np

from mlx_platform.core.report import Table
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import plural
from mlx_platform.evaluation.judge import finite, number, signed
from mlx_platform.evaluation.ranking_metrics import CUT, ndcg_by_query
from mlx_platform.evaluation.scored import Classified, Predicted, Ranked, Tagged
from mlx_platform.workflows.evaluation.findings import Findings

_ERRORS = 20


def errors_document(findings: Findings) -> dict[str, Any]:
    """How many answers are wrong, and the worst of them by id; rows are counted from 0."""
    scored, ids = findings.scored, findings.rows.ids
    match scored:
        case Classified():
            total, order, score = _wrong_labels(scored)
            told = {
                row: {
                    "truth": findings.labels[scored.truth[row]],
                    "answer": findings.labels[scored.answer[row]],
                    "confidence": None if score is None else finite(float(score[row])),
                }
                for row in order
            }
        case Tagged():
            wrong = scored.truth ^ scored.answer
            count = wrong.sum(axis=1)
            total = int((count > 0).sum())
            order = np.argsort(-count, kind="stable")[: min(_ERRORS, total)]
            told = {
                row: {
                    "missed": _names(findings, scored.truth[row] & ~scored.answer[row]),
                    "added": _names(findings, scored.answer[row] & ~scored.truth[row]),
                }
                for row in order
            }
        case Predicted():
            error = scored.answer - scored.truth
            total = int((error != 0).sum())
            order = np.argsort(-np.nan_to_num(np.abs(error), nan=np.inf), kind="stable")[:_ERRORS]
            told = {
                row: {
                    "truth": finite(float(scored.truth[row])),
                    "answer": finite(float(scored.answer[row])),
                    "error": finite(float(error[row])),
                }
                for row in order
            }
        case Ranked():
            return _bad_queries(findings, scored)
    worst = [{"row": int(row), "id": str(ids[row]), **what} for row, what in told.items()]
    return {"total": total, "worst": worst}


def _bad_queries(findings: Findings, scored: Ranked) -> dict[str, Any]:
    """The queries that are not in their best order, the worst of them by name."""
    first, rows, values = ndcg_by_query(scored)
    names = findings.rows.queries
    wrong = np.flatnonzero(values < 1)
    order = wrong[np.argsort(values[wrong], kind="stable")][:_ERRORS]
    worst = [
        {
            "row": int(first[query]),
            "query": str(first[query] if names is None else names[first[query]]),
            "rows": int(rows[query]),
            "ndcg": float(values[query]),
        }
        for query in order
    ]
    return {"total": len(wrong), "worst": worst}


def _wrong_labels(scored: Classified) -> tuple[int, Array, Array | None]:
    """How many answers are wrong, the surest of them, and how sure each answer is."""
    wrong = np.flatnonzero(scored.truth != scored.answer)
    if scored.probabilities is None:
        return len(wrong), wrong[:_ERRORS], None
    confidence = scored.probabilities[np.arange(scored.rows), scored.answer]
    order = np.argsort(-np.nan_to_num(confidence[wrong], nan=np.inf), kind="stable")
    return len(wrong), wrong[order][:_ERRORS], confidence


def _names(findings: Findings, mask: Array) -> list[str]:
    return [findings.labels[code] for code in np.flatnonzero(mask)]


def errors_table(findings: Findings) -> Table:
    found = errors_document(findings)
    total, worst = found["total"], found["worst"]
    match findings.scored:
        case Tagged():
            columns: tuple[str, ...] = ("row", "missed", "added")
            rows = [(one["id"], ", ".join(one["missed"]), ", ".join(one["added"])) for one in worst]
            return Table(f"Worst rows ({plural(total, 'row')} not all right)", columns, tuple(rows))
        case Predicted():
            columns = ("row", "truth", "answer", "error")
            cells = [(one["id"], *(_shown(one[key]) for key in ("truth", "answer"))) for one in worst]
            errors = ["" if one["error"] is None else signed(one["error"]) for one in worst]
            lines = tuple((*cell, error) for cell, error in zip(cells, errors, strict=True))
            return Table("Largest errors", columns, lines, numeric=(1, 2, 3))
        case Ranked():
            columns = ("query", "rows", f"NDCG@{CUT}")
            cells = [(one["query"], f"{one['rows']:,}", number(one["ndcg"])) for one in worst]
            name = "query" if total == 1 else "queries"
            title = f"Worst queries ({total:,} {name} not in the best order)"
            return Table(title, columns, tuple(cells), numeric=(1, 2))
    sure = any(one["confidence"] is not None for one in worst)
    columns = ("row", "truth", "answer", *(("confidence",) if sure else ()))
    rows_shown = tuple(
        (one["id"], one["truth"], one["answer"], *((_shown(one["confidence"]),) if sure else ()))
        for one in worst
    )
    return Table(f"Surest errors ({plural(total, 'error')} in all)", columns, rows_shown, numeric=(3,))


def _shown(value: float | None) -> str:
    return "not a number" if value is None else number(value)
