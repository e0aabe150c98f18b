"""What a training script made of rows, against what the package makes of them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from linear_models import classifier, pack, regressor

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.evaluation.consistency import Tally
from mlx_platform.inference.model import Model
from mlx_platform.workflows.crosscheck.offline import compare_offline

RAW = np.random.default_rng(5).normal(size=(300, 3))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    package = pack(classifier(tmp_path_factory.mktemp("models") / "one", 3 * np.eye(3)))
    return load(package)


def load(package):
    return Model.load(package, name="one", device="cpu")


def compared(model, tmp_path, *, most=None, beside=(), **columns):
    path = tmp_path / "features.parquet"
    raw = {f"x{index}": RAW[:, index] for index in range(3)}
    pq.write_table(pa.table({**raw, **columns}), path)
    tally, seen = Tally(), []
    compare_offline(model, path, tally, beside=beside, most=most, advance=seen.append)
    assert sum(seen) == tally.requests
    return tally


def places(features):
    return {f"x[{index}]": features[:, index] for index in range(3)}


def test_features_that_are_the_same_agree_in_either_layout(model, tmp_path):
    assert compared(model, tmp_path, **places(RAW)).agreement == 1.0
    assert compared(model, tmp_path, x=pa.array(RAW.tolist())).agreement == 1.0


def test_answers_are_compared_as_well(model, tmp_path):
    answers = model.predict({f"x{index}": RAW[:, index] for index in range(3)}).columns
    labels, sure = answers["label"].tolist(), answers["confidence"]
    probabilities = pa.array(answers["probabilities"].tolist())
    tally = compared(model, tmp_path, label=labels, confidence=sure, probabilities=probabilities)
    assert (tally.agreement, tally.label_agreement) == (1.0, 1.0)
    assert set(tally.outputs) == {"label", "confidence", "probabilities"}

    labels[7] = next(label for label in model.labels if label != labels[7])
    tally = compared(model, tmp_path, label=labels, **places(RAW))
    assert (tally.agreeing, tally.diverging_stage) == (299, "output")


@pytest.mark.parametrize(
    ("features", "agreeing"),
    [
        (RAW[:, ::-1], 0),
        (RAW * 1.001, 0),
        (np.where(np.arange(300)[:, None] == 4, np.nan, RAW), 299),
        (RAW.astype(np.float32).astype(np.float64), 300),
        (RAW.astype(np.float16).astype(np.float64), 2),
    ],
)
def test_what_a_script_does_otherwise_is_found_before_the_network(model, tmp_path, features, agreeing):
    tally = compared(model, tmp_path, **places(features))

    assert tally.agreeing == agreeing
    assert tally.diverging_stage == ("tensor" if agreeing < 300 else "")


def test_a_column_of_words_is_no_feature(model, tmp_path):
    tally = compared(model, tmp_path, x=["red"] * 300)

    assert tally.reasons == {"dtype": 900}


def test_a_model_that_takes_columns_in_order_has_its_answers_compared(tmp_path):
    ordered = load(pack(regressor(tmp_path / "ordered", np.array([[1.0], [2.0], [3.0]]))))
    tally = compared(ordered, tmp_path, value=RAW @ [1, 2, 3], beside={"label"}, label=[0] * 300)

    assert (tally.agreement, set(tally.outputs)) == (1.0, {"value"})


def test_so_many_rows_are_compared_and_no_more(model, tmp_path):
    assert compared(model, tmp_path, most=270, **places(RAW)).requests == 270


def test_the_truth_is_not_compared(model, tmp_path):
    with pytest.raises(UsageError, match="nothing that this package makes"):
        compared(model, tmp_path, beside={"label"}, label=["red"] * 300)


def test_a_place_that_is_missing_is_named(model, tmp_path):
    with pytest.raises(UsageError, match="lacks a place of 'x' before 2"):
        compared(model, tmp_path, **{"x[0]": RAW[:, 0], "x[2]": RAW[:, 2]})


def test_a_raw_column_that_is_missing_is_named(model, tmp_path):
    path = tmp_path / "features.csv"
    path.write_text("x0,x1,x[0]\n1,2,3\n")
    with pytest.raises(UsageError, match="no column 'x2'"):
        compare_offline(model, path, Tally(), beside=(), most=None, advance=lambda _rows: None)


def test_no_rows_and_no_file_are_no_agreement(model, tmp_path):
    path = tmp_path / "features.csv"
    with pytest.raises(NotFoundError):
        compare_offline(model, path, Tally(), beside=(), most=None, advance=lambda _rows: None)
    path.write_text("x0,x1,x2,x\n")
    with pytest.raises(UndecidedError):
        compare_offline(model, path, Tally(), beside=(), most=None, advance=lambda _rows: None)


def test_a_cell_that_cannot_be_used_is_named_by_its_row(model, tmp_path):
    path = tmp_path / "features.csv"
    path.write_text("x0,x1,x2,x[0]\n" + "1,2,3,1\n" * 300 + "1,,3,1\n")
    with pytest.raises(UsageError, match="row 300"):
        compare_offline(model, path, Tally(), beside=(), most=None, advance=lambda _rows: None)
