"""What an evaluation tells, in every form."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from mlx_platform.core.report import Plot, Result, Spans, Table
from mlx_platform.core.verdict import Verdict

DOCS = Path(__file__).parents[3] / "docs" / "gates.md"
KEY = re.compile(r"`([a-z_]+(?:\.[a-zA-Z_]+)?(?:\[\])?)`")


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from paths(inner, f"{prefix}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from paths(inner, f"{prefix}[]")
    else:
        yield prefix


def documented() -> list[str]:
    table = DOCS.read_text().partition("### JSON")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [key for row in rows for key in KEY.findall(row)]


def folder_of(result: Result) -> Path:
    data = Path(result.data["dataset"]["path"])
    return data.parent.with_name(data.parent.name.removesuffix("-work"))


def sections(result: Result) -> dict[str, Any]:
    return {re.split(r"[,:(]", section.title)[0].strip(): section for section in result.report.details}


def test_the_document_holds_what_the_page_about_it_says_and_nothing_else(outcomes) -> None:
    known = documented()
    met: set[str] = set()
    for result in outcomes.values():
        for path in paths(result.document()["data"]):
            keys = [
                key
                for key in known
                if path == key
                or path.startswith((f"{key}.", f"{key}[", key.replace("NAME", "")))
                or path == key.removesuffix("[]")
            ]
            assert keys, f"{path} is not in {DOCS.name}"
            met.update(keys)

    assert len(known) > 25
    assert met == set(known)


def test_the_file_holds_the_same_document_as_json_knows_it(outcomes) -> None:
    for result in outcomes.values():
        content = (folder_of(result) / "report.json").read_bytes()
        assert orjson.loads(content) == orjson.loads(orjson.dumps(result.document()))
        assert b"NaN" not in content


def test_a_gate_about_slices_is_followed_by_each_of_them_with_numbers_and_place(outcomes) -> None:
    checks = outcomes["spam"].report.checks

    of_lang = [check for check in checks if check.threshold == ">= 0.6" and check.name == "accuracy"]
    assert {check.part for check in of_lang} == {"lang=de", "lang=en", "lang=fr", "lang=xx"}
    assert all(check.line and check.file.endswith("gates.toml") for check in checks)
    assert all(dict(check.values)["metric"] == check.name for check in checks)
    failed = next(check for check in of_lang if check.part == "lang=de")
    assert failed.verdict is Verdict.FAIL
    assert float(dict(failed.values)["measured"]) < 0.6


def test_junit_has_a_case_for_each_gate_and_slice_with_value_and_threshold(outcomes) -> None:
    suite = ET.parse(folder_of(outcomes["spam"]) / "junit.xml").getroot()  # noqa: S314 - our own file
    cases = {str(case.get("name")): case for case in suite}

    assert {case.get("classname") for case in cases.values()} == {"mlx.gates.mail_parquet"}
    assert {"accuracy >= 0.2", "accuracy max_drop 1pp", "accuracy >= 0.6 [slice lang=de]"} < set(cases)
    failure = cases["accuracy >= 0.6 [slice lang=de]"].find("failure")
    assert failure is not None
    assert re.search(r"is 0\.\d{4} \[.*threshold >= 0\.6", str(failure.get("message")))
    for name in ("accuracy >= 0.6 [slice lang=xx]", "accuracy max_drop 5pp [slice device=phone]"):
        assert cases[name].find("skipped") is not None
        assert cases[name].find("failure") is None
    assert int(str(suite.get("tests"))) == len(suite)


def test_numbers_to_follow_are_read_back_by_name_class_and_slice(outcomes) -> None:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for name in ("spam", "colours"):
        text = (folder_of(outcomes[name]) / "metrics.txt").read_text()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.items())] = sample.value

    metrics = outcomes["spam"].data["metrics"]
    assert found["mlx_roc_auc"][()] == pytest.approx(metrics["roc_auc"]["value"], abs=1e-6)
    assert (("slice", "lang=de"),) in found["mlx_accuracy"]
    assert (("of", "red"),) in found["mlx_recall"]
    assert found["mlx_eval_rows"][()] == 400


def test_metrics_are_drawn_with_interval_baseline_and_the_limit_of_their_gate(outcomes) -> None:
    drawn = sections(outcomes["spam"])["Metrics"]
    by_name = {span.name: span for span in drawn.spans}
    metrics, differences = (
        outcomes["spam"].data["metrics"],
        outcomes["spam"].data["comparison"]["differences"],
    )

    accuracy = by_name["accuracy"]
    assert (accuracy.value, accuracy.threshold) == (metrics["accuracy"]["value"], 0.2)
    assert accuracy.lower < accuracy.value < accuracy.upper
    assert accuracy.baseline == differences["accuracy"]["baseline"]
    assert "log_loss (nats)" in by_name


def test_losses_are_drawn_in_the_direction_of_their_metric(outcomes) -> None:
    result = outcomes["spam"]
    spans = {span.name: span for span in sections(result)["Change against the baseline"].spans}
    loss, rise = spans["accuracy max_drop 1pp"], spans["log_loss max_rise 5%rel"]

    assert loss.threshold == -0.01
    assert rise.threshold > 0
    assert all(span.lower < span.value < span.upper for span in (loss, rise))
    assert rise.value == pytest.approx(result.data["comparison"]["differences"]["log_loss"]["value"])
    assert loss.baseline == rise.baseline == 0


def test_slices_come_worst_first_and_small_ones_in_a_sentence(outcomes) -> None:
    drawn = [part for part in outcomes["spam"].report.details if isinstance(part, Spans) and part.shared]
    by_lang, by_device, shown = drawn

    assert by_lang.spans[0].name == "lang=de"
    assert len(by_lang.spans) == 3
    assert "1 slice with too few rows: lang=xx (10)" in by_lang.note
    assert {span.baseline for span in by_device.spans} == {0.0}
    assert [span.value for span in shown.spans] == sorted(span.value for span in shown.spans)
    (_metrics, table) = outcomes["spam"].report.brief
    assert table.rows[0][0] == shown.spans[0].name


def test_open_questions_say_how_many_rows_would_decide(outcomes) -> None:
    result = outcomes["spam"]
    needed = [
        gate["rows_needed"]
        for gate in (
            *result.data["gates"],
            *(gate for part in result.data["slices"] for gate in part["gates"]),
        )
        if gate.get("rows_needed") and gate["verdict"] != "pass"
    ]
    table = sections(result).get("Rows that would probably decide")

    assert (table is not None) is bool(needed)
    if isinstance(table, Table):
        assert {row[2] for row in table.rows} <= {f"{count:,}" for count in needed}


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        (
            "spam",
            {"Confusion", "Classes", "Calibration", "ROC curve", "Precision and recall", "Surest errors"},
        ),
        (
            "colours",
            {"Confusion", "Most confused", "Recall by class", "Classes", "Calibration", "Surest errors"},
        ),
        ("lengths", {"Residuals", "Distribution of the errors", "Quantiles of the error", "Largest errors"}),
        ("queries", {"NDCG@10 of the queries", "Worst queries"}),
        ("tags", {"Classes", "Calibration", "Worst rows"}),
    ],
)
def test_each_task_shows_what_there_is_to_see(outcomes, task: str, parts: set[str]) -> None:
    titles = set(sections(outcomes[task]))
    page = (folder_of(outcomes[task]) / "report.html").read_text()

    assert parts | {"Metrics", "Data and rules"} <= titles
    assert "ROC curve" not in titles or task == "spam"
    assert all(part in page for part in parts)


def test_curves_and_calibration_stand_beside_the_baseline(outcomes) -> None:
    found = sections(outcomes["spam"])
    curve, calibration = found["ROC curve"], found["Calibration"]

    assert isinstance(curve, Plot)
    assert [series.name.endswith("(baseline)") for series in curve.series] == [False, True]
    assert sum(count for _, _, count in calibration.counts) == 900
    assert calibration.x == "probability of spam"


def test_the_worst_errors_are_named_by_their_ids_and_show_no_input(outcomes) -> None:
    worst = outcomes["spam"].data["errors"]["worst"]
    confidences = [one["confidence"] for one in worst]

    assert all(one["id"] == f"mail-{one['row']}" and one["truth"] != one["answer"] for one in worst)
    assert confidences == sorted(confidences, reverse=True)
    assert set(worst[0]) == {"row", "id", "truth", "answer", "confidence"}
    queries = outcomes["queries"].data["errors"]["worst"]
    assert [one["ndcg"] for one in queries] == sorted(one["ndcg"] for one in queries)
    assert queries[0]["query"].startswith("query ")


def test_counts_add_up(outcomes) -> None:
    data = outcomes["colours"].data
    counts = data["confusion"]["counts"]

    assert sum(map(sum, counts)) == data["dataset"]["rows"] == 400
    assert [one["rows"] for one in data["classes"]] == [sum(row) for row in counts]
    assert data["errors"]["total"] == 400 - sum(counts[code][code] for code in range(3))
    assert sum(outcomes["lengths"].data["residuals"]["counts"]) == 400


def test_data_and_rules_are_what_a_repetition_needs(outcomes) -> None:
    told = dict(sections(outcomes["spam"])["Data and rules"].rows)
    dataset = outcomes["spam"].data["dataset"]

    assert told["SHA-256"] == dataset["fingerprint"]
    assert told["rows"] == "900"
    assert "equal rows" in told["weights"]
    assert 0 < dataset["effective_rows"] < 900
    assert (told["confidence"], told["seed"]) == ("0.95", "0")
    assert dict(sections(outcomes["lengths"])["Data and rules"].rows)["groups"] == "100, drawn as wholes"
