import pytest

from mlx_platform.core.text import did_you_mean, first_line, listed, plural, printable, spark


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ä 漢", "plain ä 漢"),
        ("a\nb", "a\\u000ab"),
        ("\x1b[2J", "\\u001b[2J"),
        ("\u202egnp", "\\u202egnp"),
        ("x" * 2000, "x" * 1023 + "…"),
    ],
)
def test_what_could_steer_a_terminal_is_shown_as_its_code(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_a_misspelt_word_gets_the_closest_known_one_else_all_of_them() -> None:
    assert did_you_mean("acuracy", ["accuracy", "f1_macro"]) == "Did you mean 'accuracy'?"
    assert did_you_mean("zzz", ["b", "a"]) == "Known: a, b."


def test_counts_read_as_english() -> None:
    assert (plural(1, "row"), plural(1234, "row"), plural(0, "row")) == ("1 row", "1,234 rows", "0 rows")


def test_a_long_list_of_names_says_how_many_it_leaves_out() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a\n", "b", "c"], 1) == "a\\u000a and 2 more"


def test_an_error_is_told_by_its_first_line_and_one_that_says_nothing_by_its_type() -> None:
    assert first_line(ValueError("\n  No such thing.\nTraceback")) == "No such thing"
    assert first_line(ValueError()) == "ValueError"


def test_numbers_become_bars_of_a_line_and_what_is_none_a_gap() -> None:
    assert spark([0.0, 0.5, 1.0]) == "▁▅█"
    assert spark([float("nan"), -0.1, 1.1]) == "   "
