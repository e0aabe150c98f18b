"""Metrics of class labels. Values equal those of scikit-learn's functions of the same name.

They are computed here because an interval needs them a thousand times, on sums rather than on rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from mlx_platform.evaluation.metric import (
    NO_ROWS,
    ONE_CLASS,
    Metric,
    Trials,
    divide,
    split_strays,
    thirds,
    with_strays,
)
from mlx_platform.evaluation.resample import Blocks, Floats
from mlx_platform.evaluation.scored import Classified, Mask

_Pick = Callable[[Classified], int]
NEVER_TRUE = "no row is of the class"
NEVER_ANSWERED = "the class is never answered"


def _class_counts(scored: Classified, blocks: Blocks) -> Floats:
    """Weight per true class, per answered class, and of right answers per class: [blocks, 3 * classes]."""
    hit = scored.truth == scored.answer
    return np.concatenate(
        [
            blocks.counts(scored.truth, scored.classes),
            blocks.counts(scored.answer, scored.classes),
            blocks.counts(scored.truth, scored.classes, hit),
        ],
        axis=1,
    )


def _width(scored: Classified) -> int:
    return 3 * scored.classes


def _counts_and_strays(scored: Classified, blocks: Blocks) -> Floats:
    return with_strays(_class_counts(scored, blocks))


def _strays_width(scored: Classified) -> int:
    return 4 * scored.classes


def _accuracy(sums: Floats) -> Floats:
    true, _answered, hits = thirds(sums)
    return divide(hits.sum(-1), true.sum(-1), np.nan)


def _macro(scores: Floats, present: Mask, true: Floats) -> Floats:
    # An average over classes says nothing about a truth that holds one class only.
    count = np.where((true > 0).sum(-1) > 1, present.sum(-1), 0)
    return divide((scores * present).sum(-1), count, np.nan)


def _weighted(scores: Floats, true: Floats) -> Floats:
    return divide((scores * true).sum(-1), np.where((true > 0).sum(-1) > 1, true.sum(-1), 0), np.nan)


def _recall(sums: Floats) -> Floats:
    true, _answered, hits = thirds(sums)
    return divide(hits, true, 0.0)


def _precision(sums: Floats) -> Floats:
    _true, answered, hits = thirds(sums)
    return divide(hits, answered, 0.0)


def _f1(sums: Floats) -> Floats:
    true, answered, hits = thirds(sums)
    return divide(2 * hits, true + answered, 0.0)


def _balanced_accuracy(sums: Floats) -> Floats:
    true = thirds(sums)[0]
    return _macro(_recall(sums), true > 0, true)


def _averaged(scores: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """The plain average over the classes that are true or answered somewhere."""

    def average(sums: Floats) -> Floats:
        counts, strays = split_strays(sums)
        true, answered, _hits = thirds(counts)
        return _macro(scores(counts), true + answered + strays > 0, true)

    return average


def _mcc(sums: Floats) -> Floats:
    """Matthews' correlation for any number of classes (Gorodkin, Comp. Biol. Chem. 28, 2004).

    It is 0 where every row gets the same answer, and not defined where every row has the same truth.
    """
    true, answered, hits = thirds(sums)
    total = true.sum(-1)
    covariance = hits.sum(-1) * total - (true * answered).sum(-1)
    spread = (total**2 - (true**2).sum(-1)) * (total**2 - (answered**2).sum(-1))
    value = divide(covariance, np.sqrt(np.maximum(spread, 0.0)), 0.0)
    return np.where((true > 0).sum(-1) > 1, value, np.nan)


def _counted(name: str, value: Callable[[Floats], Floats], undefined: str = ONE_CLASS) -> Metric:
    return Metric(
        name, "classification", "share", True, "score", _class_counts, value, undefined, width=_width
    )


def _every_row(scored: Classified) -> Trials:
    return Trials(np.ones(scored.rows, np.bool_), scored.truth == scored.answer)


def overall_metrics() -> Iterable[Metric]:
    """Those about all classes together."""
    accuracy = _counted("accuracy", _accuracy, NO_ROWS)
    yield replace(accuracy, kind="rate", trials=_every_row, paired=True)
    yield _counted("balanced_accuracy", _balanced_accuracy)
    for name, scores in (("precision", _precision), ("recall", _recall), ("f1", _f1)):
        average = _counted(f"{name}_macro", _averaged(scores))
        yield replace(average, parts=_counts_and_strays, width=_strays_width)
    yield replace(_counted("mcc", _mcc), unit="")
    for name, scores in (("precision", _precision), ("recall", _recall), ("f1", _f1)):

        def value(sums: Floats, scores: Callable[[Floats], Floats] = scores) -> Floats:
            return _weighted(scores(sums), thirds(sums)[0])

        yield replace(_counted(f"{name}_weighted", value), usual=False)


def _one_class(pick: _Pick, scored: Classified, blocks: Blocks) -> Floats:
    """Weight of rows that are of the class, are said to be, and are both: [blocks, 3]."""
    code = pick(scored)
    true, said = scored.truth == code, scored.answer == code
    return blocks.sums(true, said, true & said)


def _class_recall(sums: Floats) -> Floats:
    return divide(sums[..., 2], sums[..., 0], np.nan)


def _class_precision(sums: Floats) -> Floats:
    return divide(sums[..., 2], sums[..., 1], np.nan)


def _class_f1(sums: Floats) -> Floats:
    return divide(2 * sums[..., 2], sums[..., 0] + sums[..., 1], np.nan)


def _recall_trials(pick: _Pick, scored: Classified) -> Trials:
    code = pick(scored)
    return Trials(scored.truth == code, scored.answer == code)


def _precision_trials(pick: _Pick, scored: Classified) -> Trials:
    code = pick(scored)
    return Trials(scored.answer == code, scored.truth == code)


def class_metrics(pick: _Pick, *, suffix: str = "") -> Iterable[Metric]:
    """Precision, recall and F1 of one class.

    Args:
        pick: the class's code, from the scored rows.
        suffix: of the names, such as `[spam]`.
    """
    parts = partial(_one_class, pick)
    for name, value, trials, paired, undefined in (
        ("precision", _class_precision, _precision_trials, False, NEVER_ANSWERED),
        ("recall", _class_recall, _recall_trials, True, NEVER_TRUE),
        ("f1", _class_f1, None, False, f"{NEVER_TRUE}, and {NEVER_ANSWERED}"),
    ):
        yield Metric(
            f"{name}{suffix}",
            "classification",
            "share",
            True,
            "rate" if trials else "score",
            parts,
            value,
            undefined,
            trials=partial(trials, pick) if trials else None,
            paired=paired,
        )


def _positive(scored: Classified) -> int:
    return scored.positive


def _negative(scored: Classified) -> int:
    return 1 - scored.positive


def binary_metrics() -> Iterable[Metric]:
    """Those of the positive class, where there are two."""
    for metric in class_metrics(_positive):
        yield replace(metric, classes="two")
    recall = next(metric for metric in class_metrics(_negative) if metric.name == "recall")
    yield replace(recall, name="specificity", classes="two", undefined="no row is of the negative class")
