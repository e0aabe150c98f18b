import inspect

from mlx_platform.core import errors
from mlx_platform.core.errors import MlxError


def test_every_error_is_one_of_ours_and_has_its_own_exit_code() -> None:
    classes = [
        item for _, item in inspect.getmembers(errors, inspect.isclass) if item.__module__ == errors.__name__
    ]

    assert all(issubclass(item, MlxError) for item in classes)
    assert sorted(item.exit_code for item in classes) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 130]
    assert len({item.code for item in classes}) == len(classes)


def test_an_error_carries_its_hint_and_facts_for_machines() -> None:
    error = errors.ConflictError("production moved", hint="mlx history digits", expected=3, actual=4)

    assert (error.message, error.hint, error.details) == (
        "production moved",
        "mlx history digits",
        {"expected": 3, "actual": 4},
    )
