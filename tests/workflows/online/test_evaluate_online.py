"""Labels that arrive late, joined to what was answered, on a real registry and a real log."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import orjson
import pytest
from answered import answered, answered_each, encoded, write_log
from colour_project import DAY, ColourProject, damage, evaluation
from linear_models import LABELS, classifier, colours, pack, regressor

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.registry.version import Lineage
from mlx_platform.traffic.feedback import Feedback, FeedbackWriter
from mlx_platform.workflows.evaluate_online import evaluate_online
from mlx_platform.workflows.gate import gate
from mlx_platform.workflows.online.asked import Asked


def run(project: ColourProject, ref: str = "colours/1", **asked: Any) -> Result:
    folder = project.folder / "traffic"
    return evaluate_online(project.context, Asked(ref, asked.pop("traffic", folder), **asked))


def test_live_answers_that_are_as_good_as_offline_pass_and_are_kept(project, served, offline, csv):
    offline()
    result = run(project, labels=csv(served()))

    assert result.verdict is Verdict.PASS
    assert result.data["metrics"]["accuracy"]["value"] == pytest.approx(0.9, abs=0.015)
    assert result.data["rows"] == {"answered": 3000, "labelled": 3000, "coverage": 1.0}
    assert [window["labelled"] for window in result.data["windows"]] == [1000, 1000, 1000]
    kept = project.context.catalog.evidence(project.context.catalog.resolve("colours/1"))["online"]
    assert (kept.id, kept.verdict) == (result.data["evidence"], "pass")
    assert kept.numbers["accuracy"]["value"] == result.data["metrics"]["accuracy"]["value"]


@pytest.mark.parametrize("right", [0.8, 0.97])
def test_a_difference_beyond_noise_fails_in_either_direction(project, served, offline, csv, right):
    offline()
    result = run(project, labels=csv(served(right=right)))

    assert (result.verdict, result.exit_code) == (Verdict.FAIL, 5)
    gap = result.data["differences"]["accuracy"]
    assert gap["value"] == pytest.approx(right - 0.9, abs=0.02)
    assert gap["margin"] == 0.02
    assert "different from offline" in result.report.summary


def test_too_few_labels_are_undecided_and_say_how_many_would_tell(project, served, offline, csv):
    offline()
    truth = served()
    result = run(project, labels=csv(dict(list(truth.items())[:150])))

    assert (result.verdict, result.exit_code) == (Verdict.UNDECIDED, 7)
    assert result.data["differences"]["accuracy"]["labels_needed"] > 150
    assert "labels probably would" in result.report.checks[0].message
    assert result.data["rows"]["coverage"] == 0.05


def test_a_day_that_differs_fails_alone_although_all_days_together_do_not(project, served, offline, csv):
    offline(accuracy=0.9)
    truth = served(requests=6000, days=6) | served(
        requests=300, days=1, since=DAY + timedelta(days=6), first=10_000, right=0.6
    )
    result = run(project, labels=csv(truth))

    pooled, day = result.report.checks
    assert pooled.verdict is not Verdict.FAIL
    assert (day.verdict, day.part) == (Verdict.FAIL, "from 2026-03-14T00:00Z")
    assert result.exit_code == 5


def test_windows_are_cut_on_the_calendar_that_is_asked_for(project, served, offline, csv):
    offline()
    result = run(project, labels=csv(served()), every="1d", zone="America/New_York")

    starts = [window["since"] for window in result.data["windows"]]
    assert starts[:2] == ["2026-03-07T05:00:00Z", "2026-03-08T05:00:00Z"]
    assert starts[2] == "2026-03-09T04:00:00Z"  # the day before had 23 hours


def test_without_labels_and_without_an_offline_evaluation_nothing_passes(project, served, offline, csv):
    truth = served(requests=400)
    nothing = run(project, labels=csv({"other-1": "red"}))
    assert (nothing.exit_code, nothing.report.checks[0].message) == (7, "no answered request has a label")
    assert nothing.report.next_steps[0].startswith("mlx feedback")

    alone = run(project, labels=csv(truth))
    assert (alone.exit_code, alone.data["differences"]) == (7, {"accuracy": None})
    assert "no offline evaluation" in alone.report.checks[0].message
    assert alone.report.next_steps[0].startswith("mlx eval colours/1 --data")


def test_a_gate_on_a_value_decides_as_well(project, served, offline, csv):
    offline()
    path = csv(served())
    assert run(project, labels=path, gate_expressions=("accuracy>=0.95",)).exit_code == 5
    assert (
        run(project, labels=path, gate_expressions=("accuracy>=0.85", "accuracy:max_drop=1pp")).exit_code == 0
    )


def test_another_metric_and_margin_can_be_asked_for(project, served, offline, csv):
    offline()
    path = csv(served(right=0.86))
    assert run(project, labels=path, margin="8pp").exit_code == 0
    assert run(project, labels=path).exit_code == 5
    assert run(project, labels=path, metrics=("f1_macro",)).data["differences"] == {"f1_macro": None}
    with pytest.raises(UsageError, match="no metric 'f1x'"):
        run(project, labels=path, metrics=("f1x",))
    with pytest.raises(UsageError, match="no difference of accuracy"):
        run(project, labels=path, margin="two points")


def test_feedback_beside_the_log_is_read_when_no_file_is_named(project, served, offline):
    offline()
    truth = served(requests=600, days=1)
    writer = FeedbackWriter(project.folder / "traffic", clock=lambda: project.now)
    entries = []
    for place, (request_id, label) in enumerate(truth.items()):
        served_at = DAY + place * timedelta(days=1) / 600
        time = served_at + timedelta(hours=1 if place % 10 else 30)
        entries.append(Feedback(request_id=request_id, outcomes={"label": label, "clicked": True}, time=time))
    writer.append(entries)
    writer.close()

    result = run(project, margin="5pp")

    assert result.data["rows"]["labelled"] == 600
    delay = result.data["delay_seconds"]
    assert (delay["known"], delay["median"]) == (600, 3600)
    assert run(project, margin="5pp", patience="24h").data["labels"]["late"]["count"] == 60
    assert run(project, label="clicked").data["labels"]["unknown_classes"] == ["1"]


def test_labels_that_cannot_count_are_counted_and_named(project, served, offline, csv):
    offline()
    truth = served(requests=1000, days=1)
    project.promote(2, DAY)
    truth |= {f"r-{5000 + number}": "red" for number in range(7)}
    served("colours/2", 7, first=5000)
    ids = list(truth)
    lines = [f"{one},{truth[one]}" for one in ids]
    lines += [f"{ids[0]},{truth[ids[0]]}"]  # repeated
    other = next(label for label in LABELS if label != truth[ids[1]])
    lines += [f"{ids[1]},{other}", f"{ids[1]},{truth[ids[1]]}"]  # contradicted, whatever is told afterwards
    lines += ["nowhere-1,red", "nowhere-2,red", ",red", f"{ids[2]},"]
    path = project.folder / "labels.csv"
    path.write_text("id,label\n" + "\n".join(lines) + "\n")

    labels = run(project, labels=path).data["labels"]

    assert (labels["repeated"], labels["empty"]) == (1, 2)
    assert labels["contradicted"] == {"count": 3, "ids": [ids[1]]}
    assert labels["unmatched"] == {"count": 2, "ids": ["nowhere-1", "nowhere-2"]}
    assert labels["other_version"]["count"] == 7
    assert run(project, labels=path).data["rows"]["labelled"] == 999


def test_contradictions_and_unknown_ids_never_make_the_accuracy_better(project, served, offline, csv):
    offline()
    truth = served(requests=500, days=1, right=0.0)
    lines = [f"{one},{label}" for one, label in truth.items()]
    # Somebody says of every second row that it was right after all.
    lines += [f"{one},{LABELS[(LABELS.index(label) - 1) % 3]}" for one, label in list(truth.items())[::2]]
    path = project.folder / "labels.csv"
    path.write_text("id,label\n" + "\n".join(lines) + "\n")

    result = run(project, labels=path)

    assert result.data["metrics"]["accuracy"]["value"] == 0.0
    assert result.data["labels"]["contradicted"]["count"] == 500
    assert any("500 labels contradict each other" in warning for warning in result.warnings)


def test_a_class_that_the_model_does_not_know_counts_as_wrong(project, served, offline, csv):
    offline()
    truth = served(requests=1000, days=1, right=1.0)
    for request_id in list(truth)[:100]:
        truth[request_id] = "violet"

    result = run(project, labels=csv(truth))

    assert result.data["metrics"]["accuracy"]["value"] == pytest.approx(0.9)
    assert result.data["labels"]["unknown_classes"] == ["violet"]
    assert any("violet" in warning for warning in result.warnings)


def test_requests_that_were_sampled_count_for_those_that_were_not(project, served, offline, csv):
    offline()
    truth = served(requests=500, days=1, right=1.0, sampling=0.1)
    truth |= served(requests=500, days=1, right=0.0, first=1000)

    result = run(project, labels=csv(truth))

    assert result.data["metrics"]["accuracy"]["value"] == pytest.approx(5000 / 5500)
    assert result.data["rows"]["coverage"] == 1.0


def test_the_weights_of_labels_put_right_a_sample_that_was_not_even(project, served, offline, csv):
    offline()
    truth = served(requests=3000)
    features, _codes = colours(3000, seed=0)
    wrong = {
        one for place, (one, label) in enumerate(truth.items()) if LABELS[features[place].argmax()] != label
    }
    generator = np.random.default_rng(1)
    # Wrong answers are labelled five times as often as right ones.
    chance = {one: 0.5 if one in wrong else 0.1 for one in truth}
    chosen = {one: label for one, label in truth.items() if generator.random() < chance[one]}

    plain = run(project, labels=csv(chosen)).data["metrics"]["accuracy"]
    weighed = run(project, labels=csv(chosen, weight=[1 / chance[one] for one in chosen])).data["metrics"][
        "accuracy"
    ]

    assert plain["value"] < 0.75
    assert weighed["lower"] < 0.9 < weighed["upper"]


def test_labelled_rows_that_are_another_sample_are_warned_of(project, served, offline, csv):
    offline()
    truth = served(requests=2000, days=1)
    model = project.model("colours/1")
    features, _codes = colours(2000, seed=0)
    columns = {f"x{index}": features[:, index].astype(np.float64) for index in range(3)}
    sure = model.predict(columns).columns["confidence"]
    unsure = {one: label for place, (one, label) in enumerate(truth.items()) if sure[place] < np.median(sure)}

    biased = run(project, labels=csv(unsure))
    even = run(project, labels=csv(dict(list(truth.items())[:1000])))

    assert biased.data["bias"]["matters"]
    assert any("another sample" in warning for warning in biased.warnings)
    assert not even.data["bias"]["matters"]


def test_slices_by_replica_and_input_are_measured(project, served, offline, csv):
    offline()
    truth = served(requests=600, days=1) | served(
        requests=600, days=1, first=1000, server_id="web-2", right=0.5
    )

    result = run(project, labels=csv(truth), slices=("replica", "hour"))

    found = {
        one["key"]["replica"]: one["metrics"] for one in result.data["slices"] if "replica" in one["key"]
    }
    assert found["web-1"]["accuracy"]["value"] == pytest.approx(0.9, abs=0.04)
    assert found["web-2"]["accuracy"]["value"] == pytest.approx(0.5, abs=0.06)
    assert any(
        "replica=web-2" in row[0] for table in result.report.details for row in getattr(table, "rows", ())
    )
    with pytest.raises(UsageError, match="has an input 'language'"):
        run(project, labels=csv(truth), slices=("language",))


def test_rows_of_one_request_are_labelled_one_by_one(project, served, offline, csv):
    offline()
    model = project.model("colours/1")
    features, _codes = colours(300, seed=4)
    records = [
        answered(model, features[3 * k : 3 * k + 3], k, DAY + k * timedelta(minutes=1)) for k in range(100)
    ]
    write_log(project.folder / "traffic", records)
    truth = [(f"r-{k}", row, LABELS[features[3 * k + row].argmax()]) for k in range(100) for row in range(3)]
    path = project.folder / "labels.jsonl"
    path.write_bytes(
        b"\n".join(orjson.dumps({"request_id": one, "row": row, "label": label}) for one, row, label in truth)
    )
    result = run(project, labels=path)
    assert (result.data["rows"]["labelled"], result.data["metrics"]["accuracy"]["value"]) == (300, 1.0)
    assert "groups" in result.data["metrics"]["f1_macro"]["method"]

    path.write_text('{"id": "r-1", "row": null, "label": "red"}\n{"id": "r-2", "row": 3, "label": "red"}\n')
    unclear = run(project, labels=path).data["labels"]["unclear"]
    assert unclear == {"count": 2, "ids": ["r-1", "r-2"]}


def test_tensors_that_were_answered_are_read_by_the_package(project, offline, csv):
    offline()
    model = project.model("colours/1")
    features, _codes = colours(300, seed=4)
    records = []
    for number in range(300):
        columns = {f"x{index}": features[number : number + 1, index].astype(np.float64) for index in range(3)}
        feeds = model.encode(columns)
        record = answered(model, features[number : number + 1], number, DAY + number * timedelta(minutes=1))
        records.append(
            replace(
                record, endpoint="infer", inputs=encoded(feeds), outputs=encoded(model.run(feeds)), hashes={}
            )
        )
    write_log(project.folder / "traffic", records)
    truth = {f"r-{number}": LABELS[features[number].argmax()] for number in range(300)}

    assert run(project, labels=csv(truth)).data["metrics"]["accuracy"]["value"] == 1.0


def test_versions_that_held_an_alias_are_measured_by_themselves(project, served, offline, csv):
    offline("colours/1")
    offline("colours/2")
    project.promote(1, DAY - timedelta(days=1))
    project.promote(2, DAY + timedelta(days=1))
    truth = served("colours/1", 2000, days=1)
    truth |= served("colours/2", 2000, since=DAY + timedelta(days=1), days=1, first=5000, right=0.7)

    result = run(project, "colours@production", labels=csv(truth))

    assert {check.part: check.verdict for check in result.report.checks if check.name.endswith("online")} == {
        "colours/1": Verdict.PASS,
        "colours/2": Verdict.FAIL,
    }
    assert result.data["model"]["ref"] == "colours/2"
    assert [one["model"]["ref"] for one in result.data["versions"]] == ["colours/1"]


def test_evidence_counts_for_a_promotion_only_if_it_was_judged_by_the_settings(project, served, offline, csv):
    offline()
    (project.folder / "mlx.toml").write_text(
        '[promotion.production]\nneeds = ["online"]\n[evaluation]\nmax_difference = "5pp"\n'
    )
    project = ColourProject(project.folder, project.now)
    path = csv(served(right=0.88))

    def asked() -> Any:
        return gate(project.context, "colours/1", to="production")

    assert "no evidence" in asked().report.summary
    run(project, labels=path, margin="20pp")
    assert (asked().verdict, asked().report.checks[0].measured) == (Verdict.UNDECIDED, "other limit")
    assert run(project, labels=path).data["differences"]["accuracy"]["margin"] == 0.05
    assert asked().verdict is Verdict.PASS


def test_a_version_that_answered_nothing_is_left_out_and_one_that_is_damaged_is_an_error(
    project, served, offline, csv
):
    offline("colours/1")
    project.promote(1, DAY - timedelta(days=1))
    project.promote(2, DAY + timedelta(days=3))
    path = csv(served("colours/1", days=2))

    result = run(project, "colours@production", labels=path)
    assert (result.verdict, result.data["model"]["ref"]) == (Verdict.PASS, "colours/1")

    damage(project, "colours/1")
    result = run(project, "colours@production", labels=path)
    assert result.exit_code == 7
    assert {check.part: check.verdict for check in result.report.checks} == {
        "colours/1": Verdict.ERROR,
        "colours/2": Verdict.UNDECIDED,
    }
    offline("colours/2")
    later = csv(served("colours/2", since=DAY + timedelta(days=4), first=10_000))
    project.now += timedelta(days=7)
    since = rfc3339(DAY + timedelta(days=2, hours=12))
    assert run(project, "colours@production", labels=later, since=since).exit_code == 0


def test_gates_alone_decide_about_a_model_that_is_not_registered(project, served, csv):
    package = pack(classifier(project.folder / "loose", 5 * np.eye(3))).root
    model = Model.load(open_package(package), name=package.name, device="cpu")
    features, _codes = colours(500, seed=3)
    times = [DAY + number * timedelta(minutes=1) for number in range(500)]
    write_log(project.folder / "traffic", answered_each(model, features, times))
    path = csv({f"r-{k}": LABELS[answer] for k, answer in enumerate(features.argmax(axis=1).tolist())})

    assert run(project, str(package), labels=path).exit_code == 7
    assert run(project, str(package), labels=path, gate_expressions=("accuracy>=0.9",)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id,truth\nr-1,red\n", "label"),
        ("label\nred\n", "id"),
        ("id,label,time\nr-1,red,yesterday\n", "no time with a zone"),
        ("id,label,row\nr-1,red,-1\n", "no row of a request"),
        ("id,label,weight\nr-1,red,0\n", "no weight"),
    ],
)
def test_labels_that_cannot_be_read_are_refused_in_a_sentence(project, served, text, problem):
    served(requests=10, days=1)
    path = project.folder / "labels.csv"
    path.write_text(text)

    with pytest.raises(UsageError, match=problem):
        run(project, labels=path)


def test_no_file_and_no_log_are_not_found(project, served):
    served(requests=10, days=1)
    with pytest.raises(NotFoundError):
        run(project, labels=project.folder / "nothing.csv")
    with pytest.raises(NotFoundError):
        run(project, traffic=project.folder / "nothing")


def test_records_that_were_not_answered_or_not_logged_are_named(project, served, offline, csv):
    offline()
    model = project.model("colours/1")
    features, _codes = colours(4, seed=1)
    whole = [answered(model, features[k : k + 1], k, DAY + k * timedelta(minutes=1)) for k in range(4)]
    records = [whole[0], replace(whole[1], status=500), whole[2].without_payload(), whole[3]]
    records.append(replace(whole[3], seq=9))
    write_log(project.folder / "traffic", records)

    labels = run(project, labels=csv({f"r-{k}": "red" for k in range(4)})).data["labels"]

    assert {name: labels[name]["count"] for name in ("failed", "unlogged", "again", "unmatched")} == {
        "failed": 1,
        "unlogged": 1,
        "again": 1,
        "unmatched": 0,
    }


def test_the_command_writes_page_document_and_junit(project, served, offline, csv, mlx, monkeypatch):
    offline()
    csv(served(right=0.8))
    monkeypatch.chdir(project.folder)
    command = ["eval", "colours/1", "--traffic", "traffic", "--labels", "labels.csv", "--report", "report"]
    outcome = mlx(*command, "--json")

    assert outcome.code == 5
    assert outcome.data["window"]["first"] == rfc3339(DAY)
    assert {path.name for path in (project.folder / "report").iterdir()} == {
        "report.html",
        "report.json",
        "junit.xml",
    }
    assert "<failure" in (project.folder / "report" / "junit.xml").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing to measure"),
        (["--labels", "labels.csv"], "no --traffic, so --labels cannot be used"),
        (["--traffic", "traffic", "--data", "x.csv", "--aa"], "so --data, --aa cannot be used"),
        (["--traffic", "labels.csv"], "there is no feedback beside it"),
    ],
)
def test_options_that_do_not_go_together_are_refused(project, csv, mlx, monkeypatch, options, said):
    csv({"r-1": "red"})
    monkeypatch.chdir(project.folder)
    outcome = mlx("eval", "colours/1", *options)

    assert outcome.code == 2
    assert said in outcome.err


def test_a_log_of_another_platform_is_measured_with_its_own_request_ids(project, offline, csv):
    offline()
    features, _codes = colours(200, seed=4)
    lines = []
    for number, row in enumerate(features.tolist()):
        cells = {f"x{index}": cell for index, cell in enumerate(row)}
        answer = {"predictions": [{"label": LABELS[int(np.argmax(row))]}]}
        lines.append(
            {
                "databricks_request_id": f"d-{number}",
                "client_request_id": f"r-{number}",
                "request_time": rfc3339(DAY + number * timedelta(minutes=1)),
                "status_code": 200,
                "sampling_fraction": 0.25,
                "execution_duration_ms": 14,
                "request": orjson.dumps({"dataframe_records": [cells]}).decode(),
                "response": orjson.dumps(answer).decode(),
            }
        )
    log = project.folder / "inference.jsonl"
    log.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    truth = {f"r-{k}": LABELS[int(row.argmax()) if k % 4 else 0] for k, row in enumerate(features)}

    result = run(project, traffic=log, labels=csv(truth))

    right = np.mean([truth[f"r-{k}"] == LABELS[int(row.argmax())] for k, row in enumerate(features)])
    assert result.data["log"]["format"] == "databricks"
    assert result.data["rows"]["labelled"] == 200
    assert result.data["metrics"]["accuracy"]["value"] == pytest.approx(right)


def test_numbers_are_compared_by_a_share_of_the_offline_value(project, csv):
    catalog = project.context.catalog
    version, _new = catalog.register(
        "sums", pack(regressor(project.folder / "sums", np.ones((3, 1)))), Lineage()
    )
    numbers = {"rmse": {"value": 0.5, "lower": 0.495, "upper": 0.505}}
    catalog.summarize(version, evaluation(version, numbers))
    model = project.model("sums/1")
    features, _codes = colours(3000, seed=2)
    times = [DAY + number * timedelta(seconds=20) for number in range(3000)]
    write_log(project.folder / "traffic", answered_each(model, features, times))
    noise = np.random.default_rng(0).normal(0, 0.6, 3000)
    truth = {f"r-{k}": str(row.sum() + noise[k]) for k, row in enumerate(features)}

    result = run(project, "sums/1", labels=csv(truth))

    assert result.verdict is Verdict.FAIL
    gap = result.data["differences"]["rmse"]
    assert (gap["value"], gap["margin"]) == (pytest.approx(0.1, abs=0.02), pytest.approx(0.01))
    lines = [orjson.dumps({"id": "r-1", "label": "much"}), orjson.dumps({"id": "r-2", "label": "little"})]
    path = project.folder / "labels.jsonl"
    path.write_bytes(b"\n".join(lines))
    unusable = run(project, "sums/1", labels=path)
    assert (unusable.exit_code, unusable.data["labels"]["unusable"]) == (7, 2)
    with pytest.raises(UsageError, match="which is no share"):
        run(project, "sums/1", labels=csv(truth), margin="2pp")


def test_several_labels_of_a_row_are_compared_one_by_one(project, csv):
    source = classifier(project.folder / "tags", 5 * np.eye(3))
    settings = source / "model.toml"
    text = settings.read_text().replace('"classification"', '"multilabel"')
    settings.write_text(text.replace('step = "labels"', 'step = "threshold"'))
    version, _new = project.context.catalog.register("tags", pack(source), Lineage())
    project.context.catalog.summarize(
        version, evaluation(version, {"f1_micro": {"value": 0.95, "lower": 0.949, "upper": 0.951}})
    )
    model = project.model("tags/1")
    features, _codes = colours(2000, seed=3)
    columns = {f"x{index}": features[:, index].astype(np.float64) for index in range(3)}
    said = model.predict(columns).columns["labels"].tolist()
    times = [DAY + number * timedelta(seconds=30) for number in range(2000)]
    write_log(project.folder / "traffic", answered_each(model, features, times))
    truth = {f"r-{place}": tags or "|" for place, tags in enumerate(said)}
    assert "|" in truth.values()  # rows that have no label at all

    right = run(project, "tags/1", labels=csv(truth))
    truth["r-1"] = f"{truth['r-1']}|violet"
    violet = run(project, "tags/1", labels=csv(truth))

    assert right.data["metrics"]["f1_micro"]["value"] == 1.0
    assert right.exit_code == 5  # better than offline
    assert violet.data["metrics"]["f1_micro"]["value"] < 1.0
    assert violet.data["labels"]["unknown_classes"] == ["violet"]
