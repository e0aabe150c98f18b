from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mlx_platform.workflows.quantization.distance import AnswerDistance


class Answers:
    """Stands for a model whose outputs are its answers."""

    def decode(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return dict(tensors)


def distance(before: list[dict[str, Any]], after: list[dict[str, Any]]):
    model: Any = Answers()
    return AnswerDistance(model, before)(after)


def classified(probabilities: list[list[float]]) -> dict[str, Any]:
    array = np.array(probabilities, np.float32)
    return {"label_index": array.argmax(axis=1), "probabilities": array}


def test_classes_are_compared_by_divergence_and_by_how_many_changed() -> None:
    before = [classified([[0.9, 0.1], [0.4, 0.6]]), classified([[0.2, 0.8], [0.7, 0.3]])]
    after = [classified([[0.9, 0.1], [0.6, 0.4]]), classified([[0.2, 0.8], [0.7, 0.3]])]

    found = distance(before, after)

    assert found.loss == 0.25
    assert found.divergence == pytest.approx((0.4 * np.log(0.4 / 0.6) + 0.6 * np.log(0.6 / 0.4)) / 4)


def test_the_same_answers_are_no_distance_apart() -> None:
    batches = [classified([[0.9, 0.1]])]

    assert distance(batches, batches).divergence == distance(batches, batches).loss == 0


def test_values_are_compared_by_their_relative_error() -> None:
    found = distance([{"value": np.array([3.0, 4.0])}], [{"value": np.array([3.0, 4.5])}])

    assert found.loss == found.divergence == pytest.approx(0.1)


def test_several_labels_of_a_row_changed_when_one_of_them_did() -> None:
    before = [{"labels": np.array(["a|b", "b"], object), "probabilities": np.array([[0.9, 0.8], [0.1, 0.7]])}]
    after = [{"labels": np.array(["a", "b"], object), "probabilities": np.array([[0.9, 0.4], [0.1, 0.7]])}]

    found = distance(before, after)

    assert found.loss == 0.5
    assert 0 < found.divergence < 1
