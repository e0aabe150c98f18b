from pathlib import Path

import numpy as np
import pytest

from mlx_platform.core.errors import UndecidedError
from mlx_platform.evaluation.scored import Classified, Predicted, Ranked, Tagged
from mlx_platform.workflows.quantization.chance import constant_for, refuse_chance

DATA = Path("judged.parquet")


def classified(truth: np.ndarray, answer: np.ndarray, weights: np.ndarray | None = None) -> Classified:
    return Classified(truth, answer, None, 3, weights)


@pytest.mark.parametrize("seed", range(5))
def test_a_classifier_that_guesses_is_judged_by_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    guessed = classified(rng.choice(3, 600, p=[0.4, 0.3, 0.3]), np.zeros(600, np.int64))

    with pytest.raises(UndecidedError, match=r"judged.parquet .*not measurably better than one") as caught:
        refuse_chance(guessed, "accuracy", DATA)
    assert caught.value.exit_code == 7


def test_rows_of_one_label_show_no_loss_even_of_a_model_that_is_always_right() -> None:
    with pytest.raises(UndecidedError, match="1 and 1"):
        refuse_chance(classified(np.full(50, 1), np.full(50, 1)), "accuracy", DATA)


def test_two_rare_answers_show_nothing_and_twenty_do() -> None:
    rare = np.zeros(300, np.int64)
    rare[:2] = 1
    with pytest.raises(UndecidedError, match=r"1 and 0\.9933"):
        refuse_chance(classified(rare, rare), "accuracy", DATA)
    rare[:20] = 1
    refuse_chance(classified(rare, rare), "accuracy", DATA)


def test_too_few_rows_are_left_to_the_gate() -> None:
    refuse_chance(classified(np.zeros(5, np.int64), np.zeros(5, np.int64)), "accuracy", DATA)


def test_the_constant_is_the_label_of_the_most_weight() -> None:
    truth = np.array([0, 0, 1])

    found = constant_for(classified(truth, truth, np.array([1.0, 1.0, 5.0])))

    assert found is not None
    assert found.answer.tolist() == [1, 1, 1]
    assert constant_for(classified(truth, truth, np.zeros(3))) is None


def test_a_regression_that_the_mean_equals_is_judged_by_nothing() -> None:
    truth = np.linspace(0.0, 1.0, 60)

    with pytest.raises(UndecidedError, match="rmse"):
        refuse_chance(Predicted(truth, truth[::-1].copy()), "rmse", DATA)
    refuse_chance(Predicted(truth, truth + 0.1), "rmse", DATA)


def test_of_several_labels_the_constant_has_those_of_most_rows() -> None:
    truth = np.array([[True, False], [True, True], [True, False]])

    found = constant_for(Tagged(truth, truth, None))

    assert found is not None
    assert found.answer.tolist() == [[True, False]] * 3


def test_a_ranking_has_no_constant() -> None:
    numbers = np.arange(3.0)

    assert constant_for(Ranked(numbers, numbers, np.zeros(3, np.int64))) is None
