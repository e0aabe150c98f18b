"""Metrics of rows that are ranked within their query by a score.

Rows with equal scores are in no order: each metric is its average over all of theirs. A query without any
relevant row has no right order and is left out. Queries are resampled, not rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from mlx_platform.evaluation.metric import Metric, divide, mean
from mlx_platform.evaluation.resample import Blocks, Codes, Floats
from mlx_platform.evaluation.scored import Ranked

_UNDEFINED = "no query has a relevant row"
CUT = 10


@dataclass(frozen=True, slots=True)
class _Order:
    """Rows sorted by query and falling score.

    Attributes:
        relevance: of the sorted rows [rows].
        query: code from 0 of the sorted rows [rows].
        place: rank within the query, from 0 [rows].
        tie: code from 0 of the rows with the same query and score [rows].
        first: a row of each query, in the order of the file [queries].
        weights: of the queries, the average of their rows' [queries].
    """

    relevance: Floats
    query: Codes
    place: Codes
    tie: Codes
    first: Codes
    weights: Floats | None

    @property
    def queries(self) -> int:
        return len(self.first)

    def total(self, values: Floats) -> Floats:
        """Values [rows] added up by query."""
        return np.bincount(self.query, values, self.queries).astype(np.float64, copy=False)


def _ordered(scored: Ranked, by: Floats) -> _Order:
    _codes, first, query = np.unique(scored.queries, return_index=True, return_inverse=True)
    query = query.reshape(-1)
    weights = None
    if scored.weights is not None:
        weights = np.bincount(query, scored.weights) / np.bincount(query)
    order = np.lexsort((-by, query))
    query, by = query[order], by[order]
    starts = np.searchsorted(query, np.arange(len(first)))
    new = np.ones(len(query), np.bool_)
    new[1:] = (query[1:] != query[:-1]) | (by[1:] != by[:-1])
    return _Order(
        relevance=scored.truth[order],
        query=query,
        place=np.arange(len(query)) - starts[query],
        tie=np.cumsum(new) - 1,
        first=first,
        weights=weights,
    )


def _sum_by_place(order: _Order, gain: Floats, discount: Floats) -> Floats:
    """The sum of gain times discount of each query [queries], where tied rows share their discounts."""
    shared = np.bincount(order.tie, discount) / np.bincount(order.tie)
    return order.total(gain * shared[order.tie])


def _row_discount(place: Codes, cut: int) -> Floats:
    discounts: Floats = np.where(place < cut, 1 / np.log2(place + 2.0), 0.0)
    return discounts


def _ndcg(cut: int, scored: Ranked) -> tuple[_Order, Floats]:
    """Gain discounted by log2 of the rank, as a share of the best possible (Järvelin, Kekäläinen, 2002)."""
    order, best = _ordered(scored, scored.answer), _ordered(scored, scored.truth)
    gained = _sum_by_place(order, order.relevance, _row_discount(order.place, cut))
    possible = best.total(best.relevance * _row_discount(best.place, cut))
    return order, divide(gained, possible, np.nan)


def ndcg_by_query(scored: Ranked, cut: int = CUT) -> tuple[Codes, Codes, Floats]:
    """Queries one by one: a row of each, how many rows it has, and its NDCG, NaN without a relevant row."""
    order, values = _ndcg(cut, scored)
    return order.first, np.bincount(order.query, minlength=order.queries), values


def _recall(cut: int, scored: Ranked) -> tuple[_Order, Floats]:
    """The share of the relevant rows that are among the first `cut`."""
    order = _ordered(scored, scored.answer)
    relevant = (order.relevance > 0).astype(np.float64)
    found = _sum_by_place(order, relevant, (order.place < cut).astype(np.float64))
    return order, divide(found, order.total(relevant), np.nan)


def _reciprocal_rank(scored: Ranked) -> tuple[_Order, Floats]:
    """One over the rank of the first relevant row."""
    order = _ordered(scored, scored.answer)
    relevant = order.relevance > 0
    tied, hits = np.bincount(order.tie), np.bincount(order.tie, relevant).astype(np.int64)
    ranks = np.full(order.queries, np.nan)
    firsts = np.flatnonzero(relevant)[::-1]
    tie_of = np.full(order.queries, -1)
    tie_of[order.query[firsts]] = order.tie[firsts]  # the last one written is the first in rank
    starts = np.searchsorted(order.tie, np.arange(len(tied)))
    for query in np.flatnonzero(tie_of >= 0):
        tie = tie_of[query]
        ranks[query] = _expected_reciprocal(int(order.place[starts[tie]]), int(tied[tie]), int(hits[tie]))
    return order, ranks


def _expected_reciprocal(before: int, tied: int, hits: int) -> float:
    """The average of 1 / rank of the first of `hits` rows among `tied` ones in random order.

    P(first at j) = P(no hit before j) * hits / (tied - j).
    """
    value, none_yet = 0.0, 1.0
    for place in range(tied - hits + 1):
        chance = hits / (tied - place)
        value += none_yet * chance / (before + place + 1)
        none_yet *= 1 - chance
    return value


def _parts(values: Callable[[Ranked], tuple[_Order, Floats]], scored: Ranked, blocks: Blocks) -> Floats:
    """Weight of the queries with a relevant row, and the sum of their values: [blocks, 2]."""
    order, value = values(scored)
    defined = np.isfinite(value)
    by_query = Blocks(blocks.index[order.first], blocks.count, order.weights)
    return by_query.sums(defined, np.where(defined, value, 0.0))


def _metric(name: str, values: Callable[[Ranked], tuple[_Order, Floats]], *, usual: bool = True) -> Metric:
    parts = partial(_parts, values)
    return Metric(name, "ranking", "share", True, "score", parts, mean(1), _UNDEFINED, usual=usual)


def ranking_metrics() -> Iterable[Metric]:
    """The primary one first."""
    yield ndcg(CUT)
    yield _metric("mrr", _reciprocal_rank)
    yield recall(CUT)


def ndcg(cut: int) -> Metric:
    """Of the first `cut` rows."""
    return _metric(f"ndcg@{cut}", partial(_ndcg, cut), usual=cut == CUT)


def recall(cut: int) -> Metric:
    """Of the first `cut` rows."""
    return _metric(f"recall@{cut}", partial(_recall, cut), usual=cut == CUT)
