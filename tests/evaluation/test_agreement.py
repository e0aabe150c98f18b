import numpy as np
import pytest

from mlx_platform.core.tensors import text_column
from mlx_platform.evaluation.agreement import OTHER_BATCH, SAME_RUN, compare_answers, compare_arrays

LOGGED = [0.1, np.nan, np.inf, -0.0, 1.0, 2.0]
REPLAYED = [0.1000001, np.nan, np.inf, 0.0, 1.0009, 2.5]


@pytest.mark.parametrize(("dtype", "agreeing"), [(np.float32, 4), (np.float16, 5)])
def test_floats_agree_within_the_tolerance_of_their_datatype(dtype, agreeing):
    compared = compare_arrays(np.array(LOGGED, dtype), np.array(REPLAYED, dtype))

    assert compared.elements - compared.disagreeing == agreeing
    assert compared.reasons == {"value": 6 - agreeing}


@pytest.mark.parametrize(
    ("logged", "replayed", "reason"),
    [
        ([1.0, np.nan], [1.0, 2.0], "nan_vs_value"),
        ([1.0, 2.0], [1.0, np.nan], "nan_vs_value"),
        ([1.0, np.inf], [1.0, np.nan], "nan_vs_value"),
        ([1.0, np.inf], [1.0, -np.inf], "inf"),
        ([1.0, np.inf], [1.0, 1e300], "inf"),
        ([1.0, 2.0], [1.0, 2.1], "value"),
    ],
)
def test_a_disagreement_has_a_reason(logged, replayed, reason):
    compared = compare_arrays(np.array(logged), np.array(replayed))

    assert (compared.elements, compared.disagreeing) == (2, 1)
    assert compared.reasons == {reason: 1}


def test_the_tolerance_is_symmetric_and_wider_for_another_batch_size():
    a, b = np.array([1.0], np.float32), np.array([1.00005], np.float32)

    for left, right in ((a, b), (b, a)):
        assert compare_arrays(left, right, SAME_RUN).disagreeing == 1
        assert compare_arrays(left, right, OTHER_BATCH).disagreeing == 0


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.bool_])
def test_whole_numbers_and_flags_must_be_equal(dtype):
    compared = compare_arrays(np.array([0, 1], dtype), np.array([0, 0], dtype))

    assert compared.reasons == {"value": 1}


@pytest.mark.parametrize(
    ("logged", "replayed", "reason"),
    [
        (np.zeros(3, np.float32), np.zeros(3), "dtype"),
        (np.zeros((2, 3)), np.zeros((3, 2)), "shape"),
        (np.zeros(2), np.zeros(4), "shape"),
        (np.zeros(2), text_column([0.0, 0.0]), "dtype"),
    ],
)
def test_another_datatype_or_shape_makes_every_element_disagree(logged, replayed, reason):
    compared = compare_arrays(logged, replayed)

    assert compared.disagreeing == compared.elements == max(logged.size, replayed.size)
    assert list(compared.reasons) == [reason]


def test_cells_of_objects_are_compared_by_type_and_value():
    logged = text_column(["a", None, None, 1, float("nan"), 0.1, float("inf"), [1.0, 2.0], [1.0], 1])
    replayed = text_column(["b", None, "x", 1.0, float("nan"), 0.1 + 1e-12, 1.0, [1.0, 2.5], [], 1])

    compared = compare_arrays(logged, replayed)

    assert compared.reasons == {"value": 2, "null_vs_value": 1, "dtype": 1, "inf": 1, "shape": 1}
    assert compared.disagreeing == 6


def test_the_largest_differences_of_finite_numbers_are_kept():
    compared = compare_arrays(np.array([1.0, 10.0, np.nan, 0.0]), np.array([1.5, 10.5, 1.0, 0.0]))

    assert compared.largest == 0.5
    assert compared.differences.largest_relative == pytest.approx(0.5 / 1.5)


def test_an_output_that_only_one_side_has_disagrees():
    answer = compare_answers({"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros(2), "c": np.zeros(4)})

    assert not answer.agrees
    assert answer.outputs["b"].reasons == {"missing_field": 3}
    assert answer.outputs["c"].reasons == {"extra_field": 4}


def test_a_scalar_output_of_one_side_disagrees_as_well():
    assert not compare_answers({"a": np.float64(1.0)}, {}).agrees


def _labelled(codes, probabilities):
    return {
        "label": text_column([str(code) for code in codes]),
        "label_index": np.array(codes),
        "probabilities": np.array(probabilities, np.float32),
    }


def test_a_label_that_flipped_between_equals_is_a_tie_and_no_mismatch():
    tied = compare_answers(_labelled([0], [[0.5, 0.5]]), _labelled([1], [[0.499999, 0.500001]]))
    flipped = compare_answers(_labelled([0], [[0.51, 0.49]]), _labelled([1], [[0.49, 0.51]]))

    assert (tied.agrees, tied.ties, tied.labels_agreeing) == (True, 1, 1)
    assert (flipped.agrees, flipped.ties, flipped.labels_agreeing) == (False, 0, 0)


def test_a_label_that_changed_without_its_probabilities_is_a_mismatch():
    wrong = compare_answers(
        _labelled([0, 1], [[0.9, 0.1], [0.2, 0.8]]), _labelled([1, 1], [[0.9, 0.1], [0.2, 0.8]])
    )
    alone = compare_answers({"label": text_column(["a"])}, {"label": text_column(["b"])})

    assert (wrong.labels, wrong.labels_agreeing, wrong.agrees) == (2, 1, False)
    assert (alone.labels, alone.agrees) == (1, False)


def test_a_hostile_label_index_is_a_mismatch_and_no_crash():
    answer = compare_answers(_labelled([99], [[0.5, 0.5]]), _labelled([1], [[0.5, 0.5]]))

    assert not answer.agrees


def test_outputs_without_labels_have_no_label_agreement():
    assert compare_answers({"y": np.zeros(3)}, {"y": np.zeros(3)}).labels == 0


TOP = {"top_probabilities": np.array([[0.4, 0.4, 0.2]], np.float32)}


def top(*labels):
    return TOP | {"top_labels": text_column(labels).reshape(1, -1)}


@pytest.mark.parametrize("labels", [("b", "a", "c"), ("a", "b", "c")])
def test_equally_likely_labels_may_change_places(labels):
    assert compare_answers(top("a", "b", "c"), top(*labels)).agrees


@pytest.mark.parametrize(
    ("labels", "reasons"),
    [(("a", "c", "b"), {"order": 2}), (("a", "b", "d"), {}), (("d", "b", "c"), {"value": 1})],
)
def test_only_equally_likely_labels_may(labels, reasons):
    found = compare_answers(top("a", "b", "c"), top(*labels), measured=True).outputs["top_labels"]

    assert found.reasons == reasons
    assert found.measures["overlap"].worst == pytest.approx(1.0 if "d" not in labels else 2 / 3)
