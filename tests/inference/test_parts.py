import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.parts import MERGES, Parts

SCORES = {"y": np.array([[1.0, 0.0], [4.0, 3.0], [7.0, 9.0]], dtype=np.float32)}


def parts(merge, counts=(2, 1), weights=(3.0, 1.0, 5.0)):
    return Parts(np.array(counts), np.array(weights), merge)


@pytest.mark.parametrize(
    ("merge", "expected"),
    [("mean", [[1.75, 0.75], [7, 9]]), ("max", [[4, 3], [7, 9]]), ("first", [[1, 0], [7, 9]])],
)
def test_outputs_of_parts_become_outputs_of_rows(merge, expected):
    merged = parts(merge).merged(SCORES)["y"]

    assert merged.tolist() == expected
    assert merged.dtype == np.float32


@pytest.mark.parametrize("merge", MERGES)
def test_rows_that_were_not_split_keep_their_very_outputs(merge):
    codes = {"codes": np.array([3, 1, 2])}

    assert parts(merge, (1, 1, 1)).merged(SCORES | codes)["codes"].tolist() == [3, 1, 2]


def test_every_part_sees_the_other_columns_of_its_row():
    assert parts("mean").spread(np.array([10, 20])).tolist() == [10, 10, 20]


def test_outputs_that_are_no_floats_have_no_mean():
    with pytest.raises(UsageError, match="no mean over parts"):
        parts("mean").merged({"codes": np.array([3, 1, 2])})
    assert parts("first").merged({"codes": np.array([3, 1, 2])})["codes"].tolist() == [3, 2]


def test_outputs_that_are_not_one_per_part_cannot_be_put_together():
    for output in (np.zeros(()), np.zeros((2, 1))):
        with pytest.raises(UsageError, match="not one per part"):
            parts("mean").merged({"y": output})
