from pathlib import Path

import numpy as np
import pytest

from mlx_platform.core.errors import UndecidedError
from mlx_platform.quantize.sensitivity import Distance, Meter, by_shape, run_all


def test_a_meter_hands_the_outputs_of_all_batches_to_the_comparison(dense: Path) -> None:
    feeds = [{"x": np.full((rows, 16), rows, np.float32)} for rows in (2, 3)]
    original = run_all(dense, feeds)
    seen = []

    def compare(outputs) -> Distance:
        seen.extend(outputs)
        return Distance(0.5, 0.25)

    assert Meter(feeds, compare).measure(dense) == Distance(0.5, 0.25)
    for before, after in zip(original, seen, strict=True):
        np.testing.assert_array_equal(before["y"], after["y"])


def test_a_file_that_does_not_load_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a model")

    with pytest.raises(UndecidedError, match="cannot load"):
        run_all(tmp_path / "model.onnx", [])


def test_rows_of_one_shape_share_a_batch_and_none_is_padded() -> None:
    feeds = [{"ids": np.full((1, length), row)} for row, length in enumerate((3, 5, 3, 3, 5))]

    joined = by_shape(feeds, most=2)

    assert sorted(batch["ids"].shape for batch in joined) == [(1, 3), (2, 3), (2, 5)]
    assert sorted(int(row[0]) for batch in joined for row in batch["ids"]) == [0, 1, 2, 3, 4]
