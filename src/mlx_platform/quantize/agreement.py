"""How far the answers of a quantized model are from those of its original."""

import math

import numpy as np

from mlx_platform.core.tensors import Array

_FLOOR = 1e-12  # a probability of zero would make the divergence infinite


def mean_divergence(before: Array, after: Array) -> float:
    """The mean Kullback-Leibler divergence of probabilities [rows, classes], in nats.

    Infinite where a probability is not a number: such answers are as far away as any.
    Kullback and Leibler, Annals of Mathematical Statistics 22, 1951.
    """
    p = np.clip(before.astype(np.float64), _FLOOR, None)
    q = np.clip(after.astype(np.float64), _FLOOR, None)
    found = float(np.mean(np.sum(p * np.log(p / q), axis=1)))
    return math.inf if math.isnan(found) else found


def relative_error(before: Array, after: Array) -> float:
    """The Euclidean norm of the difference over that of `before`; 0 where both are zero throughout.

    Infinite where it is not a number.
    """
    difference = float(np.linalg.norm((after.astype(np.float64) - before.astype(np.float64)).reshape(-1)))
    norm = float(np.linalg.norm(before.astype(np.float64).reshape(-1)))
    if norm == 0:
        return 0.0 if difference == 0 else float("inf")
    found = difference / norm
    return math.inf if math.isnan(found) else found
