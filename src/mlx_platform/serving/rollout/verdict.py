"""What a look finds: a verdict of each metric, and the worst of them for the step."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from mlx_platform.core.values import frozen


class Outcome(StrEnum):
    PASS = "pass"  # noqa: S105 - an outcome, not a secret
    INCONCLUSIVE = "inconclusive"
    NO_DATA = "no_data"
    ERROR = "error"
    FAIL = "fail"


_ORDER = tuple(Outcome)  # from best to worst


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """PASS < INCONCLUSIVE < NO_DATA < ERROR < FAIL. Nothing that was measured is no data, never a pass."""
    return max(outcomes, key=_ORDER.index, default=Outcome.NO_DATA)


@frozen
class MetricVerdict:
    """One metric at one look.

    `reason` is a word for machines, empty where the outcome says it all; `message` has the measured value
    beside its limit. `streak` counts the looks in a row, with this one, that are what must be confirmed or
    that could not be measured. `failed` stays set in a window once the metric has failed. A `dry_run` decides
    nothing.
    """

    name: str
    outcome: Outcome
    message: str
    measured: float | None = None
    limit: float | None = None
    reason: str = ""
    streak: int = 0
    failed: bool = False
    dry_run: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """JSON-ready; what is not set is left out."""
        found: dict[str, Any] = {"name": self.name, "outcome": str(self.outcome), "message": self.message}
        for key in ("measured", "limit"):
            value = getattr(self, key)
            if value is not None and math.isfinite(value):
                found[key] = _rounded(value)
        for key in ("reason", "streak", "failed", "dry_run"):
            if getattr(self, key):
                found[key] = getattr(self, key)
        if self.numbers:
            found["numbers"] = {
                key: _rounded(value) for key, value in self.numbers.items() if math.isfinite(value)
            }
        return found


@frozen
class StepVerdict:
    """One look: the outcome of the step, and how every metric came to it.

    `window` is that of the rollout that was looked at: a verdict says nothing about another one.
    """

    outcome: Outcome
    metrics: tuple[MetricVerdict, ...]
    window: int
    look: int = 0
    elapsed_s: float = 0.0

    @property
    def deciding(self) -> MetricVerdict | None:
        """The first metric that decides and has the step's outcome."""
        return next(
            (found for found in self.metrics if not found.dry_run and found.outcome == self.outcome), None
        )

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "outcome": str(self.outcome),
            "window": self.window,
            "look": self.look,
            "elapsed_s": round(self.elapsed_s, 3),
            "metrics": [found.document() for found in self.metrics],
        }


def verdict_from_document(document: Mapping[str, Any]) -> StepVerdict | None:
    """Read back what `document` wrote, such as another server left it; None when it is none of it."""
    try:
        metrics = tuple(_metric(entry) for entry in document["metrics"])
        return StepVerdict(
            Outcome(document["outcome"]),
            metrics,
            int(document["window"]),
            int(document["look"]),
            float(document["elapsed_s"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def verdict_of(documents: Iterable[Mapping[str, Any]], *, window: int) -> StepVerdict | None:
    """The verdict that a transition tells of; None where it tells of none that can be understood."""
    try:
        metrics = tuple(_metric(document) for document in documents)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    outcomes = [found.outcome for found in metrics if not found.dry_run]
    return StepVerdict(worst(outcomes), metrics, window) if metrics else None


def failure(name: str, message: str, *, window: int) -> StepVerdict:
    """The verdict about a candidate that failed outside of what is measured, such as `server_died`."""
    return StepVerdict(
        Outcome.FAIL, (MetricVerdict(name, Outcome.FAIL, message, reason=name, failed=True),), window
    )


def _metric(entry: Mapping[str, Any]) -> MetricVerdict:
    return MetricVerdict(
        name=str(entry["name"]),
        outcome=Outcome(entry["outcome"]),
        message=str(entry["message"]),
        measured=_number(entry.get("measured")),
        limit=_number(entry.get("limit")),
        reason=str(entry.get("reason", "")),
        streak=int(entry.get("streak", 0)),
        failed=bool(entry.get("failed", False)),
        dry_run=bool(entry.get("dry_run", False)),
        numbers={str(key): float(value) for key, value in entry.get("numbers", {}).items()},
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _rounded(value: float) -> float:
    """Six digits: enough for people and for another look, and a tag of a model is small."""
    return float(f"{value:.6g}")
