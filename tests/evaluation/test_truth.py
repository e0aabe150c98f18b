import numpy as np
import pytest

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.evaluation.truth import label_codes, numbers, score, tag_mask, unknown_labels

LABELS = ("cat", "dog", "3")


@pytest.mark.parametrize(
    "truth",
    [
        text_column(["dog", "3", "cat"]),
        np.array(["dog", "3", "cat"]),
        text_column(["dog", 3, "cat"]),
        text_column(["dog", 3.0, b"cat"]),
    ],
)
def test_labels_are_compared_as_text(truth):
    assert label_codes(truth, LABELS).tolist() == [1, 2, 0]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.float64])
def test_whole_numbers_of_any_type_are_labels(dtype):
    assert label_codes(np.array([2, 0, 1], dtype=dtype), ("0", "1", "2")).tolist() == [2, 0, 1]


@pytest.mark.parametrize("labels", [("False", "True"), ("false", "true"), ("0", "1")])
def test_truth_values_are_labels(labels):
    assert label_codes(np.array([True, False]), labels).tolist() == [1, 0]


def test_equal_numbers_of_different_types_are_spelt_each_for_itself():
    assert label_codes(text_column([1, True, 1.0]), ("1", "True", "1.0")).tolist() == [0, 1, 2]


def test_an_unknown_label_is_refused_with_its_row_and_the_known_ones():
    with pytest.raises(UsageError, match=r"Row 2 of the column 'y' holds the label 'dgo'") as refusal:
        label_codes(text_column(["cat", "dog", "dgo"]), LABELS, "y")

    assert refusal.value.details == {"row": 2}
    assert "'dog'" in refusal.value.hint
    assert "cat, dog, 3" in refusal.value.hint


def test_a_hostile_label_cannot_steer_the_terminal():
    with pytest.raises(UsageError) as refusal:
        label_codes(text_column(["\x1b[31mcat"]), LABELS)

    assert "\x1b" not in refusal.value.message


def test_many_known_labels_are_not_all_listed():
    with pytest.raises(UsageError) as refusal:
        label_codes(text_column(["?"]), [f"label-{i}" for i in range(214)])

    assert "and 202 more" in refusal.value.hint


@pytest.mark.parametrize("cell", [None, float("nan")])
def test_a_missing_truth_is_refused_with_its_row(cell):
    with pytest.raises(UsageError, match=r"Row 1 .* holds no value"):
        numbers(text_column([3, cell]))
    with pytest.raises(UsageError, match=r"Row 1 .* has no label") as refusal:
        label_codes(text_column([3, cell]), LABELS)
    assert refusal.value.hint.startswith("Remove the rows")


def test_an_empty_text_is_a_label_only_where_the_model_has_it():
    with pytest.raises(UsageError, match=r"Row 1 .* has no label"):
        label_codes(text_column(["cat", " "]), ("cat", "dog"))
    assert label_codes(text_column(["cat", ""]), ("cat", "")).tolist() == [0, 1]


def test_numbers_where_the_model_answers_names_are_told_and_the_reverse():
    for cell in (0, 1.0, True, "0"):
        with pytest.raises(UsageError, match=r"holds numbers, such as .*answers names: cat, dog") as refusal:
            label_codes(text_column([cell]), ("cat", "dog"))
        assert "Write the names" in refusal.value.hint
    with pytest.raises(UsageError, match=r"holds names, such as 'cat', .*answers numbers: 0, 1") as refusal:
        label_codes(text_column(["cat"]), ("0", "1"))
    assert "Write the numbers" in refusal.value.hint


@pytest.mark.parametrize("cell", ["1.5", True, np.inf, [1.0]])
def test_a_truth_that_is_no_number_is_refused_for_regression(cell):
    with pytest.raises(UsageError, match=r"Row 1 .* no finite number"):
        numbers(text_column([1, cell]))


def test_numbers_of_any_type_are_read():
    assert numbers(np.array([1, 2], dtype=np.int32)).tolist() == [1.0, 2.0]
    assert numbers(text_column([1, 2.5])).tolist() == [1.0, 2.5]
    with pytest.raises(UsageError, match=r"Row 1 .*inf"):
        numbers(np.array([1.0, np.inf]))


def test_a_truth_of_several_values_a_row_is_refused():
    with pytest.raises(UsageError, match="1-dimensional cells"):
        label_codes(np.zeros((2, 2)), LABELS)


def test_answers_are_taken_by_index_or_by_label():
    truth = text_column(["cat", "dog"])

    by_index = score("classification", truth, {"label_index": np.array([1, 1])}, LABELS)
    by_label = score("classification", truth, {"label": text_column(["dog", "dog"])}, LABELS)

    assert by_index.answer.tolist() == by_label.answer.tolist() == [1, 1]
    assert by_index.probabilities is None


def test_a_model_without_labels_is_evaluated_on_class_numbers():
    answers = {"label_index": np.array([1]), "probabilities": np.array([[0.2, 0.8]], dtype=np.float32)}

    scored = score("classification", np.array([1]), answers)

    assert (scored.classes, scored.truth.tolist()) == (2, [1])
    with pytest.raises(UsageError, match="declares no labels"):
        score("classification", np.array([1]), {"label_index": np.array([1])})


def test_no_rows_and_a_task_without_meaning_are_undecided():
    with pytest.raises(UndecidedError, match="no rows"):
        score("regression", np.array([]), {"value": np.array([])})
    with pytest.raises(UndecidedError, match="cannot be evaluated"):
        score("tensors", np.array([1.0]), {"y": np.array([1.0])})


def test_models_with_different_labels_meet_among_the_labels_of_both():
    answers = {"label_index": np.array([1, 0]), "probabilities": np.array([[0.3, 0.7], [0.6, 0.4]])}

    scored = score(
        "classification", text_column(["cat", "fox"]), answers, ("dog", "cat"), among=("cat", "dog", "fox")
    )

    assert (scored.truth.tolist(), scored.answer.tolist(), scored.classes) == ([0, 2], [0, 1], 3)
    assert scored.probabilities.tolist() == [[0.7, 0.3, 0.0], [0.4, 0.6, 0.0]]


def test_several_labels_of_a_row_are_read_from_lists_and_from_text():
    cells = text_column([["dog", "cat"], "cat|dog", " cat | bird ", "", [], b"dog", np.array(["bird"])])

    mask = tag_mask(cells, ("bird", "cat", "dog"))

    assert mask.astype(int).tolist() == [
        [0, 1, 1],
        [0, 1, 1],
        [1, 1, 0],
        [0, 0, 0],
        [0, 0, 0],
        [0, 0, 1],
        [1, 0, 0],
    ]


@pytest.mark.parametrize(("cell", "problem"), [("cat|cow", "cow"), (None, "no value"), (["cat", 3], "3")])
def test_a_missing_or_unknown_one_among_several_labels_names_its_row(cell, problem):
    with pytest.raises(UsageError, match=f"Row 1 .*{problem}"):
        tag_mask(text_column(["cat", cell]), ("cat", "dog"))


def test_answers_with_several_labels_are_put_beside_the_truth_among_the_labels_of_both_models():
    answers = {"labels": text_column(["b", "a|b"]), "probabilities": np.array([[0.1, 0.9], [0.8, 0.7]])}

    scored = score("multilabel", text_column(["b|c", ""]), answers, ("a", "b"), among=("c", "a", "b"))

    assert scored.truth.astype(int).tolist() == [[1, 0, 1], [0, 0, 0]]
    assert scored.answer.astype(int).tolist() == [[0, 0, 1], [0, 1, 1]]
    assert scored.probabilities.tolist() == [[0, 0.1, 0.9], [0, 0.8, 0.7]]


def test_a_ranking_needs_queries_and_relevance_that_is_not_negative():
    answers = {"value": np.array([0.1, 0.2])}

    scored = score("ranking", np.array([0, 2]), answers, queries=text_column(["q1", "q1"]))

    assert (scored.queries.tolist(), scored.truth.tolist(), scored.units) == ([0, 0], [0, 2], 1)
    with pytest.raises(UsageError, match="one query"):
        score("ranking", np.array([0, 2]), answers)
    with pytest.raises(UsageError, match=r"Row 1 .*relevance -2"):
        score("ranking", np.array([0, -2]), answers, queries=np.array([1, 1]))


def test_weights_and_groups_come_as_columns_of_a_file():
    answers = {"value": np.array([1.0, 2, 3, 4])}
    groups = text_column(["u2", "u1", None, float("nan")])

    scored = score("regression", np.ones(4), answers, weights=np.array([0, 1, 2, 3]), groups=groups)

    assert scored.weights.tolist() == [0.0, 1, 2, 3]
    assert scored.groups.tolist() == [0, 1, 2, 3]  # a row without a group is one of its own


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_that_is_none_names_its_row(weight):
    with pytest.raises(UsageError, match="Row 1 of the column 'weight'"):
        score("regression", np.ones(2), {"value": np.ones(2)}, weights=np.array([1.0, weight]))


def test_the_positive_class_is_named_by_its_label():
    answers = {"label_index": np.array([0, 1])}

    def positive(label):
        return score("classification", np.array([0, 1]), answers, ("0", "1"), positive=label).positive

    assert (positive(""), positive("0"), positive("1")) == (1, 0, 1)
    with pytest.raises(UsageError, match="'2' is none"):
        positive("2")


def test_probabilities_in_the_order_of_the_labels_are_not_copied():
    probabilities = np.full((2, 2), 0.5, np.float32)

    scored = score(
        "classification",
        np.array([0, 1]),
        {"label_index": np.array([0, 1]), "probabilities": probabilities},
        ("0", "1"),
    )

    assert scored.probabilities is probabilities


def test_labels_that_a_model_does_not_know_are_listed_once_in_the_order_of_the_rows():
    truth = np.array(["red", "pink", 3.0, "pink", True], dtype=object)

    assert unknown_labels(truth, ("red", "3")) == ("pink", "1")
    assert unknown_labels(np.array(["red|pink", "|"], dtype=object), ("red",), several=True) == ("pink",)


def test_a_separator_alone_is_a_row_without_labels():
    assert tag_mask(np.array(["|", "", "red"], dtype=object), ("red",)).tolist() == [[False], [False], [True]]
