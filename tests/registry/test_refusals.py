import pytest

from mlx_platform.core.errors import ConflictError, UnavailableError
from mlx_platform.registry.refusals import again, translate


def test_numbers_that_others_took_are_a_conflict_and_tried_again() -> None:
    text = "Model Version creation error (name=m). Giving up after 3 attempts."
    tries = 0

    def write() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise translate(RuntimeError(text), "INTERNAL_ERROR", answered=False, doing="x", shown="y")
        return 7

    assert again(write) == 7
    assert tries == 3


def test_a_conflict_that_stays_is_raised() -> None:
    def write() -> None:
        raise ConflictError("Somebody else was first.")

    with pytest.raises(ConflictError):
        again(write, attempts=2)


def test_what_is_not_a_conflict_is_not_tried_again() -> None:
    tries = 0

    def write() -> None:
        nonlocal tries
        tries += 1
        raise UnavailableError("It does not answer.")

    with pytest.raises(UnavailableError):
        again(write)
    assert tries == 1
