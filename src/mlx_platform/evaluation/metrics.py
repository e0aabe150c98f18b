"""The catalogue of metrics: by name, by task, and those whose name carries a class, a quantile or a cut."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import did_you_mean, listed, printable
from mlx_platform.evaluation.curves import curve_metrics
from mlx_platform.evaluation.label_metrics import binary_metrics, class_metrics, overall_metrics
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.number_metrics import number_metrics, pinball
from mlx_platform.evaluation.probability_metrics import probability_metrics
from mlx_platform.evaluation.ranking_metrics import ndcg, ranking_metrics, recall
from mlx_platform.evaluation.scored import Classified, Scored
from mlx_platform.evaluation.tag_metrics import tag_class_metrics, tag_metrics

_ALL = (
    *overall_metrics(),
    *binary_metrics(),
    *curve_metrics(),
    *probability_metrics(),
    *tag_metrics(),
    *number_metrics(),
    *ranking_metrics(),
)
_BY_TASK: Mapping[tuple[str | None, str], Metric] = {(metric.task, metric.name): metric for metric in _ALL}
METRICS: Mapping[str, Metric] = dict(reversed({metric.name: metric for metric in reversed(_ALL)}.items()))
"""One metric of each name. Tasks that share a name share its unit and direction."""

NONE: Mapping[str, Metric] = {}
PATTERNS = ("precision[CLASS]", "recall[CLASS]", "f1[CLASS]", "pinball[QUANTILE]", "ndcg@K", "recall@K")
_OF_CLASS = re.compile(r"(precision|recall|f1)\[(.+)\]", re.DOTALL)
_OF_QUANTILE = re.compile(r"pinball\[(0?\.\d+)\]")
_OF_CUT = re.compile(r"(ndcg|recall)@([1-9]\d{0,5})")
_CUTS: Mapping[str, Callable[[int], Metric]] = {"ndcg": ndcg, "recall": recall}


def metrics_of(task: str) -> tuple[Metric, ...]:
    """The metrics of a task, the primary one first; none for a task whose outputs have no known meaning."""
    return tuple(metric for metric in _ALL if metric.task == task)


def usual_metrics(scored: Scored) -> tuple[Metric, ...]:
    """Those that are measured unasked: of the task, and for as many classes as there are."""
    return tuple(metric for metric in metrics_of(scored.task) if metric.usual and metric.applies(scored))


def find_metric(name: str, custom: Mapping[str, Metric] = NONE) -> Metric | None:
    """A metric of that name, of whatever task; None when there is none.

    Tells unit and direction before the model is known. A class is not looked up: see `metric_of`.
    """
    if name in METRICS:
        return METRICS[name]
    if name in custom:
        return custom[name]
    tasks = ("classification", "regression", "ranking")
    return next((found for task in tasks if (found := _made(name, task, None))), None)


def metric_of(
    name: str, task: str, *, custom: Mapping[str, Metric] = NONE, labels: Sequence[str] | None = None
) -> Metric:
    """A metric by name.

    Args:
        name: such as `accuracy`, `recall[spam]`, `pinball[0.9]` or `ndcg@5`.
        task: of the model.
        custom: metrics of the project's own, by name.
        labels: the model's classes, which a name may refer to; None when they are not known yet.

    Raises:
        UsageError: there is no such metric or class, or the task does not have it.
    """
    if name in custom:
        return custom[name]
    metric = _BY_TASK.get((task, name)) or _made(name, task, labels)
    if metric is not None:
        return metric
    other = find_metric(name)
    if other is None:
        raise UsageError(
            f"There is no metric {printable(name)!r}.",
            hint=did_you_mean(name, (*METRICS, *custom, *PATTERNS)),
        )
    known = ", ".join(metric.name for metric in metrics_of(task)) or "none"
    raise UsageError(
        f"The metric {printable(name)!r} belongs to {other.task}, and this is a model for {task}.",
        hint=f"Its metrics: {known}.",
    )


def _made(name: str, task: str, labels: Sequence[str] | None) -> Metric | None:
    """A metric whose name says what it is about, where the task has such metrics."""
    if task in ("classification", "multilabel") and (match := _OF_CLASS.fullmatch(name)):
        return _of_class(match[1], match[2], task, labels)
    if task == "regression" and (match := _OF_QUANTILE.fullmatch(name)) and float(match[1]) > 0:
        return pinball(float(match[1]), name)
    if task == "ranking" and (match := _OF_CUT.fullmatch(name)):
        return _CUTS[match[1]](int(match[2]))
    return None


def _of_class(score: str, label: str, task: str, labels: Sequence[str] | None) -> Metric:
    if labels is not None and label not in labels:
        raise UsageError(
            f"The metric {printable(f'{score}[{label}]', 80)!r} is about an unknown class.",
            hint=f"{did_you_mean(label, labels)} Known: {listed(labels, 12, width=40)}.",
        )
    suffix = f"[{label}]"
    code = -1 if labels is None else list(labels).index(label)
    made = (
        class_metrics(lambda _scored: code, suffix=suffix)
        if task == "classification"
        else tag_class_metrics(code, suffix=suffix)
    )
    return next(metric for metric in made if metric.name == score + suffix)


def confusion(scored: Classified) -> Array:
    """Counts [true class, answered class]."""
    cells = np.bincount(scored.truth * scored.classes + scored.answer, minlength=scored.classes**2)
    return cells.reshape(scored.classes, scored.classes)
