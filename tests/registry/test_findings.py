import json
import math
from dataclasses import replace
from datetime import UTC, datetime

from mlx_platform.core.evidence import Evidence
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.findings import metrics_of, summary_tag

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
