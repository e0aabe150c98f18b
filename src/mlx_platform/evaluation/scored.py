"""Truth and answers side by side, as the metrics of each task take them."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from mlx_platform.evaluation.resample import Codes, Floats

Task = Literal["classification", "multilabel", "regression", "ranking"]
Mask = npt.NDArray[np.bool_]


class _Rows:
    """What all tasks share. Every array of a subclass holds one entry, or one line, for each row."""

    __slots__ = ()
    truth: Any
    weights: Floats | None
    groups: Codes | None

    @property
    def rows(self) -> int:
        return len(self.truth)

    @property
    def drawn_by(self) -> Codes | None:
        """Codes of what is independent of each other [rows]; None where single rows are."""
        return self.groups

    @property
    def units(self) -> int:
        """How many independent pieces of data there are."""
        return self.rows if self.drawn_by is None else len(np.unique(self.drawn_by))

    @property
    def effective_rows(self) -> float:
        """Rows of equal weight that would tell as much: (sum w)^2 / sum w^2 (Kish, 1965)."""
        return float(self.rows) if self.weights is None else effective(self.weights)

    def take(self, rows: Codes | Mask) -> Self:
        """Some of the rows, by mask [rows] or by indices [any], which may repeat."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
        taken = {name: value[rows] for name, value in values.items() if isinstance(value, np.ndarray)}
        return replace(self, **taken)  # type: ignore[type-var]


def effective(weights: Floats) -> float:
    """(sum w)^2 / sum w^2; 0 where all weights are."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Classified(_Rows):
    """One class for each row.

    Attributes:
        truth: class codes below `classes` [rows].
        answer: the same, as the model said.
        probabilities: [rows, classes], if any.
        classes: how many there are.
        weights: what each row counts [rows], finite and not negative; None for one each.
        groups: which cluster each row belongs to [rows]; None where rows are independent.
        labels: the names of the classes; () calls them by their codes.
        positive: the code of the class that precision, recall and their like are about, where there are two.
    """

    task: ClassVar[Task] = "classification"
    truth: Codes
    answer: Codes
    probabilities: Floats | None
    classes: int
    weights: Floats | None = None
    groups: Codes | None = None
    labels: tuple[str, ...] = ()
    positive: int = 1


@dataclass(frozen=True, slots=True)
class Predicted(_Rows):
    """True and predicted numbers [rows]; weights and groups as for `Classified`."""

    task: ClassVar[Task] = "regression"
    truth: Floats
    answer: Floats
    weights: Floats | None = None
    groups: Codes | None = None


@dataclass(frozen=True, slots=True)
class Tagged(_Rows):
    """Any number of classes for each row: true and answered ones [rows, classes], and their probabilities."""

    task: ClassVar[Task] = "multilabel"
    truth: Mask
    answer: Mask
    probabilities: Floats | None
    weights: Floats | None = None
    groups: Codes | None = None
    labels: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        return int(self.truth.shape[1])


@dataclass(frozen=True, slots=True)
class Ranked(_Rows):
    """Relevance (0 for none) and the model's score of each row; rows of one query are ranked by the score.

    Attributes:
        truth: relevance, not negative [rows].
        answer: scores, higher first [rows].
        queries: which query each row belongs to [rows].
        weights: of the rows; a query counts as much as its rows do on average.
        groups: clusters of queries; None where queries are independent.
    """

    task: ClassVar[Task] = "ranking"
    truth: Floats
    answer: Floats
    queries: Codes
    weights: Floats | None = None
    groups: Codes | None = None

    @property
    def drawn_by(self) -> Codes:
        return self.queries if self.groups is None else self.groups


Scored = Classified | Predicted | Tagged | Ranked
