"""Tests for samples too small for a chi-square limit: exact where they can be, seeded where they draw."""

import warnings

import numpy as np

from mlx_platform.drift.scores import ks_distance
from mlx_platform.drift.tally import Bins

DRAWS = 10_000
_SEED = 20_240_115
_EXACT_ROWS = 10_000  # of the larger side, beyond which the limit in n is as good
_CATEGORIES = 50


def ks_p_value(baseline: Bins, window: Bins) -> float:
    """The p-value of the two-sample Kolmogorov-Smirnov test over ordered bins.

    Values that share a bin are ties, which make the test conservative: it never alarms too often.

    Args:
        baseline: counts [K], the bins in ascending order.
        window: counts [K].
    """
    from scipy import stats

    n, m = int(baseline.sum()), int(window.sum())
    if max(n, m) > _EXACT_ROWS:
        effective = max(1, round(n * m / (n + m)))
        return float(stats.kstwo.sf(ks_distance(baseline, window), effective))
    places = np.arange(len(baseline))
    with warnings.catch_warnings():
        # It then answers with the limit distribution, which is what remains.
        warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning)
        result = stats.ks_2samp(np.repeat(places, baseline), np.repeat(places, window), method="exact")
    return float(result.pvalue)


def permutation_p_value(baseline: Bins, window: Bins, *, draws: int = DRAWS, seed: int = _SEED) -> float:
    """The p-value of Pearson's statistic of a 2 x K table when its rows are dealt to the two sides at random.

    Args:
        baseline: counts [K] of categories in any order.
        window: counts [K].
        draws: how often to deal; the smallest possible p-value is 1 / (draws + 1).
        seed: of the draws, so that a report can be repeated.
    """
    pooled = baseline + window
    if len(pooled) > _CATEGORIES:
        # By pooled counts, which dealing does not change.
        order = np.argsort(-pooled, kind="stable")
        head, tail = order[: _CATEGORIES - 1], order[_CATEGORIES - 1 :]
        baseline = np.append(baseline[head], baseline[tail].sum())
        window = np.append(window[head], window[tail].sum())
        pooled = baseline + window
    small = baseline if baseline.sum() < window.sum() else window
    generator = np.random.default_rng(seed)
    dealt = generator.multivariate_hypergeometric(pooled, int(small.sum()), size=draws, method="marginals")
    # With both margins given, Pearson's statistic rises and falls with this sum.
    weights = np.divide(1.0, pooled, out=np.zeros(len(pooled)), where=pooled > 0)
    observed = float(small.astype(np.float64) ** 2 @ weights)
    extreme = np.count_nonzero(dealt.astype(np.float64) ** 2 @ weights >= observed * (1 - 1e-12))
    return (1 + int(extreme)) / (draws + 1)
