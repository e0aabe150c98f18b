import orjson
import pytest

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.serving.rehearsal import rehearse

ROW = {"a": 1, "b": 2, "c": 3, "d": 4}


def test_rows_and_bodies_are_answered_line_by_line(load, tmp_path):
    path = tmp_path / "warm.jsonl"
    path.write_bytes(orjson.dumps(ROW) + b"\n\n" + orjson.dumps({"rows": [ROW, ROW]}) + b"\n")
    assert rehearse(load("table"), path, 60) == 2
    assert rehearse(load("table"), path, -1) == 1
    path.write_bytes(b"[1, 2, 3, 4]\n")
    assert rehearse(load("affine"), path, 60) == 1


@pytest.mark.parametrize("line", [b"{", b'{"a": 1}', b"3", b'{"rows": 1}'])
def test_a_line_that_cannot_be_used_is_named(load, tmp_path, line):
    path = tmp_path / "warm.jsonl"
    path.write_bytes(orjson.dumps(ROW) + b"\n" + line)
    with pytest.raises(UsageError, match="Line 2 of"):
        rehearse(load("table"), path, 60)


def test_a_file_that_is_not_there_is_said(load, tmp_path):
    with pytest.raises(NotFoundError, match="cannot be read"):
        rehearse(load("table"), tmp_path / "none", 60)


def test_a_server_is_ready_only_after_its_warm_up(serve, tmp_path):
    path = tmp_path / "warm.jsonl"
    path.write_bytes(orjson.dumps(ROW))
    assert serve("table", warmup=str(path)).post("/predict", {"rows": [ROW]}).status == 200
    path.write_bytes(b"{}")
    with pytest.raises(AssertionError, match="Line 1 of"):
        serve("table", warmup=str(path))
