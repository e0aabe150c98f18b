import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.inference.dataset import read_dataset

TABLE = {"id": [7, 8, 9], "size": [1.5, None, 3.0], "city": ["Bern", "", "Oslo"], "label": ["a", "b", "a"]}


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pa.table(TABLE), path, write_page_checksum=True, compression="none")
    return path


def same_as_table(dataset):
    assert list(dataset.columns) == list(TABLE)
    assert dataset.rows == 3
    assert dataset.column("id").tolist() == TABLE["id"]
    assert dataset.column("city").tolist() == TABLE["city"]
    assert np.isnan(dataset.column("size")[1])


def test_parquet_csv_and_json_lines_read_alike(parquet, tmp_path):
    csv, jsonl = tmp_path / "data.csv", tmp_path / "data.jsonl"
    csv.write_text("id,size,city,label\n7,1.5,Bern,a\n8,,,b\n9,3.0,Oslo,a\n")
    jsonl.write_text(
        '{"id": 7, "size": 1.5, "city": "Bern", "label": "a"}\n'
        '{"id": 8, "size": null, "city": "", "label": "b"}\n'
        '{"id": 9, "size": 3.0, "city": "Oslo", "label": "a"}\n'
    )

    for path in (parquet, csv, jsonl):
        same_as_table(read_dataset(path))
    assert read_dataset(csv).fingerprint == hashlib.sha256(csv.read_bytes()).hexdigest()


def test_features_are_the_columns_that_are_left_in_file_order(parquet):
    dataset = read_dataset(parquet)

    assert list(dataset.features(label="label", id="id")) == ["size", "city"]
    assert list(dataset.features(weight="size", drop=["city"])) == ["id", "label"]


def test_rows_are_taken_by_index_or_mask(parquet):
    dataset = read_dataset(parquet)

    assert dataset.take([2, 0]).column("id").tolist() == [9, 7]
    assert dataset.take(dataset.column("label") == "a").column("id").tolist() == [7, 9]


def test_a_column_that_is_not_there_is_answered_with_those_that_are(parquet):
    with pytest.raises(UsageError, match="no column 'lable'") as caught:
        read_dataset(parquet).column("lable")
    assert caught.value.hint == "Did you mean 'label'? Columns: id, size, city, label."


def test_other_types_become_arrays_too(tmp_path):
    table = pa.table(
        {
            "day": pa.array([0, None], pa.date32()),
            "kind": pa.array(["x", "y"]).dictionary_encode(),
            "price": pa.array([1, 2], pa.decimal128(5, 2)),
            "flag": [True, False],
            "maybe": [True, None],
            "none": pa.nulls(2),
            "vector": [[1.0, 2.0], [3.0, 4.0]],
            "ragged": [[1], [2, 3]],
            "raw": [b"\x00", b"\xff"],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")

    columns = read_dataset(tmp_path / "d.parquet").columns

    assert columns["day"].dtype.kind == "M"
    assert columns["kind"].tolist() == ["x", "y"]
    assert columns["price"].tolist() == [1, 2]
    assert columns["flag"].dtype == bool
    assert columns["maybe"].tolist() == [True, None]
    assert columns["none"].tolist() == [None, None]
    assert columns["vector"].tolist() == [[1, 2], [3, 4]]
    assert columns["ragged"].tolist() == [[1], [2, 3]]
    assert columns["raw"].tolist() == [b"\x00", b"\xff"]


def test_a_flipped_byte_is_found_by_its_checksum(parquet):
    content = bytearray(parquet.read_bytes())
    content[content.index(b"Bern")] ^= 1
    parquet.write_bytes(content)

    with pytest.raises(UsageError, match="cannot be read"):
        read_dataset(parquet)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("d.csv", "", UndecidedError),
        ("d.csv", "a,b\n", UndecidedError),
        ("d.csv", "a,a\n1,2\n", UsageError),
        ("d.csv", "a,b\n1\n", UsageError),
        ("d.jsonl", '{"a": 1}\n{"a": ', UsageError),
        ("d.parquet", "PAR1", UsageError),
        ("d.xlsx", "x", UsageError),
    ],
)
def test_a_file_that_gives_no_rows_is_undecided_and_a_broken_one_is_unusable(tmp_path, name, content, error):
    (tmp_path / name).write_text(content)

    with pytest.raises(error):
        read_dataset(tmp_path / name)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFoundError):
        read_dataset(tmp_path / "absent.csv")


def test_a_folder_of_images_takes_its_labels_from_its_folders(tmp_path):
    for name, content in (("cat/2.PNG", b"two"), ("dog/1.jpg", b"one"), ("dog/notes.txt", b"")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    dataset = read_dataset(tmp_path)

    assert {name: column.tolist() for name, column in dataset.columns.items()} == {
        "image": [b"two", b"one"],
        "path": ["cat/2.PNG", "dog/1.jpg"],
        "label": ["cat", "dog"],
    }
    (tmp_path / "dog" / "1.jpg").write_bytes(b"other")
    assert read_dataset(tmp_path).fingerprint != dataset.fingerprint


def test_a_folder_without_images_is_undecided(tmp_path):
    with pytest.raises(UndecidedError):
        read_dataset(tmp_path)
