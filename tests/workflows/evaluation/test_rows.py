"""What is read, kept and refused of a file before anything is measured."""

import os
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from linear_models import LABELS, classifier, colours, pack, regressor
from pyarrow import csv

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.settings import EvaluationSettings, Settings
from mlx_platform.evaluation.gates import DatasetRules
from mlx_platform.inference.dataset import read_dataset
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.evaluation import rows as rows_module
from mlx_platform.workflows.evaluation.rows import answer_rows
from mlx_platform.workflows.subject import Subject

RULES = DatasetRules()


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sources = {
        "good": classifier(folder / "good", 5 * np.eye(3)),
        "other": classifier(folder / "other", np.eye(3), labels=("red", "green", "pink")),
        "wide": classifier(folder / "wide", np.eye(4, 3)),
        "lengths": regressor(folder / "lengths", np.ones((3, 1))),
    }
    return {name: Subject(name, None, pack(source), name) for name, source in sources.items()}


@pytest.fixture
def context(tmp_path):
    return make_context(Settings(folder=tmp_path))


@pytest.fixture
def table(tmp_path):
    """Write rows of colours beside other columns, as Parquet or CSV."""

    def write(count=3000, name="rows.parquet", drop=(), **columns):
        features, codes = colours(count)
        whole = {f"x{index}": features[:, index] for index in range(3)}
        whole |= {"label": [LABELS[code] for code in codes]} | columns
        whole = pa.table({key: value for key, value in whole.items() if key not in drop})
        path = tmp_path / name
        csv.write_csv(whole, path) if name.endswith("csv") else pq.write_table(whole, path)
        return path

    return write


def test_answers_are_those_of_the_model_over_all_batches(context, subjects, table):
    rows, (answered,) = answer_rows(context, table(), RULES, [subjects["good"]])

    features, codes = colours(3000)
    assert rows.dataset.rows == 3000
    assert rows.truth.tolist() == [LABELS[code] for code in codes]
    np.testing.assert_array_equal(answered.columns["label_index"], features.argmax(axis=1))
    assert answered.columns["probabilities"].shape == (3000, 3)
    assert answered.labels == LABELS
    assert list(rows.ids[:3]) == [0, 1, 2]


def test_all_models_answer_in_one_pass_and_equal_packages_once(context, subjects, table):
    stages = []

    class Watch:
        @contextmanager
        def stage(self, name, total=None):
            done = []
            yield done.append
            stages.append((name, total, sum(done)))

    context = make_context(context.settings, progress=Watch())
    both = [subjects["good"], subjects["wide"], subjects["good"]]
    extra = table(x3=np.zeros(3000))

    _rows, answers = answer_rows(context, extra, RULES, both)

    assert stages[-1] == ("answering with good and wide", 3000, 3000)
    assert answers[0] is answers[2]
    assert answers[1].columns["label_index"].tolist() == answers[0].columns["label_index"].tolist()


def test_columns_beside_the_inputs_are_kept_and_never_answered(context, subjects, table):
    path = table(
        weight=np.arange(3000) / 7,
        user=[f"u{row % 50}" for row in range(3000)],
        q=np.arange(3000) // 10,
        lang=["de", None, "en"] * 1000,
        id=[f"row {row}" for row in range(3000)],
        label=colours(3000)[0].sum(axis=1),
    )
    rules = DatasetRules(weight="weight", group="user", query="q")

    rows, (answered,) = answer_rows(context, path, rules, [subjects["lengths"]], slices=("lang", "user"))

    np.testing.assert_allclose(answered.columns["value"].reshape(-1), rows.truth, atol=1e-4)
    assert rows.weights.tolist() == (np.arange(3000) / 7).tolist()
    assert (rows.groups[51], rows.queries[11], rows.ids[2999]) == ("u1", 1, "row 2999")
    assert rows.slices["lang"].tolist() == ["de", None, "en"] * 1000
    assert list(rows.slices) == ["lang", "user"]


def test_a_slice_that_a_model_takes_by_place_stays_an_input(context, subjects, table):
    path = table(label=np.zeros(3000))

    rows, (answered,) = answer_rows(context, path, RULES, [subjects["lengths"]], slices=("x0",))

    np.testing.assert_allclose(answered.columns["value"].reshape(-1), colours(3000)[0].sum(axis=1), atol=1e-5)
    np.testing.assert_array_equal(rows.slices["x0"], colours(3000)[0][:, 0])


def test_ids_that_repeat_or_are_missing_are_counted(context, subjects, table):
    path = table(id=["a", "b", None] * 1000)

    rows, _answers = answer_rows(context, path, RULES, [subjects["good"]])

    assert rows.warnings == (
        "1,998 rows repeat an id of the column 'id', first 'a'.",
        "1,000 rows have no id in the column 'id'.",
    )


def test_one_row_that_repeats_an_id_is_told_in_the_singular(context, subjects, table):
    path = table(3, id=["a", " ", "a"])

    rows, _answers = answer_rows(context, path, RULES, [subjects["good"]])

    assert rows.warnings == (
        "1 row repeats an id of the column 'id', first 'a'.",
        "1 row has no id in the column 'id'.",
    )
    assert rows.doubtful_ids == 2


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.parquet numbers"])
def test_ids_that_were_asked_for_are_all_there_and_differ(context, subjects, table, name):
    name, _, numbers = name.partition(" ")
    ids = list(range(3000)) if numbers else [f"r{row}" for row in range(3000)]
    asked = DatasetRules(id="key")
    twice, empty = list(ids), [str(one) for one in ids]
    twice[BAD] = twice[7]
    empty[BAD] = ""
    place, earlier = ("line 2,102", "line 9") if name.endswith("csv") else ("row 2,100", "row 7")

    with pytest.raises(UsageError, match=f"{place}: column 'key' holds the id .*7' again; .* in {earlier}"):
        answer_rows(context, table(name=name, key=twice), asked, [subjects["good"]])
    with pytest.raises(UsageError, match=f"{place}: column 'key' has no id"):
        answer_rows(context, table(name=name, key=empty), asked, [subjects["good"]])
    settings = Settings(folder=context.settings.folder, evaluation=EvaluationSettings(id="key"))
    with pytest.raises(UsageError, match=f"{place}: column 'key' has no id"):
        answer_rows(make_context(settings), table(name=name, key=_with(None, "a")), RULES, [subjects["good"]])


def test_a_usual_id_that_is_the_group_names_no_rows(context, subjects, table):
    path = table(6, id=["a", "a", "b", "", None, "b"])

    rows, _answers = answer_rows(context, path, DatasetRules(group="id"), [subjects["good"]])

    assert rows.warnings == ("2 rows have no group in the column 'id': each is one by itself.",)
    assert (list(rows.ids), rows.doubtful_ids) == ([0, 1, 2, 3, 4, 5], 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1.5, "holds -1.5, which is no weight"),
        (np.inf, "holds inf, not a finite number"),
        (np.nan, "holds no value"),
    ],
)
def test_a_weight_that_is_none_is_named_with_its_place(context, subjects, table, value, said):
    path = table(w=_with(value, 1.0))

    with pytest.raises(UsageError, match=f"rows.parquet, row 2,100: column 'w' {said}") as caught:
        answer_rows(context, path, DatasetRules(weight="w"), [subjects["good"]])
    assert "--weight" in caught.value.hint


def test_a_weight_that_nobody_names_is_warned_about(context, subjects, table):
    path = table(weight=np.ones(3000))

    rows, _answers = answer_rows(context, path, RULES, [subjects["good"]])

    assert rows.weights is None
    assert "'weight' is no input" in rows.warnings[0]


def test_a_weight_of_the_settings_that_is_not_there_is_warned_about(context, subjects, table):
    settings = Settings(folder=context.settings.folder, evaluation=EvaluationSettings(weight="w"))

    rows, _answers = answer_rows(make_context(settings), table(), RULES, [subjects["good"]])

    assert rows.warnings == ("There is no column 'w' for weights; every row counts the same.",)


BAD = 2100
"""A row beyond the second batch."""


def _with(value, usual, count=3000):
    cells = [usual] * count
    cells[BAD] = value
    return cells


@pytest.mark.parametrize(
    ("name", "columns", "said"),
    [
        (
            "rows.parquet",
            {"label": _with("pink", "red")},
            "row 2,100: column 'label' holds the label 'pink'",
        ),
        (
            "rows.csv",
            {"label": _with("pink", "red")},
            "line 2,102: column 'label' holds the label 'pink'",
        ),
        ("rows.parquet", {"label": _with(None, "red")}, "row 2,100: column 'label' has no label"),
        ("rows.csv", {"label": _with("", "red")}, "line 2,102: column 'label' has no label"),
        (
            "rows.csv",
            {"label": [str(row % 3) for row in range(3000)]},
            "line 2: column 'label' holds numbers, such as 0, where the model answers names: red, green",
        ),
        ("rows.csv", {"x1": _with("n/k", "1.5")}, "line 2,102: column 'x1': 'n/k' is no number"),
        (
            "rows.parquet",
            {"x1": _with(None, 1.5)},
            "row 2,100: column 'x1': a value is missing, NaN or infinite",
        ),
        ("rows.parquet", {"x1": _with(1e300, 1.5)}, "row 2,100: column 'x1': 1e+300 does not fit into FP32"),
        ("rows.parquet", {"x1": [[1.0, 2.0]] * 3000}, "rows 0 to 1,023: Column 'x1' holds 2 values per row"),
        (
            "rows.parquet",
            {"x1": _with([1.0], [1.0, 2.0])},
            "rows 0 to 1,023: Column 'x1' holds 2 values per row",
        ),
        (
            "rows.parquet",
            {"x1": np.array(["2020-01-02"] * 3000, "M8[D]")},
            "holds datetime64[D], where numbers",
        ),
        ("rows.parquet", {"drop": ("x1",)}, "rows.parquet has no column 'x1', which the model good takes"),
        ("rows.parquet", {"drop": ("label",)}, "rows.parquet has no column 'label'"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(context, subjects, table, name, columns, said):
    path = table(name=name, **columns)

    with pytest.raises(UsageError) as caught:
        answer_rows(context, path, RULES, [subjects["good"]])
    assert path.name in caught.value.message
    assert said in caught.value.message


def test_a_truth_that_is_no_number_is_named_with_its_place(context, subjects, table):
    path = table(name="rows.csv", label=_with("high", "1.5"))

    with pytest.raises(UsageError, match="line 2,102: column 'label': 'high' is no number"):
        answer_rows(context, path, RULES, [subjects["lengths"]])


def test_a_baseline_that_cannot_answer_is_named(context, subjects, table):
    with pytest.raises(UsageError, match="has no column 'x3', which the baseline wide takes"):
        answer_rows(context, table(), RULES, [subjects["good"], subjects["wide"]])
    with pytest.raises(
        UsageError, match=r"The baseline wide cannot answer these rows. .*row 2,100: column 'x3'"
    ):
        answer_rows(context, table(x3=_with(np.inf, 0.0)), RULES, [subjects["good"], subjects["wide"]])


def test_labels_of_either_model_are_known(context, subjects, table):
    path = table(label=_with("pink", "blue"))

    _rows, answers = answer_rows(context, path, RULES, [subjects["good"], subjects["other"]])

    assert [answered.labels for answered in answers] == [LABELS, ("red", "green", "pink")]


def test_columns_that_are_asked_for_must_be_there(context, subjects, table):
    for rules, slices in ((DatasetRules(id="key"), ()), (DatasetRules(group="user"), ()), (RULES, ("lang",))):
        with pytest.raises(UsageError, match="has no column"):
            answer_rows(context, table(), rules, [subjects["good"]], slices=slices)


def test_other_data_than_the_gates_are_for_are_refused_before_a_model_runs(context, subjects, table):
    with pytest.raises(IntegrityError, match="its SHA-256 is"):
        answer_rows(context, table(), DatasetRules(sha256="0" * 64), [subjects["good"]])
    with pytest.raises(UsageError, match=r"The gates are for data/gate\.parquet"):
        answer_rows(context, table(), DatasetRules(path="data/gate.parquet"), [subjects["good"]])
    with pytest.raises(NotFoundError):
        answer_rows(context, table().with_name("absent.csv"), RULES, [subjects["good"]])


def test_a_file_that_changes_under_the_models_is_refused(context, subjects, table, monkeypatch):
    path = table(name="rows.csv")
    lay_out = rows_module.lay_out

    def touched(*args, **options):
        os.utime(path, ns=(1, 1))
        return lay_out(*args, **options)

    monkeypatch.setattr(rows_module, "lay_out", touched)

    with pytest.raises(UsageError, match="changed while it was read"):
        answer_rows(context, path, RULES, [subjects["good"]])


def test_rows_of_other_files_are_found_whatever_their_format(context, subjects, table):
    train = table(2000, "train.csv")
    table(5, "fresh.parquet", x0=[9.0] * 5)
    rules = DatasetRules(disjoint_from=(str(train), "fresh.parquet"))

    rows, _answers = answer_rows(context, table(), rules, [subjects["good"]])

    found = {overlap.source: overlap for overlap in rows.overlaps}
    assert found[str(train)].shared == 2000
    assert found[str(train)].examples == (0, 1, 2, 3, 4)
    assert (rows.overlaps[1].shared, rows.overlaps[1].rows) == (0, 3000)
    (warning,) = rows.warnings
    assert warning.startswith(f"2,000 of 3,000 rows (66.67%) are in {train}: ")


def test_a_file_without_the_features_cannot_be_compared(context, subjects, table):
    other = table(10, "train.parquet", drop=("x2",))

    with pytest.raises(UsageError, match=r"train.parquet has no column 'x2', so its rows cannot be compared"):
        answer_rows(context, table(), DatasetRules(disjoint_from=(str(other),)), [subjects["good"]])


def test_the_rows_that_a_version_was_calibrated_on_are_looked_for_while_they_are_the_same(
    context, subjects, table
):
    path = table(50, "calibration.parquet")
    params = {"calibration_data": str(path), "calibration_fingerprint": read_dataset(path).fingerprint}
    version = SimpleNamespace(ref="colours/1", number=1, tags={}, params=params)
    subject = replace(subjects["good"], version=version)

    rows, _answers = answer_rows(context, table(), RULES, [subject])
    assert [(one.source, one.shared) for one in rows.overlaps] == [
        (f"{path}, which colours/1 was calibrated on", 50)
    ]

    table(51, "calibration.parquet")
    assert answer_rows(context, table(), RULES, [subject])[0].overlaps == ()
    path.unlink()
    assert answer_rows(context, table(), RULES, [subject])[0].overlaps == ()
