import pytest

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.settings import QuantizationSettings
from mlx_platform.workflows.quantization.judgement import accuracy_gate

DEFAULTS = QuantizationSettings()


def test_a_drop_is_of_accuracy_and_a_rise_of_the_error() -> None:
    assert accuracy_gate("classification", "1pp", DEFAULTS).name == "accuracy max_drop 1pp"
    assert accuracy_gate("classification", "0.5 %rel", DEFAULTS).shown == "0.5%rel"
    assert accuracy_gate("regression", "0.2abs", DEFAULTS).name == "rmse max_rise 0.2abs"


def test_an_error_has_no_points_so_its_default_is_a_share_of_it() -> None:
    assert accuracy_gate("regression", None, DEFAULTS).shown == "2%rel"
    assert accuracy_gate("classification", None, DEFAULTS).shown == "1pp"
    with pytest.raises(UsageError, match="no percentage points"):
        accuracy_gate("regression", "1pp", DEFAULTS)


def test_the_projects_own_limits_stand_in_for_the_defaults() -> None:
    own = QuantizationSettings(max_drop="0.5pp", max_rise="1%rel")

    assert accuracy_gate("classification", None, own).shown == "0.5pp"
    assert accuracy_gate("regression", None, own).shown == "1%rel"
    assert accuracy_gate("classification", "2pp", own).shown == "2pp"


@pytest.mark.parametrize("drop", ["1", "1%", "one", "", "-1pp"])
def test_a_drop_needs_a_unit(drop: str) -> None:
    with pytest.raises(UsageError):
        accuracy_gate("classification", drop, DEFAULTS)


def test_outputs_without_a_meaning_cannot_be_judged() -> None:
    with pytest.raises(UndecidedError, match="declares no task"):
        accuracy_gate("tensors", "1pp", DEFAULTS)
