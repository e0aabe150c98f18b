from typing import Any

import pytest

from mlx_platform.registry.tolerance import Tolerance, too_wide

POINT = {"max_drop": Tolerance(0.01, relative=False, shown="1pp")}


def judged(amount: Any = 0.01, *, relative: bool = False, limit: str = "max_drop") -> dict[str, Any]:
    return {
        "limit": limit,
        "tolerated": "2pp",
        "tolerated_amount": amount,
        "tolerated_relative": relative,
    }


@pytest.mark.parametrize("amount", [0.01, 0.005, 0.01 + 1e-15])
def test_the_same_limit_or_a_narrower_one_counts(amount: float) -> None:
    assert too_wide(judged(amount), POINT) == ""


@pytest.mark.parametrize("amount", [0.02, None, "0.01", True, float("nan")])
def test_a_wider_limit_or_none_does_not_count(amount: Any) -> None:
    assert too_wide(judged(amount), POINT) == "by 2pp, and 1pp is what may be lost now"


def test_a_share_and_an_amount_cannot_be_compared() -> None:
    assert too_wide(judged(0.001, relative=True), POINT)


def test_evidence_that_does_not_tell_its_limit_does_not_count_where_one_is_set() -> None:
    assert too_wide({}, POINT) == "by a limit that its evidence does not tell"
    assert too_wide({}, {}) == ""


def test_a_limit_for_accuracy_says_nothing_about_an_error() -> None:
    assert too_wide(judged(0.5, relative=True, limit="max_rise"), POINT) == ""
