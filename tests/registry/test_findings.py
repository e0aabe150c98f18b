import json
import math
from dataclasses import replace
from datetime import UTC, datetime

from mlx_platform.core.evidence import Evidence
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.findings import data_of, metrics_of, summary_tag
from mlx_platform.registry.runs import MetricData

EVIDENCE = Evidence(
    kind="evaluation",
    digest="d" * 64,
    verdict=Verdict.PASS,
    created=datetime(2026, 3, 8, tzinfo=UTC),
    data_fingerprint="f" * 64,
    parameters={},
    numbers={"accuracy": {"value": 0.9, "lower": 0.8}, "rows": 500},
    tools={},
)


def test_numbers_become_metrics_by_dotted_name() -> None:
    numbers = {
        "accuracy": {"value": 0.9, "lower": 0.8},
        "rows": 500,
        "note": "x",
        "ok": True,
        "bad": math.nan,
    }

    assert metrics_of(numbers) == {"accuracy": 0.9, "accuracy.lower": 0.8, "rows": 500.0}


def test_a_class_of_any_name_makes_a_metric_that_mlflow_takes() -> None:
    from mlflow.utils.validation import _validate_metric_name

    labels = ["a//b", "../x", "a:b", "a;b", "", "x" * 900, "模型", "\x1b[2J"]
    numbers = {f"recall[{label}]": {"value": index} for index, label in enumerate(labels)} | {"..": 1.0}
    found = metrics_of(numbers)

    assert len(found) == len(numbers)
    assert (found["recall_a_b_"], found["recall_a_b__2"]) == (2.0, 3.0)
    for name in found:
        _validate_metric_name(name)
        assert len(name) <= 250


def test_the_rows_are_named_by_their_file_with_a_digest_that_mlflow_takes() -> None:
    named = replace(EVIDENCE, parameters={"data": "rows/test.parquet"})

    assert data_of(named) == MetricData("test.parquet", "f" * 36)
    assert data_of(EVIDENCE) == MetricData("evaluation", "f" * 36)
    assert data_of(replace(EVIDENCE, data_fingerprint="")) is None
    assert len(data_of(replace(EVIDENCE, parameters={"data": "x" * 900})).name) == 500  # type: ignore[union-attr]


def test_a_summary_says_what_a_promotion_asks() -> None:
    summary = json.loads(summary_tag(EVIDENCE, "run"))

    assert summary["id"] == EVIDENCE.id
    assert (summary["digest"], summary["verdict"], summary["run_id"]) == ("d" * 64, "pass", "run")
    assert summary["numbers"]["accuracy"]["lower"] == 0.8


def test_a_summary_that_grows_too_long_keeps_its_verdict() -> None:
    long = replace(EVIDENCE, numbers={f"slice {index}": {"text": "x" * 100} for index in range(1000)})

    text = summary_tag(long, "run")

    assert len(text) <= 5000
    assert json.loads(text)["verdict"] == "pass"


GATE = {
    "name": "accuracy >= 0.9",
    "metric": "accuracy",
    "verdict": "pass",
    "shown": "0.9300 [0.9100, 0.9500]",
    "measured": 0.93,
    "threshold": 0.9,
    "message": "",
    "skipped": "",
    "lower": None,
}


def test_a_summary_has_the_gates_and_what_they_were_judged_by() -> None:
    parameters = {"gate_file": "0" * 16, "against": "b" * 64, "compared": True, "seed": 0, "data": "x" * 400}
    evidence = replace(EVIDENCE, parameters=parameters, numbers={"gates": [GATE], "rows": 5})

    summary = json.loads(summary_tag(evidence, "run"))

    kept = ("name", "verdict", "shown", "measured", "threshold")
    assert summary["gates"] == [{key: GATE[key] for key in kept}]
    assert summary["judged"] == {"gate_file": "0" * 16, "against": "b" * 64, "compared": True}
    assert summary["numbers"] == {"rows": 5}


def test_of_too_many_gates_those_that_did_not_pass_are_kept_and_the_rules_always() -> None:
    many = [GATE | {"name": f"slice {index} >= 0.9"} for index in range(300)]
    failed = GATE | {"name": "f1_macro >= 0.9", "verdict": "fail"}
    evidence = replace(
        EVIDENCE,
        parameters={"gate_file": "0" * 16},
        numbers={"gates": [*many, failed], **{f"metric {index}": {"value": 0.5} for index in range(1000)}},
    )

    text = summary_tag(evidence, "run")
    summary = json.loads(text)

    assert len(text) <= 5000
    assert summary["gates"][-1]["name"] == "f1_macro >= 0.9"
    assert summary["gates"][0]["name"] == "slice 0 >= 0.9"
    assert len(summary["gates"]) > 10
    assert summary["judged"] == {"gate_file": "0" * 16}
