"""Every step by its name in `model.toml`."""

from collections.abc import Mapping
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.inference.steps.answers import (
    LabelsStep,
    SigmoidStep,
    SoftmaxStep,
    ThresholdStep,
    TopStep,
    ValueStep,
)
from mlx_platform.inference.steps.image import ImageStep
from mlx_platform.inference.steps.step import Options, Site, Step
from mlx_platform.inference.steps.table import CategoriesStep, ColumnsStep
from mlx_platform.inference.steps.text import CleanStep, TokenizeStep

_BEFORE: tuple[type[Step], ...] = (ColumnsStep, CategoriesStep, CleanStep, TokenizeStep, ImageStep)
_AFTER: tuple[type[Step], ...] = (SoftmaxStep, SigmoidStep, LabelsStep, ThresholdStep, TopStep, ValueStep)
PRE: dict[str, type[Step]] = {step.kind: step for step in _BEFORE}
POST: dict[str, type[Step]] = {step.kind: step for step in _AFTER}


def make_step(kind: str, options: Mapping[str, Any], site: Site, known: Mapping[str, type[Step]]) -> Step:
    """The step `kind` with its options checked.

    Raises:
        UsageError: no such step, or options that it does not take.
    """
    if kind not in known:
        raise UsageError(f"There is no step {printable(kind, 80)!r} here.", hint=did_you_mean(kind, known))
    return known[kind](Options(kind, options), site)
