import pytest

from mlx_platform.serving.job import HIGH, LOW, NORMAL
from mlx_platform.serving.priority import priority_of_header, priority_of_parameter
from mlx_platform.serving.refusal import Refusal


@pytest.mark.parametrize(("wish", "place"), [(0, NORMAL), (1, HIGH), (2, NORMAL), (3, LOW)])
def test_one_is_first_and_three_is_last(wish, place):
    assert priority_of_parameter(wish) == place
    assert priority_of_header({b"x-request-priority": str(wish).encode()}) == place


def test_who_says_nothing_gets_the_usual_place():
    assert priority_of_parameter(None) is None
    assert priority_of_header({}) == NORMAL


@pytest.mark.parametrize("wish", [-1, 4, 999, 1.0, "1", True, [], {}])
def test_a_parameter_that_is_no_place_is_refused(wish):
    with pytest.raises(Refusal) as caught:
        priority_of_parameter(wish)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "wish", [b"", b"-1", b"4", b"12", b"high", b"1.0", b"9" * 5000, "²".encode("latin-1")]
)
def test_a_header_that_is_no_place_is_refused(wish):
    with pytest.raises(Refusal) as caught:
        priority_of_header({b"x-request-priority": wish})
    assert caught.value.status == 400
