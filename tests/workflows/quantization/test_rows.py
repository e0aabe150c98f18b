from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.settings import EvaluationSettings
from mlx_platform.inference.build import build_package
from mlx_platform.inference.model import Model
from mlx_platform.workflows.quantization.rows import MOST_ROWS, Calibration, feeds, read_rows

SETTINGS = EvaluationSettings()


def read(calibration: Path, data: Path, **options):
    return read_rows(SETTINGS, calibration, data, options.pop("label", None), options.pop("taken", ()))


def test_features_are_what_is_left_without_label_id_and_weight(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    extra = {"id": np.arange(100), "weight": np.ones(100)}
    found = read(
        write_rows("c.parquet", rows[:100], **extra),
        write_rows("d.parquet", rows[100:], np.arange(100) % 2, **extra),
    )

    assert set(found.calibration.columns) == set(found.judged) == {"f0", "f1", "f2"}
    assert found.truth.tolist() == [0, 1] * 50
    assert found.warnings == ()


@pytest.mark.parametrize(("ids", "rows"), [([7] * 100, 99), ([None, *map(str, range(99))], 1)])
def test_rows_that_their_ids_do_not_tell_apart_judge_nothing(write_rows, ids, rows) -> None:
    cells = np.random.default_rng(0).normal(size=(200, 3))
    calibration = write_rows("c.parquet", cells[:100])
    problem = rf"{rows} rows? may count twice, as ids of the column '{{}}'"

    named = EvaluationSettings(id="key")
    data = write_rows("d.parquet", cells[100:], np.arange(100) % 2, key=ids)
    with pytest.raises(UsageError, match=problem.format("key")):
        read_rows(named, calibration, data, None, ())
    data = write_rows("e.parquet", cells[100:], np.arange(100) % 2, id=ids)
    with pytest.raises(UndecidedError, match=problem.format("id")):
        read(calibration, data)
    good = write_rows("f.parquet", cells[100:], np.arange(100) % 2, key=np.arange(100))
    assert set(read_rows(named, calibration, good, None, ()).judged) == {"f0", "f1", "f2"}


def test_weights_that_the_settings_name_are_read_and_checked(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    calibration = write_rows("c.parquet", rows[:100])
    named = EvaluationSettings(weight="count")
    good = write_rows("d.parquet", rows[100:], np.arange(100) % 2, count=np.arange(100))
    bad = write_rows("e.parquet", rows[100:], np.arange(100) % 2, count=np.full(100, -1))

    assert read_rows(named, calibration, good, None, ()).weights.tolist() == list(range(100))
    with pytest.raises(UsageError, match=r"e.parquet: .*holds -1, which is no weight"):
        read_rows(named, calibration, bad, None, ())
    without = read_rows(named, calibration, write_rows("f.parquet", rows[100:], np.arange(100) % 2), None, ())
    assert without.weights is None
    assert any("no column 'count' for weights" in warning for warning in without.warnings)


def test_a_column_that_the_model_takes_by_name_stays(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 1))
    calibration = write_rows("c.parquet", rows[:100], weight=np.ones(100))
    data = write_rows("d.parquet", rows[100:], np.arange(100), weight=np.zeros(100))

    assert "weight" in read(calibration, data, taken=("f0", "weight")).judged


def test_many_rows_are_thinned_evenly(write_rows) -> None:
    many = np.arange(2 * MOST_ROWS + 1.0).reshape(-1, 1)
    found = read(write_rows("c.parquet", many), write_rows("d.parquet", many[:50] + 0.5, np.arange(50)))

    kept = found.calibration
    assert kept.rows == MOST_ROWS
    assert (kept.columns["f0"][0], kept.columns["f0"][-1]) == (0, 2 * MOST_ROWS)
    assert kept.rows_in_file == len(many)
    assert kept.name(999) == f"row {2 * MOST_ROWS} of {kept.path}"


def test_rows_that_judge_and_calibrate_are_refused(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(300, 2))
    calibration = write_rows("c.parquet", rows[:200])
    data = write_rows("d.parquet", rows[180:], np.arange(120))

    with pytest.raises(UsageError, match=r"20 of the 120 rows in .*d.parquet are calibration rows too"):
        read(calibration, data)


def test_a_few_such_rows_are_a_warning(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(300, 2))
    found = read(write_rows("c.parquet", rows[:200]), write_rows("d.parquet", rows[199:], np.arange(101)))

    assert found.warnings == (f"1 of the rows in {found.path} are calibration rows too.",)


@pytest.mark.parametrize("side", ["c", "d"])
def test_a_bad_number_is_named_by_file_column_and_row(write_rows, side: str) -> None:
    rows = {"c": np.ones((120, 2)), "d": np.zeros((120, 2))}
    rows[side][17, 1] = np.nan
    paths = [write_rows("c.parquet", rows["c"]), write_rows("d.parquet", rows["d"], np.arange(120))]

    with pytest.raises(UsageError, match=rf"{side}.parquet: column 'f1' holds NaN in row 17"):
        read(*paths)


def test_a_missing_label_column_is_named(write_rows) -> None:
    path = write_rows("c.parquet", np.ones((10, 2)))

    with pytest.raises(UsageError, match="no column 'target'"):
        read(path, path, label="target")


def test_a_missing_file_is_not_found(write_rows, tmp_path: Path) -> None:
    path = write_rows("c.parquet", np.ones((10, 2)), np.arange(10))

    with pytest.raises(NotFoundError):
        read(tmp_path / "absent.parquet", path)


def model_of(tmp_path: Path, shape: list) -> Model:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"], "same")],
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    path = tmp_path / "same.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return Model.load(build_package(path, tmp_path / "package").package)


def calibration_of(rows: int, columns: int) -> Calibration:
    values = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)
    names = {f"f{index}": values[:, index] for index in range(columns)}
    return Calibration(names, np.arange(rows) * 10, Path("c.parquet"), rows * 10)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [(["n", 3], [32, 32, 6]), (["n", "k"], [1] * 70), ([20, 3], [20] * 4)],
    ids=["free rows", "free length", "fixed rows"],
)
def test_rows_come_as_production_would_send_them(tmp_path: Path, shape: list, sizes: list[int]) -> None:
    batches = [batch["x"] for batch in feeds(model_of(tmp_path, shape), calibration_of(70, 3))]

    assert [len(batch) for batch in batches] == sizes
    every = np.concatenate(batches)
    assert every[:70, 0].tolist() == [3.0 * row for row in range(70)]
    assert (every[70:] == every[69]).all()


def test_a_cell_that_the_model_cannot_take_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    calibration = calibration_of(70, 3)
    columns = dict(calibration.columns)
    columns["f1"] = columns["f1"].astype(object)
    columns["f1"][40] = "high"
    bad = Calibration(columns, calibration.numbers, calibration.path, 700)

    with pytest.raises(UsageError, match=r"c.parquet: .*'f1', row 400"):
        list(feeds(model_of(tmp_path, ["n", 3]), bad))


def test_candidates_are_compared_on_rows_that_neither_judge_nor_calibrate_where_there_are_enough(
    write_rows,
) -> None:
    rows = np.random.default_rng(0).normal(size=(MOST_ROWS + 320, 2))
    rows[5] = rows[-1]  # one that judges as well
    found = read(
        write_rows("c.parquet", rows[: MOST_ROWS + 200]),
        write_rows("d.parquet", rows[MOST_ROWS + 200 :], np.arange(120)),
    )

    assert found.search.rows == 200 - (5 not in found.calibration.numbers)
    assert not set(found.search.numbers) & set(found.calibration.numbers)
    assert 5 not in found.search.numbers
    assert found.search.name(0).startswith(f"row {found.search.numbers[0]} of")


def test_few_calibration_rows_are_compared_on_as_well(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 2))
    calibration, data = (
        write_rows("c.parquet", rows[:300]),
        write_rows("d.parquet", rows[300:], np.arange(100)),
    )

    first, again = read(calibration, data).search, read(calibration, data).search

    assert first.rows == 256
    assert first.numbers.tolist() == again.numbers.tolist() == sorted(set(first.numbers))


def test_judging_rows_that_are_the_same_inputs_over_and_over_count_as_one(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 2))
    calibration = write_rows("c.parquet", rows[:200])
    few = np.repeat(rows[200:240], 50, axis=0)

    found = read(calibration, write_rows("d.parquet", few, np.arange(2000) % 2))

    assert len(np.unique(found.groups)) == 40
    assert (found.groups[:50] == found.groups[0]).all()
    assert any("2,000 rows" in said and "40 different inputs" in said for said in found.warnings)
    some = np.concatenate([rows[200:], rows[200:205]])
    assert read(calibration, write_rows("e.parquet", some, np.arange(205) % 2)).groups is None


def test_only_columns_that_the_model_takes_tell_rows_apart(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 2))
    rows[200:, 0] = 1
    calibration, data = (
        write_rows("c.parquet", rows[:200]),
        write_rows("d.parquet", rows[200:], np.arange(200)),
    )

    assert read(calibration, data).groups is None
    assert len(np.unique(read(calibration, data, taken=("f0",)).groups)) == 1


def test_one_row_to_calibrate_on_many_times_is_one_row(write_rows) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    found = read(
        write_rows("c.parquet", np.tile(rows[0], (300, 1))),
        write_rows("d.parquet", rows[1:], np.arange(199)),
    )

    assert any("Only 1 different calibration row:" in said for said in found.warnings)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["f0", "f2", "f1"], r"column 2 is 'f1' in .*c.parquet but 'f2' in .*d.parquet"),
        (["f0", "f1", "g"], "column 3 is 'f2' in .* but 'g' in"),
        (["f0", "f1"], "column 3 is 'f2' in .* but nothing in"),
    ],
)
def test_columns_that_are_taken_by_their_order_must_be_the_same_in_both_files(
    write_rows, columns: list[str], message: str
) -> None:
    import pandas as pd

    rows = np.random.default_rng(0).normal(size=(400, 3))
    calibration = write_rows("c.parquet", rows[:200])
    data = calibration.with_name("d.parquet")
    frame = pd.DataFrame(rows[200:, : len(columns)], columns=columns)
    frame.assign(label=np.arange(200) % 2).to_parquet(data)

    with pytest.raises(UsageError, match=message):
        read(calibration, data)
    assert set(read(calibration, data, taken=columns[:2]).judged) == set(columns)


def test_a_cell_among_rows_that_were_picked_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    picked = calibration_of(70, 3).spread(8)
    assert (picked.numbers[0], picked.numbers[-1], picked.rows) == (0, 690, 8)
    column = picked.columns["f1"].astype(object)
    column[4] = "high"

    with (
        pytest.raises(UsageError, match=rf"c.parquet: Column 'f1', row {picked.numbers[4]}:"),
        picked.named(),
    ):
        model_of(tmp_path, ["n", 3]).predict({**picked.columns, "f1": column})


@pytest.mark.parametrize("side", ["c", "d"])
def test_a_column_that_one_file_lacks_is_named_with_the_file(write_rows, side: str) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    paths = write_rows("c.parquet", rows[:100]), write_rows("d.parquet", rows[100:], np.arange(100))
    lacking = {"c": 0, "d": 1}[side]
    import pandas as pd

    pd.read_parquet(paths[lacking]).drop(columns="f1").to_parquet(paths[lacking])

    with pytest.raises(UsageError, match=rf"{side}.parquet has no column 'f1'"):
        read(*paths, taken=("f0", "f1"))
