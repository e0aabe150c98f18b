"""Answers beside a truth, made from a seed."""

from collections.abc import Callable

import numpy as np
import pytest

from mlx_platform.evaluation.scored import Classified, Predicted

Make = Callable[..., Classified]


@pytest.fixture
def classified() -> Make:
    def make(rows: int = 400, classes: int = 4, right: float = 0.85, seed: int = 0) -> Classified:
        generator = np.random.default_rng(seed)
        truth = generator.integers(0, classes, rows)
        said = np.where(generator.random(rows) < right, truth, generator.integers(0, classes, rows))
        probabilities = generator.dirichlet(np.ones(classes), rows)
        probabilities[np.arange(rows), said] += 1.5
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return Classified(truth, probabilities.argmax(axis=1), probabilities, classes)

    return make


@pytest.fixture
def predicted() -> Callable[..., Predicted]:
    def make(rows: int = 300, noise: float = 1.0, seed: int = 0) -> Predicted:
        generator = np.random.default_rng(seed)
        truth = generator.normal(100, 10, rows)
        return Predicted(truth, truth + generator.normal(0.2, noise, rows))

    return make
