import pytest

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.verdict import Verdict
from mlx_platform.quantize.latency import Race
from mlx_platform.workflows.quantization.judgement import _speed_check, accuracy_gate, check_speedup


def test_a_drop_is_of_accuracy_and_a_rise_of_the_error() -> None:
    assert accuracy_gate("classification", "1pp").name == "accuracy max_drop 1pp"
    assert accuracy_gate("classification", "0.5 %rel").shown == "0.5%rel"
    assert accuracy_gate("regression", "0.2abs").name == "rmse max_rise 0.2abs"


def test_an_error_has_no_points_so_its_default_is_a_share_of_it() -> None:
    assert accuracy_gate("regression", None).shown == "2%rel"
    assert accuracy_gate("classification", None).shown == "1pp"
    with pytest.raises(UsageError, match="no percentage points"):
        accuracy_gate("regression", "1pp")


@pytest.mark.parametrize("drop", ["1", "1%", "one", "", "-1pp"])
def test_a_drop_needs_a_unit(drop: str) -> None:
    with pytest.raises(UsageError):
        accuracy_gate("classification", drop)


def test_outputs_without_a_meaning_cannot_be_judged() -> None:
    with pytest.raises(UndecidedError, match="declares no task"):
        accuracy_gate("tensors", "1pp")


@pytest.mark.parametrize(("least", "verdict"), [(1.5, Verdict.PASS), (1.51, Verdict.FAIL)])
def test_the_speed_up_itself_is_compared_with_its_limit(least: float, verdict: Verdict) -> None:
    check = _speed_check(Race(3.0, 2.0, 1.5, 1.2, 1.8, 50), least)

    assert check.verdict is verdict
    assert check.measured == "1.50 [1.20, 1.80]"


@pytest.mark.parametrize("asked", [0.0, -1.0, float("nan"), 1e6])
def test_a_speed_up_without_a_meaning_is_refused(asked: float) -> None:
    with pytest.raises(UsageError, match="cannot be asked for"):
        check_speedup(asked)
