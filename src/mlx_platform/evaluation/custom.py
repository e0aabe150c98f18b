"""Metrics of a project's own: Python functions that its settings name.

Only the settings file may name them. Whoever writes it runs code on this machine anyway; a gate file, a model
or its data may come from elsewhere, and can only use the names.
"""

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import MetricSettings
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import find_metric
from mlx_platform.evaluation.scored import Classified, Ranked, Scored, Tagged

Function = Callable[[Any, Any, Any, Any], Any]
_NOT_A_NUMBER = "the project's function gave no finite number"


def custom_metrics(named: Mapping[str, MetricSettings], folder: Path) -> dict[str, Metric]:
    """Load the functions that the settings name.

    A function takes `(truth, answer, probabilities, weights)` and gives a number. Of a classification, truth
    and answer are the names of classes [rows], and probabilities are [rows, classes] or None. Of several
    labels for each row, truth and answer are masks [rows, classes]. Of a ranking, the third argument is the
    codes of the queries [rows]. Weights are [rows], all one unless the rows have some. It is called again for
    hundreds of resamples, in which rows repeat.

    Args:
        named: the settings' table, by metric.
        folder: of the settings file; modules beside it are found.

    Raises:
        UsageError: a name is taken, or a function cannot be loaded.
    """
    return {
        name: _metric(name, settings, _load(name, settings.function, folder))
        for name, settings in named.items()
    }


def declared_metrics(named: Mapping[str, MetricSettings]) -> dict[str, Metric]:
    """The same metrics by what the settings say of them, without running anybody's code.

    They tell what a gate may ask; they cannot be measured.
    """
    return {name: _metric(name, settings, _not_loaded) for name, settings in named.items()}


def _not_loaded(*_arguments: Any) -> float:
    return math.nan


def _metric(name: str, settings: MetricSettings, function: Function) -> Metric:
    shown = printable(name, 60)
    if not name.isidentifier():
        raise UsageError(f"The metric {shown!r} of the settings is no plain word.", hint="Such as cost.")
    if find_metric(name) is not None:
        raise UsageError(f"The settings name a metric {shown!r}, which exists already.", hint="Rename it.")
    return Metric(
        name=name,
        task=None,
        unit=settings.unit,
        higher_is_better=settings.higher_is_better,
        kind="score" if settings.higher_is_better else "loss",
        parts=None,
        value=lambda scored: _call(name, function, scored),
        undefined=_NOT_A_NUMBER,
        by_rows=True,
    )


def _load(name: str, path: str, folder: Path) -> Function:
    module, _, attribute = path.partition(":")
    where = f"The function {printable(path, 120)!r} of the metric {printable(name, 60)!r}"
    if not module or not attribute.isidentifier():
        raise UsageError(f"{where} is not written as one.", hint='Write function = "package.module:name".')
    try:
        with _beside(folder):
            function = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise UsageError(f"{where} cannot be loaded: {_first_line(error)}") from error
    if not callable(function):
        raise UsageError(f"{where} is a {type(function).__name__}, which cannot be called.")
    loaded: Function = function
    return loaded


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Modules beside the settings file are found first, as with a script."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _call(name: str, function: Function, scored: Scored) -> float:
    where = f"The metric {printable(name, 60)!r} of the settings"
    weights = np.ones(scored.rows) if scored.weights is None else scored.weights
    truth, answer = _named(scored, scored.truth), _named(scored, scored.answer)
    try:
        value = function(truth, answer, _third(scored), weights)
    except Exception as error:
        raise UsageError(f"{where} failed on {scored.rows:,} rows: {_first_line(error)}") from error
    if isinstance(value, bool | np.bool_ | str) or np.ndim(value) > 0:
        raise UsageError(f"{where} gave a {type(value).__name__}, not a number.")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} gave a {type(value).__name__}, not a number.") from error
    return number if math.isfinite(number) else math.nan


def _named(scored: Scored, codes: Array) -> Array:
    if not isinstance(scored, Classified) or not scored.labels:
        return codes
    return np.array(scored.labels)[codes]


def _third(scored: Scored) -> Array | None:
    if isinstance(scored, Classified | Tagged):
        return scored.probabilities
    return scored.queries if isinstance(scored, Ranked) else None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__, 200)
