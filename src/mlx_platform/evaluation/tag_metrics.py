"""Metrics of rows that may have any number of classes at once.

Values equal those of scikit-learn; where it asks what a quotient of zeros shall be, a class that is neither
true nor answered anywhere is left out, and a row without any class that gets no answer is right.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from mlx_platform.evaluation.label_metrics import NEVER_ANSWERED, NEVER_TRUE
from mlx_platform.evaluation.metric import (
    NO_ROWS,
    Metric,
    Trials,
    divide,
    mean,
    ones,
    split_strays,
    thirds,
    with_strays,
)
from mlx_platform.evaluation.resample import Blocks, Floats
from mlx_platform.evaluation.scored import Tagged

_NOTHING = "no row has any class, in the truth or in the answers"


def _tag_counts(scored: Tagged, blocks: Blocks) -> Floats:
    """Weight per true class, per answered class, and of right answers per class: [blocks, 3 * classes]."""
    columns = (scored.truth, scored.answer, scored.truth & scored.answer)
    return np.concatenate([blocks.sums(*column.T) for column in columns], axis=1)


def _width(scored: Tagged) -> int:
    return 3 * scored.classes


def _micro(weigh: Callable[[Floats, Floats], Floats], sums: Floats) -> Floats:
    true, answered, hits = (third.sum(-1) for third in thirds(sums))
    return divide(hits, weigh(true, answered), np.nan)


def _counts_and_strays(scored: Tagged, blocks: Blocks) -> Floats:
    return with_strays(_tag_counts(scored, blocks))


def _f1_macro(sums: Floats) -> Floats:
    counts, strays = split_strays(sums)
    true, answered, hits = thirds(counts)
    present = true + answered + strays > 0
    scores = divide(2 * hits, true + answered, 0.0)
    return divide((scores * present).sum(-1), present.sum(-1), np.nan)


def _row_parts(scored: Tagged, blocks: Blocks) -> Floats:
    """Weight, share of wrong classes, exact matches, and overlap over union: [blocks, 4]."""
    wrong = scored.truth != scored.answer
    union = (scored.truth | scored.answer).sum(axis=1).astype(np.float64)
    overlap = (scored.truth & scored.answer).sum(axis=1).astype(np.float64)
    return blocks.sums(ones(scored), wrong.mean(axis=1), ~wrong.any(axis=1), divide(overlap, union, 1.0))


def _exact_matches(scored: Tagged) -> Trials:
    return Trials(np.ones(scored.rows, np.bool_), (scored.truth == scored.answer).all(axis=1))


def tag_metrics() -> Iterable[Metric]:
    """The primary one first: the share of rows whose classes are all right."""
    base = Metric("", "multilabel", "share", True, "score", _row_parts, mean(2), NO_ROWS)
    yield replace(base, name="subset_accuracy", kind="rate", trials=_exact_matches, paired=True)
    counts = replace(base, parts=_tag_counts, width=_width, undefined=_NOTHING)
    for name, weigh in (
        ("f1_micro", lambda true, answered: (true + answered) / 2),
        ("precision_micro", lambda _true, answered: answered),
        ("recall_micro", lambda true, _answered: true),
    ):
        yield replace(counts, name=name, value=partial(_micro, weigh))
    average = replace(counts, parts=_counts_and_strays, width=lambda scored: 4 * scored.classes)
    yield replace(average, name="f1_macro", value=_f1_macro)
    yield replace(base, name="jaccard", value=mean(3))
    yield replace(base, name="hamming_loss", value=mean(1), higher_is_better=False, kind="loss")


def _one_tag(code: int, scored: Tagged, blocks: Blocks) -> Floats:
    true, said = scored.truth[:, code], scored.answer[:, code]
    return blocks.sums(true, said, true & said)


def tag_class_metrics(code: int, *, suffix: str) -> Iterable[Metric]:
    """Precision, recall and F1 of one class."""
    base = Metric("", "multilabel", "share", True, "rate", partial(_one_tag, code), mean(2))
    yield replace(
        base,
        name=f"precision{suffix}",
        value=lambda sums: divide(sums[..., 2], sums[..., 1], np.nan),
        undefined=NEVER_ANSWERED,
        trials=lambda scored: Trials(scored.answer[:, code], scored.truth[:, code]),
    )
    yield replace(
        base,
        name=f"recall{suffix}",
        undefined=NEVER_TRUE,
        trials=lambda scored: Trials(scored.truth[:, code], scored.answer[:, code]),
        paired=True,
    )
    yield replace(
        base,
        name=f"f1{suffix}",
        kind="score",
        value=lambda sums: divide(2 * sums[..., 2], sums[..., 0] + sums[..., 1], np.nan),
        undefined=f"{NEVER_TRUE}, and {NEVER_ANSWERED}",
    )
