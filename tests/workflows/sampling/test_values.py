import numpy as np
import pytest

from mlx_platform.core.tensors import text_column
from mlx_platform.workflows.sampling.values import cell_of, masked


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        (np.array([1.5], np.float32), 1.5),
        (np.array([np.nan]), None),
        (np.array([[1, 2]], np.int64), [1, 2]),
        (text_column(["a"]), "a"),
        (text_column([b"\x89PNG.."]), "data:image/png;base64,iVBORy4u"),
        (text_column([b"abc"]), "data:application/octet-stream;base64,YWJj"),
        (np.array([True]), True),
    ],
)
def test_cells_are_what_json_has(column, cell):
    assert cell_of(column, 0) == cell


def test_personal_data_are_masked_and_their_columns_named():
    row = {
        "email": "x",
        "text": "write to ana@example.com",
        "age": 41,
        "scores": [1.0, 2.0],
        "plain": "hi",
    }

    found, names = masked(row)

    assert names == ("email", "text")
    assert found["email"] == "[masked]"
    assert "ana@example.com" not in found["text"]
    assert (found["age"], found["scores"], found["plain"]) == (41, [1.0, 2.0], "hi")
