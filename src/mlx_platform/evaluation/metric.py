"""What a metric is: a number about answers beside the truth, and how it is resampled."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mlx_platform.evaluation.resample import Blocks, Floats
from mlx_platform.evaluation.scored import Classified, Mask, Scored, Tagged, Task

Kind = Literal["rate", "score", "loss"]
Parts = Callable[[Any, Blocks], Floats]

NO_ROWS = "there are no rows"
NO_WEIGHT = "the weights of all rows are zero"
NO_NUMBERS = "some answers are no finite numbers"
NO_PROBABILITIES = "the answers carry no finite probabilities"
ONE_CLASS = "the truth must hold at least two classes"


class Trials(NamedTuple):
    """The rows [rows] that a rate is about, and those that are right."""

    counted: Mask
    right: Mask


@dataclass(frozen=True, slots=True)
class Metric:
    """A number about answers beside the truth.

    Attributes:
        task: whose answers it is about; None for those of every task.
        unit: `share` for what lies between 0 and 1, so that percentage points have a meaning; else as shown.
        higher_is_better: None where neither direction is better, as with a bias.
        kind: a rate is a share of rows, the metric's `trials`.
        parts: from the scored rows and their blocks to sums [blocks, k]; None when rows cannot be added up.
        value: from sums [..., k] to values [...]; NaN where the metric is not defined. Without parts it takes
            the scored rows.
        undefined: what is missing when the value is NaN.
        needs_probabilities: what the answers must carry.
        exact: the value over all rows, where the parts round.
        trials: of a rate.
        paired: the rows that a rate is about depend on the truth alone, so that two models share them.
        classes: how many classes it makes sense for.
        usual: measured without being asked for.
        width: how many sums a block has, from the scored rows.
        by_rows: resampled by calling `value` with rows that repeat.
    """

    name: str
    task: Task | None
    unit: str
    higher_is_better: bool | None
    kind: Kind
    parts: Parts | None
    value: Callable[[Any], Any]
    undefined: str = "it is not a number"
    needs_probabilities: bool = False
    exact: Callable[[Any], float] | None = None
    trials: Callable[[Any], Trials] | None = None
    paired: bool = False
    classes: Literal["any", "two", "many"] = "any"
    usual: bool = True
    width: Callable[[Any], int] | None = None
    by_rows: bool = False

    @property
    def sign(self) -> float:
        """What turns a difference into a gain: -1 where lower is better."""
        return -1.0 if self.higher_is_better is False else 1.0

    def applies(self, scored: Scored) -> bool:
        """Whether it makes sense for as many classes as there are."""
        if self.classes == "any" or not isinstance(scored, Classified):
            return True
        return (scored.classes == 2) is (self.classes == "two")

    def of(self, scored: Scored) -> float:
        """The metric over all rows; NaN where it cannot be measured."""
        if self.obstacle(scored):
            return float("nan")
        if self.exact is not None:
            return self.exact(scored)
        if self.parts is None:
            return float(self.value(scored))
        everything = Blocks(np.zeros(scored.rows, np.int64), 1, scored.weights)
        return float(self.value(self.parts(scored, everything))[0])

    def obstacle(self, scored: Scored) -> str:
        """Why the metric cannot be computed from these rows at all; empty when it can be tried."""
        if scored.rows == 0:
            return NO_ROWS
        if scored.weights is not None and not scored.weights.any():
            return NO_WEIGHT
        if not self.applies(scored):
            return f"it is for {'two classes' if self.classes == 'two' else 'more than two classes'}"
        if not isinstance(scored, Classified | Tagged):
            return "" if _finite(scored.answer) else NO_NUMBERS
        if self.needs_probabilities and not _finite(scored.probabilities):
            return NO_PROBABILITIES
        return ""


def _finite(values: Floats | None) -> bool:
    return values is not None and bool(np.isfinite(values).all())


def divide(numerator: Floats, denominator: Floats, empty: float) -> Floats:
    """The quotient, and `empty` where the denominator is 0."""
    filled = np.full(np.broadcast(numerator, denominator).shape, empty)
    quotient: Floats = np.divide(numerator, denominator, out=filled, where=denominator != 0)
    return quotient


def mean(column: int) -> Callable[[Floats], Floats]:
    """The function from sums to the mean of a column, where the first column is the weight of the rows."""
    return lambda sums: divide(sums[..., column], sums[..., 0], np.nan)


def ones(scored: Scored) -> npt.NDArray[np.generic]:
    """What a block adds up to its weight."""
    return np.ones(scored.rows)


def thirds(sums: Floats) -> tuple[Floats, Floats, Floats]:
    """Sums [..., 3 k] as three of [..., k]."""
    first, second, third = np.split(sums, 3, axis=-1)
    return first, second, third


def with_strays(counts: Floats) -> Floats:
    """Sums as `thirds` takes them, and behind them a mark of the classes that are answered and never true.

    Such a class scores 0, and averages over classes count it. A resample may miss its few rows, and would
    then average over fewer classes than the value does; the mark, in every block, lets it count there too.

    Args:
        counts: by true class, by answered class, and of right answers, [blocks, 3 * classes].

    Returns:
        [blocks, 4 * classes].
    """
    true, answered, _hits = thirds(counts.sum(axis=0))
    strays = (true == 0) & (answered > 0)
    return np.concatenate([counts, np.broadcast_to(strays, (len(counts), len(strays)))], axis=1)


def split_strays(sums: Floats) -> tuple[Floats, Floats]:
    """What `with_strays` put together: the counts [..., 3 * classes] and the marks [..., classes]."""
    classes = sums.shape[-1] // 4
    return sums[..., : 3 * classes], sums[..., 3 * classes :]
