"""Pairs of answer sets that are equally good by construction: whatever a gate says of them is chance."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.evaluation.resample import Codes, Floats
from mlx_platform.evaluation.scored import Classified, Mask, Predicted, Ranked, Scored

_ANSWERS = ("answer", "probabilities")


def equal_copies(
    scored: Scored, other: Scored | None, *, count: int, seed: int
) -> Iterator[tuple[Codes, Scored, Scored]]:
    """Draw rows with repetition, and two sets of answers to them between which there is no true difference.

    With another model, each row's two answers (or those of a whole group) change places at random: the copies
    disagree as much as the models do, and neither is better. Without one, the second copy answers each row as
    the model answered a random row with the same truth, or errs as it did there: it is as good as the model,
    and errs elsewhere.

    Args:
        scored: the model's answers.
        other: another model's answers to the same rows.
        count: how many pairs.
        seed: of everything that is drawn.

    Yields:
        The rows that were drawn, and the two copies.

    Raises:
        UsageError: there is no other model, and the task has no answers that could be exchanged between rows.
    """
    if other is None and not isinstance(scored, Classified | Predicted):
        raise UsageError(
            "A ranking, or a model with several labels a row, is tested against another version.",
            hint="Name one with --against.",
        )
    generator = np.random.default_rng(seed)
    for _ in range(count):
        rows, units = _drawn(scored, generator)
        first = _taken(scored, rows, units)
        second = _alike(first, generator) if other is None else _taken(other, rows, units)
        swapped = generator.random(int(units.max(initial=-1)) + 1)[units] < 0.5
        yield rows, _mixed(first, second, swapped), _mixed(second, first, swapped)


def _drawn(scored: Scored, generator: np.random.Generator) -> tuple[Codes, Codes]:
    """Rows with repetition [any], and which draw of a unit each of them is from [any]."""
    if scored.drawn_by is None:
        rows = generator.integers(0, scored.rows, scored.rows)
        return rows, np.arange(scored.rows)
    _met, units = np.unique(scored.drawn_by, return_inverse=True)
    units = units.reshape(-1)
    order = np.argsort(units, kind="stable")
    sizes = np.bincount(units)
    starts = np.cumsum(sizes) - sizes
    drawn = generator.integers(0, len(sizes), len(sizes))
    lengths = sizes[drawn]
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return order[np.repeat(starts[drawn], lengths) + offsets], np.repeat(np.arange(len(drawn)), lengths)


def _taken(scored: Scored, rows: Codes, units: Codes) -> Scored:
    """The rows; a group that was drawn twice is two groups, and so is a query."""
    taken: Any = scored.take(rows)
    if isinstance(taken, Ranked):
        pairs = np.stack([units, taken.queries], axis=1)
        queries = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        taken = replace(taken, queries=queries)
    found: Scored = taken if taken.groups is None else replace(taken, groups=units)
    return found


def _alike(scored: Scored, generator: np.random.Generator) -> Scored:
    if isinstance(scored, Predicted):
        errors = scored.answer - scored.truth
        return replace(scored, answer=scored.truth + generator.permutation(errors))
    if not isinstance(scored, Classified):
        raise TypeError("checked before")
    # Rows with the same truth change their answers among each other.
    places = np.lexsort((generator.random(scored.rows), scored.truth))
    target = np.argsort(scored.truth, kind="stable")
    partner = np.empty(scored.rows, np.int64)
    partner[target] = places
    probabilities = None if scored.probabilities is None else scored.probabilities[partner]
    return replace(scored, answer=scored.answer[partner], probabilities=probabilities)


def _mixed(first: Scored, second: Scored, swapped: Mask) -> Scored:
    """The first one's answers, and the second one's where they are swapped."""
    names = {entry.name for entry in fields(first)}
    mixed = {
        name: _either(getattr(first, name), getattr(second, name), swapped)
        for name in _ANSWERS
        if name in names
    }
    found: Scored = replace(first, **mixed)  # type: ignore[arg-type]  # same fields, same types
    return found


def _either(ours: Array | None, theirs: Array | None, swapped: Mask) -> Floats | Array | None:
    if ours is None or theirs is None:
        return None
    mask = swapped.reshape(-1, *[1] * (ours.ndim - 1))
    return np.where(mask, theirs, ours)
