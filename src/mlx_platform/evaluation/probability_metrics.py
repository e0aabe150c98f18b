"""Metrics of probabilities: how likely the truth was said to be, and whether confidence keeps its word."""

from collections.abc import Iterable

import numpy as np

from mlx_platform.evaluation.metric import NO_PROBABILITIES, Metric, divide, mean, ones, thirds
from mlx_platform.evaluation.resample import Blocks, Floats
from mlx_platform.evaluation.scored import Classified

_ECE_BINS = 15


def probabilities_of(scored: Classified) -> Floats:
    """The probabilities [rows, classes] of answers that carry some."""
    if scored.probabilities is None:
        raise ValueError("the metric needs probabilities")
    return scored.probabilities


def row_log_loss(scored: Classified) -> Floats:
    """The negative log probability of the true class [rows], in nats."""
    true = probabilities_of(scored)[np.arange(scored.rows), scored.truth].astype(np.float64)
    # A probability of zero for what happened must cost much, not everything.
    return -np.log(np.clip(true, np.finfo(np.float64).eps, 1.0))


def _row_brier(scored: Classified) -> Floats:
    probabilities = probabilities_of(scored)
    true = probabilities[np.arange(scored.rows), scored.truth].astype(np.float64)
    squares: Floats = np.einsum("ij,ij->i", probabilities, probabilities, dtype=np.float64)
    # The squared distance from 1 for the true class and from 0 for the others, without a copy of them all.
    squares = np.maximum(squares - 2 * true + 1, 0.0)
    # With two classes both errors are the same one, seen twice.
    return squares / 2 if scored.classes == 2 else squares


def _log_loss_parts(scored: Classified, blocks: Blocks) -> Floats:
    return blocks.sums(ones(scored), row_log_loss(scored))


def _brier_parts(scored: Classified, blocks: Blocks) -> Floats:
    return blocks.sums(ones(scored), _row_brier(scored))


def _ece_parts(scored: Classified, blocks: Blocks) -> Floats:
    """Weight, confidence and right answers by bin of confidence: [blocks, 3 * bins]."""
    confidence = probabilities_of(scored)[np.arange(scored.rows), scored.answer].astype(np.float64)
    bins = np.clip(np.ceil(confidence * _ECE_BINS) - 1, 0, _ECE_BINS - 1).astype(np.int64)
    hit = scored.truth == scored.answer
    return blocks.counts(bins, _ECE_BINS, ones(scored), confidence, hit)


def _ece(sums: Floats) -> Floats:
    """The expected calibration error over 15 bins of equal width (Guo et al., ICML 2017)."""
    rows, confidence, hits = thirds(sums)
    return divide(np.abs(hits - confidence).sum(-1), rows.sum(-1), np.nan)


def probability_metrics() -> Iterable[Metric]:
    """Log loss, Brier score and calibration error."""
    for name, unit, parts, value in (
        ("log_loss", "nats", _log_loss_parts, mean(1)),
        ("brier", "", _brier_parts, mean(1)),
        ("ece", "share", _ece_parts, _ece),
    ):
        yield Metric(name, "classification", unit, False, "loss", parts, value, NO_PROBABILITIES, True)
