"""Whether a model answers better than a constant would: where it does not, there is nothing to lose."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict

if TYPE_CHECKING:
    from mlx_platform.evaluation.scored import Scored


def refuse_chance(scored: "Scored", name: str, path: Path) -> None:
    """Stop where rows do not tell a model from a constant, so that a model that was ruined might pass.

    Rows that are too few for any comparison are let through: the gate says how many it takes.

    Args:
        scored: the model's answers beside the truth.
        name: of the metric that judges.
        path: the file of the rows.

    Raises:
        UndecidedError: it is not shown to be better in that metric than the best constant.
    """
    from mlx_platform.evaluation.compare import MIN_ROWS, better, compare

    constant = constant_for(scored)
    if constant is None or scored.units < MIN_ROWS:
        return
    comparison = compare(scored, constant, metrics=[name])
    if better(comparison, name).verdict is Verdict.PASS:
        return
    found = comparison.differences[name]
    raise UndecidedError(
        f"On the rows of {printable(str(path))} the model is not measurably better than one and the same"
        f" answer to all of them ({name.replace('_', ' ')} {found.candidate:.4g} and {found.baseline:.4g}):"
        " what has nothing to lose shows no loss. Nothing was made.",
        hint="Judge it by more rows, with labels of every kind; look whether the labels are the right ones.",
    )


def constant_for(scored: "Scored") -> "Scored | None":
    """The same rows with the best of all answers that do not look at them; None where there is none such."""
    from mlx_platform.evaluation.scored import Classified, Predicted, Tagged

    weights = scored.weights
    if weights is not None and not weights.any():
        return None
    match scored:
        case Classified():
            counts = np.bincount(scored.truth, weights=weights, minlength=scored.classes)
            return replace(scored, answer=np.full_like(scored.answer, counts.argmax()), probabilities=None)
        case Predicted():
            middle = np.average(scored.truth, weights=weights)
            return replace(scored, answer=np.full(scored.rows, middle))
        case Tagged():
            usual = np.average(scored.truth, axis=0, weights=weights) > 0.5
            return replace(scored, answer=np.tile(usual, (scored.rows, 1)), probabilities=None)
    return None
