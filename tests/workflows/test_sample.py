"""`mlx sample` on a log of a classifier of colours: what is drawn, and what is written."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from linear_models import classifier, colours, pack
from logged import answered, named, with_baseline, write_segment

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.evaluation.sample_format import read_sample
from mlx_platform.inference.model import Model
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.sample import sample

BASELINE, _ = colours(3000, seed=1)
TRAFFIC, _ = colours(300, seed=2)
MOVED = TRAFFIC + np.array([0, 1, 0], dtype=np.float32)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    made = pack(classifier(tmp_path_factory.mktemp("models") / "one", 5 * np.eye(3)))
    return with_baseline(made, named(BASELINE))


@pytest.fixture(scope="module")
def model(package):
    return Model.load(package, name=package.root.name, device="cpu")


@pytest.fixture
def context(tmp_path):
    return make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))


@pytest.fixture
def log(tmp_path, model):
    """Write a log of requests of three rows; `change` alters the record of each number."""

    def write(rows=TRAFFIC, endpoint="predict", change=lambda _number, record: [record]):
        records = []
        for start in range(0, len(rows), 3):
            record = answered(model, named(rows[start : start + 3]), start // 3, endpoint)
            records += change(start // 3, record)
        return write_segment(tmp_path / "traffic", records)

    return write


@pytest.fixture
def draw(context, package, tmp_path):
    def run(traffic, strategy="random", count=10, output="sample.jsonl", **flags):
        path = tmp_path / output
        result = sample(
            context,
            str(package.root),
            traffic=traffic,
            strategy=strategy,
            count=count,
            output=path,
            **flags,
        )
        return result, path

    return run


@pytest.mark.parametrize("endpoint", ["predict", "infer"])
def test_what_the_model_was_least_sure_of_comes_first(log, draw, endpoint):
    result, path = draw(log(endpoint=endpoint), "uncertain", 30)

    rows = list(read_sample(path))
    assert len(rows) == result.data["counts"]["drawn"] == 30
    assert result.data["counts"]["rows"] == 300
    scores = [row.score for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert np.mean(scores) > 0.2
    assert all(0 < row.inclusion_probability <= 1 for row in rows)
    assert all(row.weight == pytest.approx(1 / row.inclusion_probability) for row in rows)
    assert len({row.id for row in rows}) == 30


def test_the_same_seed_draws_the_same_rows_and_another_seed_others(log, draw):
    traffic = log()

    ids = [[row.id for row in read_sample(draw(traffic, seed=seed)[1])] for seed in (1, 1, 2)]

    assert ids[0] == ids[1] != ids[2]


def test_rows_that_drifted_are_drawn_where_something_drifted(log, draw):
    _, path = draw(log(MOVED), "drifted", 40)

    drawn = np.asarray([row.inputs["x1"] for row in read_sample(path)])
    assert np.median(drawn) > np.median(MOVED[:, 1])
    assert np.median(drawn) > np.quantile(BASELINE[:, 1], 0.9)


def test_where_nothing_drifted_nothing_is_nearer_to_a_drift(log, draw):
    with pytest.raises(UndecidedError, match="No feature has drifted"):
        draw(log(), "drifted")


def test_answers_of_two_versions_are_compared_by_the_copies_in_the_log(log, draw):
    def copied(number, record):
        answer = dict(record.outputs)
        if number % 10 == 0:
            labels = answer["label"]
            answer["label"] = labels | {"data": ["none of them"] * 3}
        copy = replace(record, arm="shadow", version="9", digest="b" * 64, outputs=answer, seq=1000 + number)
        return [record, copy] if number < 80 else [record]

    result, path = draw(log(change=copied), "disagreement", 24)

    numbers = [int(row.request_id.removeprefix("r-")) for row in read_sample(path)]
    assert sum(number % 10 == 0 for number in numbers) >= 20
    assert result.data["counts"]["unscored"] == 20
    assert result.data["counts"]["copies"] == 80


def test_without_copies_no_two_versions_can_be_compared(log, draw):
    with pytest.raises(UndecidedError, match="no answers to copies"):
        draw(log(), "disagreement")


def test_strata_are_drawn_equally(log, draw):
    _, path = draw(log(), "random", 30, by="label")

    labels = [row.prediction["label"] for row in read_sample(path)]
    assert sorted(labels.count(label) for label in set(labels)) == [10, 10, 10]


def test_a_column_that_is_not_there_is_no_stratum(log, draw):
    with pytest.raises(UsageError, match="no column 'x9'"):
        draw(log(), by="x9")


def test_the_same_inputs_are_drawn_once(log, draw):
    result, path = draw(log(np.tile(TRAFFIC[:6], (20, 1))), "random", 50)

    assert len(list(read_sample(path))) == 6
    assert result.data["counts"]["repeated"] == 114


@pytest.mark.parametrize("earlier", ["one.jsonl", "one.csv", "one.json"])
def test_what_was_drawn_before_is_not_drawn_again(log, draw, tmp_path, earlier):
    traffic = log()
    draw(traffic, "random", 100, earlier, seed=3)
    draw(traffic, "random", 100, "ids.jsonl", seed=3)

    result, path = draw(traffic, "random", 300, "two.jsonl", exclude=[tmp_path / earlier])

    first = {row.input_hash for row in read_sample(tmp_path / "ids.jsonl")}
    assert first.isdisjoint(row.input_hash for row in read_sample(path))
    assert (result.data["counts"]["known"], result.data["counts"]["drawn"]) == (100, 200)


def test_requests_that_were_logged_by_a_share_stand_for_more(log, draw):
    _, path = draw(log(change=lambda _, record: [replace(record, sampling=0.25)]), "random", 300)

    assert {row.weight for row in read_sample(path)} == {4.0}


def test_what_cannot_be_drawn_is_counted(log, draw):
    def spoilt(number, record):
        match number % 5:
            case 0:
                return [replace(record, status=503)]
            case 1:
                return [record.without_payload()]
            case 2:
                return [replace(record, digest="0" * 64)]
        return [record]

    result, _ = draw(log(change=spoilt), "random", 10)

    counts = result.data["counts"]
    assert (counts["failed"], counts["truncated"], counts["not_comparable"]) == (20, 20, 20)
    assert counts["rows"] == 40 * 3


def test_a_table_has_a_place_for_the_label(log, draw):
    _, path = draw(log(), "uncertain", 5, "sample.csv")

    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 5
    assert {"id", "input_hash", "weight", "predicted_label", "x0", "x1", "x2", "label"} <= set(rows[0])
    assert {row["label"] for row in rows} == {""}


def test_tasks_begin_with_what_the_model_answered(log, draw):
    _, path = draw(log(), "uncertain", 5, "tasks.json")

    tasks = json.loads(path.read_text())
    assert len(tasks) == 5
    for task in tasks:
        (prediction,) = task["predictions"]
        (result,) = prediction["result"]
        assert result["value"]["choices"] == [task["data"]["predicted"]["label"]]
        assert 0 <= prediction["score"] <= 1
        assert task["data"]["id"].startswith("r-")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"strategy": "uncertian"}, "takes uncertain"),
        ({"count": 0}, "at least one row"),
        ({"output": "sample.txt"}, "does not say"),
        ({"to": "xml"}, "--to takes"),
    ],
)
def test_flags_that_cannot_be_used_are_refused_before_the_log_is_read(draw, tmp_path, flags, message):
    with pytest.raises(UsageError, match=message):
        draw(tmp_path / "nowhere", **flags)


def test_an_earlier_sample_that_is_none_is_refused(draw, tmp_path):
    (tmp_path / "no.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")

    with pytest.raises(UsageError, match=r"no\.jsonl, line 1"):
        draw(tmp_path / "nowhere", exclude=[tmp_path / "no.jsonl"])
    with pytest.raises(UsageError, match="no column input_hash"):
        draw(tmp_path / "nowhere", exclude=[tmp_path / "no.csv"])
    with pytest.raises(NotFoundError):
        draw(tmp_path / "nowhere", exclude=[tmp_path / "gone.jsonl"])


def test_an_empty_log_leaves_nothing_written(draw, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UndecidedError, match="nothing to draw from"):
        draw(tmp_path / "empty")

    assert not (tmp_path / "sample.jsonl").exists()
