"""Files that are small on disk and not in memory."""

import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.sources import parquet
from mlx_platform.inference.sources.opening import open_dataset
from mlx_platform.inference.sources.pages import largest_page


def _peak() -> int:
    """Peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_text_that_many_rows_share_is_held_once(tmp_path):
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["a" * (1 << 20)]))
    pq.write_table(pa.table({"text": texts}), tmp_path / "d.parquet", compression="zstd")
    before = _peak()

    batches = open_dataset(tmp_path / "d.parquet").batches(5000)
    sizes = [(len(batch["text"]), len(set(map(id, batch["text"].tolist())))) for batch in batches]

    assert sum(rows for rows, _texts in sizes) == 20_000
    assert {texts for _rows, texts in sizes} == {1}
    assert _peak() - before < 1 << 30  # 20 GB were they not shared


def test_texts_of_a_dictionary_keep_their_order_and_gaps(tmp_path):
    table = pa.table({"text": ["b", None, "a", "b"], "raw": [b"\xff", b"", None, b"\xff"]})
    pq.write_table(table, tmp_path / "d.parquet")

    (batch,) = open_dataset(tmp_path / "d.parquet").batches(10)

    assert batch["text"].tolist() == ["b", None, "a", "b"]
    assert batch["raw"].tolist() == [b"\xff", b"", None, b"\xff"]


@pytest.mark.parametrize("kind", ["text", "list"])
def test_a_cell_that_unfolds_to_more_than_a_row_may_take_is_refused(tmp_path, kind):
    zeros = np.zeros(18_000_000, dtype=np.float32)
    cell = (
        pa.array(["a" * (80 << 20)])
        if kind == "text"
        else pa.ListArray.from_arrays(pa.array([0, len(zeros)], pa.int32()), pa.array(zeros))
    )
    pq.write_table(pa.table({"x": cell}), tmp_path / "d.parquet", compression="zstd")
    assert (tmp_path / "d.parquet").stat().st_size < 1 << 20

    with pytest.raises(UsageError, match=r"d.parquet: a row of the column 'x.*' takes [\d,]+ MB; at most 67"):
        open_dataset(tmp_path / "d.parquet")


@pytest.fixture
def one_page(tmp_path):
    zeros = pa.table({"x": np.zeros(2_000_000), "y": np.arange(2_000_000) % 7})
    path = tmp_path / "d.parquet"
    pq.write_table(
        zeros,
        path,
        compression="zstd",
        use_dictionary=["y"],
        data_page_size=1 << 30,
        write_batch_size=2_000_000,
        max_rows_per_page=2_000_000,
    )
    return path


def test_a_page_that_unfolds_to_more_than_fits_is_refused(one_page, monkeypatch):
    monkeypatch.setattr(parquet, "_PAGE_CAP", 8 << 20)

    with pytest.raises(UsageError, match="'x' has a page that unfolds to"):
        next(open_dataset(one_page).batches(10))


def test_the_largest_page_is_found_behind_dictionaries_and_statistics(tmp_path):
    path = tmp_path / "d.parquet"
    values = np.random.default_rng(0).integers(0, 1000, 100_000)
    pq.write_table(
        pa.table({"x": values, "t": [f"text {value}" for value in values]}), path, data_page_size=1 << 14
    )
    group = pq.ParquetFile(path).metadata.row_group(0)

    with path.open("rb") as file:
        sizes = [largest_page(file, group.column(index)) for index in range(2)]

    # Ten bits a value and 20,000 values a page; dictionaries of 1,000 numbers or texts.
    assert all(8_000 <= size <= 32_000 for size in sizes)


def test_wide_rows_come_in_fewer_at_a_time(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    pq.write_table(pa.table({"x": [generator.bytes(10_000) for _row in range(100)]}), tmp_path / "d.parquet")
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 100_000)

    sizes = [len(batch["x"]) for batch in open_dataset(tmp_path / "d.parquet").batches(1000)]

    assert sum(sizes) == 100
    assert max(sizes) <= 10
