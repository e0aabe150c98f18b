"""What is watched: named scalars of a model's inputs and answers."""

from collections.abc import Iterable, Mapping

import numpy as np

from mlx_platform.core.tensors import Array, Columns
from mlx_platform.drift.extract.vectors import watch_vectors
from mlx_platform.inference.spec import ModelSpec

Positions = Mapping[str, tuple[str, int]]
_WATCHED_WIDTH = 16  # columns of one output that are watched one by one


def output_features(answers: Columns) -> dict[str, Array]:
    """The answers' distributions that drift is looked for in.

    A classifier's label, and its confidence, entropy and margin, a regression's value; of a model whose
    answers have no meaning that is known, every number of a narrow output, and mean, spread, norm and
    projections of a wide one.

    Args:
        answers: answer columns [rows] or [rows, k], or output tensors.
    """
    for names in (("label", "confidence", "entropy", "margin"), ("value",)):
        if names[0] in answers:
            found = {name: answers[name] for name in names if name in answers}
            return found | (_certainty(answers) if names[0] == "label" else {})
    found = {}
    for name, column in answers.items():
        found |= scalars(name, column, width=_WATCHED_WIDTH)
        if column.dtype.kind == "f" and column.ndim > 1 and column[:1].size > _WATCHED_WIDTH:
            found |= watch_vectors(name, column)
    return found


def _certainty(answers: Columns) -> dict[str, Array]:
    """Entropy, 0 to 1, and the distance of the two highest probabilities.

    Of two classes the confidence says both already.
    """
    probabilities = answers.get("probabilities")
    if (
        probabilities is None
        or probabilities.ndim != 2
        or probabilities.shape[1] < 3
        or probabilities.dtype.kind != "f"
    ):
        return {}
    shares = np.clip(probabilities.astype(np.float64), 0.0, 1.0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    entropy = -(shares * logs).sum(axis=1) / np.log(shares.shape[1])
    highest = np.partition(shares, -2, axis=1)[:, -2:]
    # Rounded, so that a sum in another order moves no row over an edge.
    return {
        "entropy": entropy.astype(np.float32),
        "margin": (highest[:, 1] - highest[:, 0]).astype(np.float32),
    }


def scalars(name: str, column: Array, *, width: int) -> dict[str, Array]:
    """A column of any shape as columns [rows]: itself, its first `width` numbers, or mean and deviation."""
    if column.ndim == 1:
        return {name: column}
    flat = column.reshape(len(column), -1)
    if flat.shape[1] == 1:
        return {name: flat[:, 0]}
    if flat.shape[1] <= width:
        return {f"{name}[{index}]": flat[:, index] for index in range(flat.shape[1])}
    if flat.dtype.kind not in "fiub":
        return {}
    numbers = flat.astype(np.float64)
    return {f"{name}.mean": numbers.mean(axis=1), f"{name}.std": numbers.std(axis=1)}


def positions(spec: ModelSpec, names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Where the model's input tensors hold the features of these names, as far as that is known.

    Args:
        spec: of the model.
        names: features in the order of the columns of the file they come from.

    Returns:
        Tensor and column by feature name.
    """
    names = tuple(names)
    found: dict[str, tuple[str, int]] = {}
    for step in spec.pre:
        if step.kind == "columns":
            tensor = str(step.options.get("input", spec.inputs[0].name))
            found |= {str(name): (tensor, index) for index, name in enumerate(step.options["names"])}
    if not spec.columns and len(spec.inputs) == 1:
        width = spec.inputs[0].shape[1] if len(spec.inputs[0].shape) == 2 else 1
        if width is None or width == len(names):
            found |= {name: (spec.inputs[0].name, index) for index, name in enumerate(names)}
    return {name: place for name, place in found.items() if name in names}


def at_positions(columns: Columns, places: Positions) -> dict[str, Array]:
    """The features that lie in tensors, each [rows]."""
    found: dict[str, Array] = {}
    for name, (tensor, index) in places.items():
        column = columns.get(tensor)
        if column is None:
            continue
        flat = column.reshape(len(column), -1)
        if index < flat.shape[1]:
            found[name] = flat[:, index]
    return found
