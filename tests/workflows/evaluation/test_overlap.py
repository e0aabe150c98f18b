from types import SimpleNamespace

from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.evaluation.overlap import Overlap, overlap_checks, overlap_warnings, same_file

FEW = Overlap("train.csv", 2, 100, (3, 7))
NONE = Overlap("other.csv", 0, 100)


def test_without_a_limit_shared_rows_are_warned_about_and_judge_nothing():
    assert overlap_checks((FEW, NONE), None) == ()
    (warning,) = overlap_warnings((FEW, NONE))
    assert warning.startswith("2 of 100 rows (2.00%) are in train.csv")


def test_more_than_the_limit_fails_with_both_numbers():
    (check,) = overlap_checks((FEW, NONE), 0.01)

    assert (check.verdict, check.measured, check.threshold) == (Verdict.FAIL, "2.00%", "<= 1.00%")
    assert "train.csv" in check.message


def test_new_rows_are_no_pass_of_the_model():
    assert overlap_checks((FEW, NONE), 0.02) == ()


def test_a_limit_without_a_file_to_look_into_is_undecided():
    (check,) = overlap_checks((), 0.0)

    assert check.verdict is Verdict.UNDECIDED


def test_the_training_and_calibration_data_of_the_lineage_are_recognized():
    version = SimpleNamespace(
        ref="colours/1", tags={"mlx.dataset_fingerprint": "abc"}, params={"calibration_fingerprint": "def"}
    )
    subject = SimpleNamespace(version=version)

    assert [one.source for one in same_file(subject, "abc", 9)] == [
        "the rows that colours/1 was registered with as its training data"
    ]
    assert [one.source for one in same_file(subject, "def", 9)] == [
        "the rows that colours/1 was calibrated on"
    ]
    assert same_file(subject, "abc", 9)[0].share == 1
    assert same_file(subject, "", 9) == ()
    assert same_file(SimpleNamespace(version=None), "abc", 9) == ()
