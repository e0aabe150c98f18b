"""Which columns of a data file are inputs of a model."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from mlx_platform.core.settings import EvaluationSettings
from mlx_platform.workflows.context import Context

if TYPE_CHECKING:
    from mlx_platform.inference.package import Package


def no_inputs(
    settings: EvaluationSettings, taken: Collection[str] = (), *, label: str | None = None
) -> frozenset[str]:
    """The columns beside the inputs: the label, the row's id, its weight.

    Args:
        settings: how these are called.
        taken: columns that the model takes by name; they are inputs whatever they are called.
        label: the label's column, when it is not the one of the settings.
    """
    return frozenset({label or settings.label, settings.id or "id", settings.weight or "weight"}) - set(taken)


def left_out(context: Context, package: "Package | None") -> frozenset[str]:
    """Columns of a file that are not compared: those beside the inputs of the package's model."""
    return no_inputs(context.settings.evaluation, package.spec.columns if package else ())
