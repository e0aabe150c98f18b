"""`mlx dataset`: labels of a sample, from where people label to what is trained on."""

import json
import threading

import numpy as np
import pandas as pd
import pytest

from mlx_platform.core.errors import IntegrityError, NotFoundError, UndecidedError, UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.evaluation.sample_format import SampledRow, read_sample
from mlx_platform.workflows import dataset
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.sampling.export import write_rows


@pytest.fixture
def context(tmp_path):
    return make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))


def row(number, label=None, **fields):
    values = {
        "request_id": f"r-{number}",
        "row": 0,
        "input_hash": f"{number:016x}",
        "time": f"2026-03-08T12:00:{number % 60:02d}Z",
        "model": "digits",
        "version": "2",
        "digest": "d" * 64,
        "arm": "production",
        "strategy": "uncertain",
        "seed": 0,
        "score": 0.5,
        "inclusion_probability": 0.25,
        "weight": 4.0,
        "inputs": {"x0": float(number), "text": f"row {number}"},
        "prediction": {"label": "a", "confidence": 0.5},
        "label": label,
    }
    return SampledRow(**(values | fields))


@pytest.fixture
def written(tmp_path):
    def write(name, *rows, kind="jsonl"):
        path = tmp_path / name
        write_rows(path, rows, kind)
        return path

    return write


def fates(result):
    return {name: found["rows"] for name, found in result.data["increment"]["fates"].items() if found["rows"]}


def test_labels_come_back_and_go_to_training_with_their_weights(context, written, tmp_path):
    labelled = written("l.jsonl", *(row(number, "ab"[number % 2]) for number in range(10)), row(10))

    found = dataset.add(context, "reviews", [labelled])
    out = tmp_path / "train.parquet"
    dataset.export(context, "reviews", out)

    increment = found.data["increment"]
    assert fates(found) == {"labelled": 10, "unlabelled": 1}
    assert (increment["rows"], increment["weight"], increment["parent"]) == (10, 40.0, "")
    assert list(increment["models"]) == ["digits/2"]
    frame = pd.read_parquet(out)
    assert set(frame.columns) == {"x0", "text", "id", "label", "weight"}
    assert frame["weight"].tolist() == [4.0] * 10
    assert sorted(frame["label"]) == ["a"] * 5 + ["b"] * 5
    assert frame["x0"].dtype == np.float64
    assert found.report.next_steps[1] == f"mlx register NAME SOURCE --dataset-version {increment['ref']}"


def test_the_same_labels_again_are_no_new_increment(context, written):
    labelled = written("l.jsonl", row(1, "a"))
    dataset.add(context, "reviews", [labelled])

    with pytest.raises(UndecidedError, match="1 known"):
        dataset.add(context, "reviews", [labelled])

    assert len(dataset.listing(context, "reviews").data["increments"]) == 1


def test_increments_follow_each_other_and_the_newest_label_counts(context, written, tmp_path):
    first = dataset.add(context, "reviews", [written("1.jsonl", row(1, "a"), row(2, "a"))]).data["increment"]
    second = dataset.add(context, "reviews", [written("2.jsonl", row(2, "b"), row(3, "b"))])

    assert second.data["relabelled"] == 1
    assert second.data["increment"]["parent"] == first["digest"]
    out = tmp_path / "train.parquet"
    exported = dataset.export(context, "reviews", out)
    frame = pd.read_parquet(out).set_index("id")["label"]
    assert frame.to_dict() == {"r-1#0": "a", "r-2#0": "b", "r-3#0": "b"}
    assert exported.data["replaced"] == 1
    dataset.export(context, first["ref"], out)
    assert pd.read_parquet(out)["label"].tolist() == ["a", "a"]
    dataset.export(context, "reviews", out, increment_only=True)
    assert len(pd.read_parquet(out)) == 2


def test_a_table_names_rows_by_their_ids(context, written, tmp_path):
    sample = written("s.jsonl", row(1), row(2), row(3))
    (tmp_path / "l.csv").write_text("id,truth\nr-1#0,a\nr-2#0,\nr-9#0,b\n")

    found = dataset.add(context, "reviews", [tmp_path / "l.csv"], sample=sample, label_column="truth")

    assert fates(found) == {"labelled": 1, "unlabelled": 1, "unknown": 1}
    assert "1 ids are in no sample: r-9#0." in found.warnings


def test_an_export_of_label_studio_has_the_annotations_of_people(context, written, tmp_path):
    sample = written("s.jsonl", *(row(number) for number in range(5)))

    def task(number, *choices, cancelled=False):
        results = [{"type": "choices", "value": {"choices": [choice]}} for choice in choices]
        annotations = [{"was_cancelled": cancelled, "result": [result]} for result in results]
        return {"data": {"id": f"r-{number}#0"}, "annotations": annotations, "predictions": [{"result": []}]}

    tasks = [task(0, "a"), task(1, "a", "a"), task(2, "a", "b"), task(3), task(4, "a", cancelled=True)]
    (tmp_path / "export.json").write_text(json.dumps(tasks))

    found = dataset.add(context, "reviews", [tmp_path / "export.json"], sample=sample)

    assert fates(found) == {"labelled": 2, "repeated": 1, "contradicted": 1, "unlabelled": 2}


def test_labels_that_contradict_each_other_are_never_used(context, written):
    same = {"input_hash": "f" * 16}
    rows = (row(1, "a"), row(2, "a", **same), row(3, "b", **same), row(4, "a", input_hash="e" * 16))
    again = written("2.jsonl", row(1, "b"), row(5, "a", input_hash="e" * 16))

    found = dataset.add(context, "reviews", [written("1.jsonl", *rows), again])

    assert fates(found) == {"labelled": 1, "contradicted": 3, "repeated": 1}


def test_masked_rows_cannot_be_trained_on_unless_somebody_says_so(context, written):
    labelled = written("l.jsonl", row(1, "a", masked=("text",)), row(2, "a"))

    assert fates(dataset.add(context, "one", [labelled])) == {"labelled": 1, "masked": 1}
    assert fates(dataset.add(context, "two", [labelled], keep_masked=True)) == {"labelled": 2}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.jsonl", '{"a": 1}\n', "line 1"),
        ("l.jsonl", "no json\n", "it is no JSON"),
        ("l.csv", "id,label\nr-1#0,a\n", "names rows by their ids"),
    ],
)
def test_files_that_cannot_be_read_are_refused(context, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)

    with pytest.raises(UsageError, match=message):
        dataset.add(context, "reviews", [tmp_path / name])
    assert dataset.listing(context).data["increments"] == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.csv", "id,other\n1,2\n", "no column 'label'"),
        ("l.json", "{}", "no list of tasks"),
        ("l.json", "[1]", "without the id"),
        ("l.json", "[", "Cannot read"),
        ("l.json", '[{"data": {"id": "r-1#0"}, "annotations": 5}]', "'annotations' of a task is no list"),
        ("l.json", '[{"data": {"id": "r-1#0"}, "annotations": [{"result": 5}]}]', "'result' of a task"),
    ],
)
def test_labels_in_another_form_are_refused(context, written, tmp_path, name, content, message):
    sample = written("s.jsonl", row(1))
    (tmp_path / name).write_text(content)

    with pytest.raises(UsageError, match=message):
        dataset.add(context, "reviews", [tmp_path / name], sample=sample)


def test_labels_of_two_types_are_refused_in_one_import_and_over_two(context, written):
    with pytest.raises(UsageError, match="truth values and others are text"):
        dataset.add(context, "reviews", [written("l.jsonl", row(1, "a"), row(2, True))])
    dataset.add(context, "reviews", [written("1.jsonl", row(1, "a"))])
    with pytest.raises(UsageError, match="text and others are numbers"):
        dataset.add(context, "reviews", [written("2.jsonl", row(2, 3))])


def test_whole_numbers_and_others_are_labels_of_one_dataset(context, written, tmp_path):
    dataset.add(context, "prices", [written("l.jsonl", row(1, 3), row(2, 3.5))])
    dataset.export(context, "prices", tmp_path / "o.parquet")

    assert pd.read_parquet(tmp_path / "o.parquet")["label"].tolist() == [3.0, 3.5]


def test_true_and_one_contradict_each_other(context, written):
    files = [written("1.jsonl", row(1, True), row(2, True)), written("2.jsonl", row(1, 1))]

    assert fates(dataset.add(context, "reviews", files)) == {"labelled": 1, "contradicted": 1}


def test_a_labelled_row_that_the_sample_does_not_have_is_not_used(context, written):
    labelled = written("l.jsonl", row(1, "a"), row(9, "b"))

    found = dataset.add(context, "reviews", [labelled], sample=written("s.jsonl", row(1)))

    assert fates(found) == {"labelled": 1, "unknown": 1}


@pytest.mark.parametrize("column", ["id", "label", "weight", "mlx.time"])
def test_an_input_is_never_overwritten_by_a_column_of_the_dataset(context, written, column):
    with pytest.raises(UsageError, match=f"column '{column}'"):
        dataset.add(context, "reviews", [written("l.jsonl", row(1, "a", inputs={"x0": 1.0, column: 7.0}))])
    assert dataset.listing(context).data["increments"] == []


def test_a_column_that_the_first_row_lacks_is_kept(context, written, tmp_path):
    rows = (row(1, "a", inputs={"x0": 1.0}), row(2, "b", inputs={"x0": 2.0, "x1": 5.0}))
    dataset.add(context, "reviews", [written("l.jsonl", *rows)])
    dataset.export(context, "reviews", tmp_path / "o.parquet")

    column = pd.read_parquet(tmp_path / "o.parquet")["x1"]
    assert column.isna().tolist() == [True, False]
    assert column[1] == 5.0


@pytest.mark.parametrize("name", ["../up", "a/b", "", "-a", "a b"])
def test_a_name_that_is_no_folder_of_its_own_is_refused(context, written, name):
    with pytest.raises(UsageError, match="no name of a dataset"):
        dataset.add(context, name, [written("l.jsonl", row(1, "a"))])


def test_what_is_not_there_is_not_found(context, written, tmp_path):
    with pytest.raises(NotFoundError):
        dataset.show(context, "reviews")
    dataset.add(context, "reviews", [written("l.jsonl", row(1, "a"))])
    with pytest.raises(NotFoundError, match="no increment"):
        dataset.show(context, "reviews@ffff")
    with pytest.raises(NotFoundError):
        dataset.add(context, "reviews", [tmp_path / "gone.jsonl"])


def test_an_increment_that_was_tampered_with_is_not_used(context, written, tmp_path):
    increment = dataset.add(context, "reviews", [written("l.jsonl", row(1, "a"), row(2, "b"))]).data[
        "increment"
    ]
    rows = tmp_path / "datasets" / "reviews" / increment["digest"][:16] / "rows.parquet"
    pd.read_parquet(rows).assign(label="b").to_parquet(rows)

    with pytest.raises(IntegrityError, match="not those that were imported"):
        dataset.export(context, "reviews", tmp_path / "out.parquet")


def test_a_missing_increment_in_between_is_noticed(context, written, tmp_path):
    first = dataset.add(context, "reviews", [written("1.jsonl", row(1, "a"))]).data["increment"]
    dataset.add(context, "reviews", [written("2.jsonl", row(2, "a"))])
    folder = tmp_path / "datasets" / "reviews" / first["digest"][:16]
    folder.rename(tmp_path / "away")

    with pytest.raises(IntegrityError, match="that is not there"):
        dataset.listing(context)


def test_two_imports_at_once_follow_each_other(context, written):
    files = [written(f"{part}.jsonl", *(row(10 * part + n, "a") for n in range(5))) for part in range(4)]
    threads = [threading.Thread(target=dataset.add, args=(context, "reviews", [file])) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    chain = dataset.listing(context, "reviews").data["increments"]
    assert [each["parent"] for each in chain] == ["", *(each["digest"] for each in chain[:-1])]
    assert sum(each["rows"] for each in chain) == 20


def test_the_same_labels_are_taken_once_by_imports_at_once(context, written):
    labelled = written("l.jsonl", *(row(number, "a") for number in range(20)))
    ended = []

    def take():
        try:
            ended.append(dataset.add(context, "reviews", [labelled]).data["increment"]["ref"])
        except UndecidedError:
            ended.append("nothing new")

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (only,) = dataset.listing(context, "reviews").data["increments"]
    assert sorted(ended) == sorted(["nothing new"] * 3 + [only["ref"]])


def test_a_training_with_the_weights_learns_the_traffic_and_not_the_sample(context, written, tmp_path):
    from sklearn.dummy import DummyClassifier

    heavy = (row(number, "a", weight=50.0, inclusion_probability=0.02) for number in range(2))
    light = (row(number, "b", weight=1.0, inclusion_probability=1.0) for number in range(2, 10))
    dataset.add(context, "reviews", [written("l.jsonl", *heavy, *light)])
    dataset.export(context, "reviews", tmp_path / "o.parquet")
    frame = pd.read_parquet(tmp_path / "o.parquet")

    model = DummyClassifier().fit(frame[["x0"]], frame["label"], sample_weight=frame["weight"])

    assert model.predict_proba([[0.0]])[0] == pytest.approx([100 / 108, 8 / 108])


def test_show_tells_the_labels_and_where_they_come_from(context, written):
    dataset.add(context, "reviews", [written("l.jsonl", row(1, "a"), row(2, "a"), row(3, "b"))])

    found = dataset.show(context, "reviews")

    assert found.data["labels"] == {"a": 2, "b": 1}
    assert any(fact.value == "digits/2" for fact in found.report.facts)


def test_a_sample_reads_back_as_it_was_written(written):
    rows = [row(1), row(2, "a", masked=("text",))]

    assert list(read_sample(written("s.jsonl", *rows))) == rows
