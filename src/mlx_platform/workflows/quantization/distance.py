"""How far the outputs of a candidate are from the original's, as the answers that a caller would get."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_platform.core.tensors import Columns, Tensors

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model
    from mlx_platform.quantize.sensitivity import Distance


class AnswerDistance:
    """Compares outputs with those of the original, batch by batch the same rows."""

    def __init__(self, model: "Model", original: Sequence[Tensors]) -> None:
        self._model = model
        self._before = self._answers(original)

    def __call__(self, outputs: Sequence[Tensors]) -> "Distance":
        """The distance; answers that are no numbers count as changed or not, whatever they are."""
        from mlx_platform.quantize.agreement import mean_divergence, relative_error
        from mlx_platform.quantize.sensitivity import Distance

        before, after = self._before, self._answers(outputs)
        words = [name for name, column in before.items() if column.dtype.kind != "f"]
        numbers = [name for name, column in before.items() if column.dtype.kind == "f"]
        if not words:
            error = max((relative_error(before[name], after[name]) for name in numbers), default=0.0)
            return Distance(error, error)
        changed = np.zeros(len(before[words[0]]), dtype=bool)
        for name in words:
            changed |= np.array([not _same(*pair) for pair in zip(before[name], after[name], strict=True)])
        loss = float(changed.mean())
        if "label_index" in before:  # one class a row, so its probabilities sum to one
            return Distance(mean_divergence(before["probabilities"], after["probabilities"]), loss)
        error = max((relative_error(before[name], after[name]) for name in numbers), default=loss)
        return Distance(error, loss)

    def _answers(self, outputs: Sequence[Tensors]) -> Columns:
        parts: list[Columns] = [self._model.decode(batch) for batch in outputs]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _same(before: object, after: object) -> bool:
    return bool(np.array_equal(np.asarray(before), np.asarray(after)))
