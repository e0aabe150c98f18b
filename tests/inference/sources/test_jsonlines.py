import numpy as np
import pytest

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.inference.dataset import read_dataset
from mlx_platform.inference.sources import jsonlines
from mlx_platform.inference.sources.opening import open_dataset


@pytest.fixture
def write(tmp_path):
    def written(content):
        path = tmp_path / "d.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(jsonlines, "_BLOCK", 64)


@pytest.mark.usefixtures("small_blocks")
def test_a_column_that_comes_late_or_becomes_wider_is_that_of_all_rows(write):
    late = '{"a": 2.5, "b": "x", "c": [1.5], "d": {"e": null, "f": 1}, "t": "soon"}\n'
    early = '{"a": 1, "b": null, "c": [1], "d": {"e": true}, "t": "2020-01-02"}\n'

    dataset = read_dataset(write(early * 20 + late))

    assert dataset.column("a").dtype == float
    assert dataset.column("b").tolist() == [None] * 20 + ["x"]
    assert dataset.column("c").tolist() == [[1.0]] * 20 + [[1.5]]
    assert dataset.column("d")[0] == {"e": True, "f": None}
    assert dataset.column("t").tolist() == ["2020-01-02"] * 20 + ["soon"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f'{{"a": {1:55}}}\n{{"a": "x"}}\n', "'a' holds int64 at first, and string from about line 2 on"),
        ('{"a": 1}\n{"a": "x"}\n', "line 2: Column(/a) changed from number to string"),
        ('{"a": 1}\n' * 20 + "\n\n" + '{"a": 1,}\n', "line 23 is no JSON"),
        ('{"a": 1}\n[1]\n', "line 2 is no JSON object"),
        ('{"a": 1}\n{"a": 2}{"a": 3}\n', "line 2 is no JSON"),
        ('{"a": 1, "a": 2}\n', "line 1: Column(/a) was specified twice"),
        (b'{"a": "x"}\n{"a": "\xe9"}\n', "line 2: the byte 0xe9"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}\n", "line 1 is nested more than 100 levels deep"),
        ('{"a":' * 5000 + "1" + "}" * 5000 + "\n", "line 1 is nested more than 100 levels deep"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write, content, said):
    with pytest.raises(UsageError) as caught:
        read_dataset(write(content))
    assert "d.jsonl" in caught.value.message
    assert said in caught.value.message


def test_brackets_within_texts_are_no_nesting(write):
    text = "[{" * 300 + '\\"' + "[" * 300

    assert read_dataset(write(f'{{"a": "{text}"}}\n')).column("a")[0] == text.replace("\\", "")


def test_an_endless_line_is_refused(write, monkeypatch):
    monkeypatch.setattr(jsonlines, "_BLOCK", 256)
    monkeypatch.setattr(jsonlines, "_LONGEST", 1024)

    with pytest.raises(UsageError, match="line 2 is longer than"):
        open_dataset(write('{"a": 1}\n{"a": "' + "x" * 5000 + '"}\n'))


def test_blank_lines_are_no_rows_and_lines_may_end_as_on_windows(write):
    source = open_dataset(write('\n{"a": 1}\r\n\r\n{"a": 2}'))

    assert source.rows == 2
    assert [cell for batch in source.batches(9) for cell in batch["a"].tolist()] == [1, 2]
    assert [source.locate(row).rpartition("line ")[2] for row in (0, 1)] == ["2", "4"]


def test_blank_lines_alone_are_undecided(write):
    with pytest.raises(UndecidedError):
        open_dataset(write("\n\n"))
    with pytest.raises(UsageError, match="no columns"):
        open_dataset(write("{}\n"))


def test_a_byte_order_mark_is_skipped(write):
    assert read_dataset(write(b'\xef\xbb\xbf{"a": 1}\n')).column("a").tolist() == [1]


@pytest.mark.usefixtures("small_blocks")
def test_lines_longer_than_a_block_are_put_together(write):
    rows = "".join(f'{{"a": "{"x" * length}"}}\n' for length in (1, 500, 3))

    assert [len(cell) for cell in read_dataset(write(rows)).column("a")] == [1, 500, 3]


def test_a_column_without_a_single_value_is_missing_everywhere(write):
    dataset = read_dataset(write('{"a": 1, "b": null}\n{"a": 2}\n'))

    assert dataset.column("b").tolist() == [None, None]
    np.testing.assert_array_equal(dataset.column("a"), [1, 2])
