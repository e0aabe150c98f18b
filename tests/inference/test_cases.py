import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.cases import golden_line, make_case, read_golden


def written(tmp_path, *lines):
    path = tmp_path / "golden.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_case_is_read_as_it_was_written(tmp_path):
    case = make_case(
        {"x": np.array([[0.1, np.nan]], np.float32)},
        {"label": np.array(["a"], object)},
        rtol=0.5,
        atol=0,
        generated=True,
    )
    (tmp_path / "golden.jsonl").write_bytes(golden_line(case) * 2)

    assert read_golden(tmp_path / "golden.jsonl") == (case, case)
    assert case.rows()["x"].dtype == np.float32


def test_a_person_may_write_rows_plainly(tmp_path):
    path = written(
        tmp_path,
        '{"inputs": {"age": 3, "city": "Bern"}, "outputs": {"label": "yes"}}',
        "",
        '{"inputs": {"x": [[1, 2], [3, 4]]}, "outputs": {"value": [0.5, 1]}, "rtol": 0, "atol": 0.01}',
    )

    one, two = read_golden(path)

    assert one.rows()["city"].tolist() == ["Bern"]
    assert one.expected()["label"].tolist() == ["yes"]
    assert two.rows()["x"].shape == (2, 2)
    assert (two.rtol, two.atol, two.generated) == (0, 0.01, False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is no JSON"),
        ("[]", "inputs and outputs"),
        ('{"inputs": {"x": 1}}', "inputs and outputs"),
        ('{"inputs": {"x": 1}, "outputs": {"y": 1}, "tolerance": 1}', "inputs and outputs"),
        ('{"inputs": {}, "outputs": {"y": 1}}', "at least one column"),
        ('{"inputs": {"x": [[1], [1, 2]]}, "outputs": {"y": 1}}', "not of one shape"),
        ('{"inputs": {"x": null}, "outputs": {"y": 1}}', "numbers or texts"),
        ('{"inputs": {"x": 1}, "outputs": {"y": 1}, "rtol": -1}', "not negative"),
        ('{"inputs": {"x": 1}, "outputs": {"y": 1}, "atol": true}', "not negative"),
        (
            '{"inputs": {"x": {"datatype": "FP32", "shape": [2], "data": [1]}}, "outputs": {"y": 1}}',
            "cannot be read",
        ),
    ],
)
def test_a_line_that_is_no_case_is_refused(tmp_path, line, message):
    with pytest.raises(UsageError, match=message):
        read_golden(written(tmp_path, line))
