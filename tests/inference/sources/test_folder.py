import hashlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.inference.dataset import read_dataset
from mlx_platform.inference.sources import images
from mlx_platform.inference.sources.opening import open_dataset


def _part(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".arrow":
        table = pa.table(columns)
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(pa.table(columns), path)
    return path


def test_files_follow_each_other_by_name(tmp_path):
    second = _part(tmp_path / "part-1.parquet", x=[3], y=["c"])
    first = _part(tmp_path / "part-0.parquet", x=[1, 2], y=["a", "b"])
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".part-0.parquet.crc").write_bytes(b"x")

    source = open_dataset(tmp_path)

    assert (source.columns, source.rows) == (("x", "y"), 3)
    assert [batch["x"].tolist() for batch in source.batches(10)] == [[1, 2], [3]]
    assert source.locate(2) == f"{second}, row 0"
    names = "".join(
        f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in (first, second)
    )
    assert source.fingerprint == hashlib.sha256(names.encode()).hexdigest()


def test_folders_named_like_values_are_columns(tmp_path):
    _part(tmp_path / "lang=de" / "year=2020" / "a.parquet", x=[1, 2])
    _part(tmp_path / "lang=en" / "year=2021" / "a.parquet", x=[3])

    dataset = read_dataset(tmp_path)

    assert dataset.column("lang").tolist() == ["de", "de", "en"]
    assert dataset.column("year").tolist() == ["2020", "2020", "2021"]
    assert [batch["lang"].tolist() for batch in open_dataset(tmp_path).batches(9, ["lang"])] == [
        ["de", "de"],
        ["en"],
    ]


def test_arrow_shards_with_their_notes_are_one_table(tmp_path):
    for shard in range(3):
        _part(tmp_path / f"data-{shard:05}-of-00003.arrow", x=[shard] * 2)
    (tmp_path / "state.json").write_text("{}")

    source = open_dataset(tmp_path)

    assert source.rows is None
    assert [batch["x"].tolist() for batch in source.batches(9)] == [[0, 0], [1, 1], [2, 2]]
    assert source.position == source.size


def test_parts_without_rows_are_left_out(tmp_path):
    _part(tmp_path / "a.parquet", x=pa.array([], pa.int64()))
    with pytest.raises(UndecidedError, match="no rows"):
        open_dataset(tmp_path)
    _part(tmp_path / "b.parquet", x=[1])

    assert read_dataset(tmp_path).rows == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [({"z": [1]}, "different columns: x, z"), ({"x": ["a"], "w": [1]}, "different columns: w")],
)
def test_parts_of_other_columns_are_named(tmp_path, columns, said):
    _part(tmp_path / "a.parquet", x=[1])
    _part(tmp_path / "b.parquet", **columns)

    with pytest.raises(UsageError) as caught:
        open_dataset(tmp_path)
    assert said in caught.value.message
    assert "b.parquet" in caught.value.message


def test_parts_of_other_types_are_named(tmp_path):
    _part(tmp_path / "a.parquet", x=[1.5])
    _part(tmp_path / "b.parquet", x=[2])
    assert read_dataset(tmp_path).column("x").tolist() == [1.5, 2.0]
    _part(tmp_path / "c.parquet", x=[True])

    with pytest.raises(UsageError, match=r"'x' holds numbers in .*a.parquet, and booleans in .*c.parquet"):
        read_dataset(tmp_path)


def test_a_folder_of_text_files_or_of_everything_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(UsageError, match="only Parquet and Arrow"):
        open_dataset(tmp_path)
    (tmp_path / "b.png").write_bytes(b"x")
    with pytest.raises(UsageError, match="both images and tables"):
        open_dataset(tmp_path)


def test_a_folder_within_that_is_closed_is_not_missed_in_silence(tmp_path, monkeypatch):
    _part(tmp_path / "a.parquet", x=[1])
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)

    with pytest.raises(UsageError, match="closed cannot be read: Permission denied"):
        open_dataset(tmp_path)


def test_an_empty_folder_is_undecided(tmp_path):
    with pytest.raises(UndecidedError):
        open_dataset(tmp_path)


@pytest.fixture
def pictures(tmp_path):
    for number in range(5):
        file = tmp_path / ("cat" if number % 2 else "dog") / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes([number]) * 1000)
    return tmp_path


def test_images_are_read_a_few_at_a_time(pictures, monkeypatch):
    monkeypatch.setattr(images, "_BATCH_BYTES", 2500)
    source = open_dataset(pictures)

    batches = list(source.batches(100))

    assert [len(batch["image"]) for batch in batches] == [2, 2, 1]
    assert np.concatenate([batch["label"] for batch in batches]).tolist() == ["cat"] * 2 + ["dog"] * 3
    assert batches[0]["path"].tolist() == ["cat/1.png", "cat/3.png"]
    assert source.locate(0) == str(pictures / "cat" / "1.png")
    assert source.fingerprint == open_dataset(pictures).fingerprint


def test_labels_alone_need_no_image(pictures):
    (batch,) = open_dataset(pictures).batches(100, ["label"])

    assert list(batch) == ["label"]


def test_an_image_that_changes_or_goes_meanwhile_is_named(pictures):
    source = open_dataset(pictures)
    _fingerprint = source.fingerprint
    (pictures / "cat" / "1.png").write_bytes(b"x" * 1000)
    with pytest.raises(UsageError, match="changed while it was read"):
        list(source.batches(100))
    (pictures / "cat" / "3.png").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"3.png changed while it was read"):
        list(source.batches(100))
    (pictures / "cat" / "1.png").unlink()
    with pytest.raises(UsageError, match=r"1.png cannot be read"):
        list(source.batches(100))


def test_what_is_too_large_to_be_an_image_is_named(pictures, monkeypatch):
    monkeypatch.setattr(images, "_LARGEST", 999)

    with pytest.raises(UsageError, match=r"1.png is larger than"):
        open_dataset(pictures)
