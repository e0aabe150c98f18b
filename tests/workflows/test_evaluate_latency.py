"""Latency in an evaluation. What is measured is checked for being of one piece, never for being fast."""

import numpy as np
import pytest
from linear_models import LABELS, classifier, colours, write_rows

from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.gates import SYSTEM_METRICS
from mlx_platform.evaluation.latency import LATENCY_METRICS
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.evaluate import evaluate
from mlx_platform.workflows.evaluation import latency
from mlx_platform.workflows.evaluation.answerer import Running

GOOD = 5 * np.eye(3)


@pytest.fixture
def context(tmp_path, monkeypatch):
    for name, value in (("_SECONDS", 0.0), ("_LEAST_CALLS", 80), ("_WARM_UP", 1)):
        monkeypatch.setattr(latency, name, value)
    return make_context(Settings(folder=tmp_path, actor="tester", cache=CacheSettings(dir=str(tmp_path))))


@pytest.fixture
def rows(tmp_path):
    features, codes = colours(300)
    return write_rows(tmp_path / "rows.parquet", features, label=[LABELS[code] for code in codes])


@pytest.fixture
def models(tmp_path):
    """Two source folders whose weights differ a little."""
    made = (classifier(tmp_path / name, weights) for name, weights in (("new", GOOD), ("old", 1.1 * GOOD)))
    return [str(folder) for folder in made]


def test_latencies_are_metrics_like_others(context, rows, models):
    gates = ("latency_p95_ms<=60000", "throughput_rps>=0.001", "latency_p50_ms<=0.0000001")

    result = evaluate(context, models[0], data=rows, gate_expressions=gates, running=Running(threads=1))

    assert [gate["verdict"] for gate in result.data["gates"]] == ["pass", "pass", "fail"]
    assert result.exit_code == 5
    for name in LATENCY_METRICS:
        found = result.data["metrics"][name]
        assert 0 < found["lower"] <= found["value"] <= found["upper"]
    told = {"calls": 80, "rows_per_call": 1, "device": "cpu", "threads": 1, "beside_baseline": False}
    assert result.data["latency"] == told
    assert "80 calls of 1 row on cpu with 1 thread" in [fact.value for fact in result.report.facts]


def test_a_ratio_is_measured_beside_the_baseline_in_the_same_run(context, rows, models):
    gates = ("latency_mean_ms:max_ratio=900", "latency_p50_ms:max_ratio=0.001", "model_size_mb:max_ratio=2")

    result = evaluate(context, models[0], data=rows, against=models[1], gate_expressions=gates)

    slow, fast, size = result.data["gates"]
    assert [slow["verdict"], fast["verdict"], size["verdict"]] == ["pass", "fail", "pass"]
    assert slow["measured"] == pytest.approx(slow["candidate"] / slow["baseline"])
    assert slow["lower"] <= slow["measured"] <= slow["upper"]
    assert result.data["latency"]["beside_baseline"]


def test_nothing_is_timed_unless_somebody_asks(context, rows, models):
    plain, asked = (
        evaluate(context, models[0], data=rows, running=Running(latency=wanted, timed_rows=7))
        for wanted in (False, True)
    )

    assert set(SYSTEM_METRICS) & set(plain.data["metrics"]) == {"model_size_mb"}
    assert plain.data["latency"] is None
    assert set(SYSTEM_METRICS) <= set(asked.data["metrics"])
    assert asked.data["latency"]["rows_per_call"] == 7
    assert asked.verdict is Verdict.UNDECIDED  # to be measured is not to be judged


def test_the_very_same_package_has_no_ratio_to_fail(context, rows, models):
    result = evaluate(
        context, models[0], data=rows, against=models[0], gate_expressions=("latency_p50_ms:max_ratio=0.001",)
    )

    assert "nothing to compare" in result.data["gates"][0]["skipped"]


def test_a_ratio_without_a_baseline_is_undecided(context, rows, models):
    result = evaluate(
        context, models[0], data=rows, gate_expressions=("latency_p50_ms:max_ratio=2",), running=Running()
    )

    assert result.verdict is Verdict.UNDECIDED
    assert result.exit_code == 7


def test_few_rows_are_taken_again_and_again(context, tmp_path, models):
    features, codes = colours(3)
    few = write_rows(tmp_path / "few.parquet", features, label=[LABELS[code] for code in codes])

    result = evaluate(context, models[0], data=few, running=Running(latency=True, timed_rows=50))

    assert result.data["latency"]["rows_per_call"] == 50
    assert result.data["metrics"]["latency_p95_ms"]["value"] > 0
