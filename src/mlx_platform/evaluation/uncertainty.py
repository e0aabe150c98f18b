"""How sure a model was of its answers, and how far apart two answers are."""

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, Columns

Floats = npt.NDArray[np.float64]


def uncertainty(answers: Columns) -> Floats:
    """From 0, entirely sure, to 1, no idea: what is left of the highest probability, of what could be left.

    Args:
        answers: columns of a classifier, `probabilities` [rows, labels] or `confidence` [rows].

    Returns:
        [rows]; 1 where the model gave no number.

    Raises:
        UsageError: the answers say nothing about how sure they are.
    """
    probabilities = answers.get("probabilities")
    if probabilities is not None and probabilities.ndim == 2 and probabilities.shape[1] > 1:
        left = (1 - probabilities.astype(np.float64).max(axis=1)) / (1 - 1 / probabilities.shape[1])
    elif "confidence" in answers:
        left = 1 - answers["confidence"].astype(np.float64)
    else:
        raise UsageError(
            "These answers have no probabilities or confidence, so none is more uncertain than another.",
            hint="Draw by --strategy drifted, disagreement or random.",
        )
    found: Floats = np.nan_to_num(np.clip(left, 0.0, 1.0), nan=1.0)
    return found


def disagreement(one: Columns, other: Columns) -> Floats:
    """From 0, the same, to 1, as far apart as can be: other labels, else by how much numbers differ.

    Args:
        one: answer columns [rows].
        other: of the same rows by another version.

    Raises:
        UsageError: they have neither labels nor a value in common.
    """
    if "label" in one and "label" in other:
        differ = np.asarray(
            [a != b for a, b in zip(one["label"].tolist(), other["label"].tolist(), strict=True)], dtype=bool
        )
        gap = _gap(one.get("confidence"), other.get("confidence"), len(differ))
        return np.where(differ, 1.0, np.minimum(gap, 0.99))
    if "value" in one and "value" in other:
        a, b = (answers["value"].astype(np.float64).reshape(-1) for answers in (one, other))
        size = np.abs(a) + np.abs(b)
        found: Floats = np.divide(np.abs(a - b), size, out=np.zeros_like(a), where=size != 0)
        return np.nan_to_num(found, nan=1.0)
    raise UsageError("These answers have neither labels nor a value, so they cannot be compared row by row.")


def _gap(one: Array | None, other: Array | None, rows: int) -> Floats:
    if one is None or other is None:
        return np.zeros(rows)
    found: Floats = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return np.nan_to_num(found, nan=1.0)
