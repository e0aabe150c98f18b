import pytest

from mlx_platform.registry.anchor import Anchor, anchor_problem, parse_anchor, trail

ROWS = [(1, "one"), (2, "two"), (3, "three")]


def anchor(number: int) -> str:
    return Anchor(number, trail(ROWS)[number]).encode()


def test_an_anchor_reads_back_as_it_was_written() -> None:
    assert parse_anchor(anchor(2)) == Anchor(2, trail(ROWS)[2])


@pytest.mark.parametrize(
    "text", ["", "2", "2 abc", f"0 {'a' * 64}", f"-1 {'a' * 64}", f"2 {'a' * 64}\n", "x" * 9999]
)
def test_what_is_no_anchor_is_none(text: str) -> None:
    assert parse_anchor(text) is None


@pytest.mark.parametrize("text", ["", anchor(1), anchor(3)])
def test_an_anchor_fits_lags_or_is_not_there(text: str) -> None:
    assert anchor_problem(text, trail(ROWS)) == ""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS[:2], "names event 3, and the last one is 2"),
        ([], "there is no journal"),
        ([(1, "one"), (2, "other"), (3, "three")], "events up to 3 are not those"),
        ([(1, "one"), (3, "three")], "events up to 3 are not those"),
        ([(1, "two"), (2, "one"), (3, "three")], "events up to 3 are not those"),
    ],
)
def test_rows_that_are_not_those_of_the_anchor_are_found(rows: list[tuple[int, str]], said: str) -> None:
    assert said in anchor_problem(anchor(3), trail(rows))


def test_an_anchor_that_somebody_wrote_over_is_found() -> None:
    assert anchor_problem("none", trail(ROWS)) == "its anchor cannot be read"
