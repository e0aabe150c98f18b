from mlx_platform.workflows.differences.part import Change, compare


def test_names_are_compared_in_the_order_of_the_first_side() -> None:
    part = compare("metrics", {"b": 1, "a": 2, "gone": "x"}, {"a": 2, "b": 3, "new": 0.5})

    assert [(change.name, change.before, change.after) for change in part.changes] == [
        ("b", 1, 3),
        ("gone", "x", None),
        ("new", None, 0.5),
    ]
    assert part.same == 1


def test_a_note_makes_equal_values_a_change() -> None:
    part = compare("graph", {"Gemm": 3}, {"Gemm": 3}, {"Gemm": "1 set up differently"})

    assert [change.text for change in part.changes] == ["1 set up differently"]


def test_numbers_have_a_difference_and_texts_have_none() -> None:
    assert Change("f1", 0.8, 0.9).text == "+0.1 (+12.5%)"
    assert Change("loss", -2.0, -1.0).text == "+1 (+50.0%)"
    assert Change("bias", 0.0, 0.25).text == "+0.25"
    assert Change("lr", "0.1", "0.2").text == ""
    assert Change("f1", None, 0.9).difference is None
