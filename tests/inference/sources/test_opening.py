"""What holds for every format."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from pyarrow import csv

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.inference.dataset import read_dataset
from mlx_platform.inference.sources.opening import open_dataset

ROWS = 2500


def _table() -> pa.Table:
    generator = np.random.default_rng(0)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "x": generator.normal(size=ROWS),
            "lang": [["de", "en", None][row % 3] for row in range(ROWS)],
            "flag": generator.random(ROWS) > 0.5,
        }
    )


def _write_parquet(table, path):
    pa.parquet.write_table(table, path, row_group_size=600)


def _write_stream(table, path):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)


def _write_jsonl(table, path):
    import orjson

    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist()))


WRITERS = {
    "d.parquet": _write_parquet,
    "d.csv": csv.write_csv,
    "d.jsonl": _write_jsonl,
    "d.feather": pa.feather.write_feather,
    "stream.arrow": _write_stream,
}


@pytest.fixture(params=list(WRITERS))
def path(tmp_path, request):
    WRITERS[request.param](_table(), tmp_path / request.param)
    return tmp_path / request.param


def _joined(batches, name):
    return [cell for batch in batches for cell in batch[name].tolist()]


def test_batches_are_small_and_hold_all_rows_in_order(path):
    batches = list(open_dataset(path).batches(100))

    assert max(len(batch["id"]) for batch in batches) == 100
    assert _joined(batches, "id") == list(range(ROWS))
    np.testing.assert_array_equal(_joined(batches, "x"), _table()["x"].to_numpy())
    missing = "" if path.suffix == ".csv" else None
    assert _joined(batches, "lang")[:3] == ["de", "en", missing]
    assert {batch["flag"].dtype.kind for batch in batches} == {"b"}


def test_only_the_columns_that_are_asked_for_are_read(path):
    batches = list(open_dataset(path).batches(1000, ["x", "lang"]))

    assert all(set(batch) == {"x", "lang"} for batch in batches)
    assert len(_joined(batches, "x")) == ROWS


def test_rows_are_counted_beforehand_or_bytes_show_how_far_reading_is(path):
    source = open_dataset(path)

    if source.rows is None:
        assert source.size == path.stat().st_size
        places = [source.position for _batch in source.batches(100)]
        assert places == sorted(places)
        assert 0 < source.position <= source.size
    else:
        assert source.rows == ROWS


def test_a_file_that_is_written_to_between_two_passes_is_refused(path):
    source = open_dataset(path)
    list(source.batches(1000))
    stamp = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.write(file.read(1))
    os.utime(path, ns=(stamp + 1, stamp + 1))

    with pytest.raises(UsageError, match="changed while it was read"):
        list(source.batches(1000))
    with pytest.raises(UsageError, match="changed while it was read"):
        source.fingerprint  # noqa: B018 - a property that reads


def test_a_file_that_is_cut_off_while_it_is_read_ends_in_a_sentence(path):
    source = open_dataset(path)
    batches = source.batches(10)
    next(batches)
    os.truncate(path, path.stat().st_size // 2)

    with pytest.raises(UsageError, match="changed while it was read"):
        list(batches)


def test_a_file_that_lost_its_end_is_unusable(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3 - 3])

    with pytest.raises(UsageError):
        list(open_dataset(path).batches(100))


def test_rows_and_batches_come_from_one_reader(path):
    whole = read_dataset(path)

    assert whole.rows == ROWS
    assert whole.fingerprint == open_dataset(path).fingerprint
    assert whole.column("lang").tolist() == _joined(open_dataset(path).batches(7), "lang")


@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)

    with pytest.raises(UsageError, match="no regular file"):
        open_dataset(tmp_path / name)


@pytest.mark.parametrize("name", WRITERS)
def test_an_absent_file_is_not_found_and_an_empty_one_is_undecided(tmp_path, name):
    with pytest.raises(NotFoundError):
        open_dataset(tmp_path / name)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UndecidedError):
        open_dataset(tmp_path / name)


@pytest.mark.parametrize("name", ["d.parquet", "d.feather", "stream.arrow"])
def test_columns_without_rows_are_undecided(tmp_path, name):
    WRITERS[name](_table().slice(0, 0), tmp_path / name)

    with pytest.raises(UndecidedError, match="no rows"):
        open_dataset(tmp_path / name)


@pytest.mark.parametrize("name", WRITERS)
def test_random_bytes_are_no_data(tmp_path, name):
    (tmp_path / name).write_bytes(np.random.default_rng(1).bytes(5000))

    with pytest.raises(UsageError):
        list(open_dataset(tmp_path / name).batches(100))


def test_an_unknown_suffix_is_answered_with_the_known_ones(tmp_path):
    (tmp_path / "d.xlsx").write_text("x")

    with pytest.raises(UsageError) as caught:
        open_dataset(tmp_path / "d.xlsx")
    assert ".arrow" in caught.value.hint


def test_numbers_survive_with_their_types(tmp_path):
    kinds = [pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
    table = pa.table({str(kind): pa.array([0, 1, 2], kind) for kind in kinds})
    pa.parquet.write_table(table, tmp_path / "d.parquet")

    (batch,) = open_dataset(tmp_path / "d.parquet").batches(10)

    assert [column.dtype for column in batch.values()] == [kind.to_pandas_dtype() for kind in kinds]
    assert all(column.tolist() == [0, 1, 2] for column in batch.values())


def test_missing_numbers_and_times_are_no_numbers_and_no_times(tmp_path):
    table = pa.table(
        {
            "whole": pa.array([1, None], pa.int32()),
            "single": pa.array([1.5, None], pa.float32()),
            "time": pa.array([0, None], pa.timestamp("ms", "UTC")),
            "day": pa.array([1, None], pa.date32()),
        }
    )
    pa.parquet.write_table(table, tmp_path / "d.parquet")

    (batch,) = open_dataset(tmp_path / "d.parquet").batches(10)

    assert (batch["whole"].dtype, batch["single"].dtype) == (np.float64, np.float32)
    assert np.isnan([batch["whole"][1], batch["single"][1]]).all()
    assert batch["time"].dtype == "datetime64[ms]"
    assert batch["day"][0] == np.datetime64("1970-01-02")
    assert np.isnat(
        [batch["time"][1].astype("datetime64[ns]"), batch["day"][1].astype("datetime64[ns]")]
    ).all()


def test_lists_of_one_length_are_a_matrix_and_others_stay_lists(tmp_path):
    table = pa.table(
        {
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0]]),
            "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
            "image": pa.array([[[1, 2]], [[3, 4]]]),
            "ragged": [[1], [2, 3]],
            "holes": [[1.0, None], [2.0, 3.0]],
            "tags": [["a"], ["b"]],
            "nothing": [[], []],
        }
    )
    pa.parquet.write_table(table, tmp_path / "d.parquet")

    (batch,) = open_dataset(tmp_path / "d.parquet").batches(10)

    assert [batch[name].shape for name in ("vector", "fixed", "image")] == [(2, 2), (2, 2), (2, 1, 2)]
    for name in ("ragged", "holes", "tags", "nothing"):
        assert batch[name].tolist() == table[name].to_pylist()


@pytest.mark.parametrize("name", ["a\0b.parquet", "x" * 5000 + ".csv", "x" * 5000])
def test_impossible_names_are_refused_in_a_sentence(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be read"):
        open_dataset(tmp_path / name)


@pytest.mark.parametrize(("name", "content"), [("d.csv", "a,b"), ("d.csv", "\n\n"), ("d.jsonl", "\n")])
def test_text_without_rows_is_undecided_or_unusable(tmp_path, name, content):
    (tmp_path / name).write_text(content)

    with pytest.raises((UndecidedError, UsageError)):
        open_dataset(tmp_path / name)
