"""Parquet columns arrive as numbers or counts, whatever their Arrow type."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.drift.counts import count, count_chunks
from mlx_platform.drift.profile import build_profile, profile_columns
from mlx_platform.drift.values import Categories, Missing, numbers
from mlx_platform.inference.dataset import read_dataset
from mlx_platform.workflows.drifting.parquet import as_column, chunks, columns, is_plain, open_table


@pytest.mark.parametrize(
    ("cells", "kind", "expected", "missing"),
    [
        ([1, 2], pa.int32(), [1, 2], Missing()),
        ([1, None], pa.int64(), [1.0], Missing(nan=1)),
        ([2**60 + 1], pa.int64(), [2**60 + 1], Missing()),
        ([0.5, None, float("inf")], pa.float32(), [0.5, np.inf], Missing(nan=1)),
        ([0.5, None], pa.float16(), [0.5], Missing(nan=1)),
        ([Decimal("1.5"), None], pa.decimal128(5, 2), [1.5], Missing(nan=1)),
        ([date(1970, 1, 2), None], pa.date32(), [86_400 * 10**9], Missing(null=1)),
        ([datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us", tz="UTC"), [10**9], Missing()),  # noqa: DTZ001 - the type has it
    ],
)
def test_numbers_and_times_are_arrays(
    cells: list[Any], kind: Any, expected: list[Any], missing: Missing
) -> None:
    found = numbers(as_column(pa.chunked_array([pa.array(cells, kind), pa.array([], kind)])))

    assert found.ordered.tolist() == expected
    assert found.missing == missing


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["a", "b", None, "a"]), Categories({"a": 2, "b": 1}, Missing(null=1))),
        (pa.array(["a", "b", "a"]).dictionary_encode(), Categories({"a": 2, "b": 1}, Missing())),
        (pa.array([True, None, True]), Categories({"true": 2}, Missing(null=1))),
        (pa.nulls(3), Categories({}, Missing(null=3))),
        (pa.array([b"a"]), Categories({"a": 1}, Missing())),
    ],
)
def test_texts_are_counted_without_looking_at_every_cell(column: Any, expected: Categories) -> None:
    assert as_column(pa.chunked_array([column])) == expected


def written(path: Path, **cells: Any) -> Path:
    pq.write_table(pa.table(cells), path, row_group_size=70)
    return path


def test_profile_and_counts_are_those_of_the_file_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_platform.workflows.drifting.parquet.BATCH_ROWS", 50)
    generator = np.random.default_rng(0)
    cells = {
        "n": [None if index % 7 == 0 else float(index) for index in range(200)],
        "x": generator.normal(size=200).astype(np.float32),
        "s": [("a", "b", None)[index % 3] for index in range(200)],
        "id": range(200),
    }
    path = written(tmp_path / "rows.parquet", **cells)
    memory = {name: column for name, column in read_dataset(path).columns.items() if name != "id"}

    with open_table(path) as table:
        profile = profile_columns(200, columns(table, {"id"}))
        counts = count_chunks(profile, 200, ({name: column} for name, column in chunks(table, {"id"})))

    assert profile.to_json() == build_profile(memory).to_json()
    expected = count(profile, memory)
    assert [each.document() for each in counts.tallies] == [each.document() for each in expected.tallies]
    assert counts.rows == expected.rows


def test_files_of_other_kinds_are_not_plain(tmp_path: Path) -> None:
    assert is_plain(written(tmp_path / "rows.parquet", x=[1]))
    assert not is_plain(written(tmp_path / "lists.parquet", x=[[1, 2]]))
    assert not is_plain(tmp_path / "missing.parquet")
    (tmp_path / "rows.csv").write_text("x\n1\n")
    assert not is_plain(tmp_path / "rows.csv")
    (tmp_path / "bad.parquet").write_text("x")
    assert not is_plain(tmp_path / "bad.parquet")


def test_a_file_without_rows_is_undecided_and_a_damaged_one_cannot_be_used(tmp_path: Path) -> None:
    with (
        pytest.raises(UndecidedError),
        open_table(written(tmp_path / "none.parquet", x=pa.array([], pa.int64()))),
    ):
        pass
    path = written(tmp_path / "rows.parquet", x=list(range(100)))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UsageError), open_table(path):
        pass
