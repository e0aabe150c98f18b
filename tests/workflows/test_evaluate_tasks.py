"""Evaluation of every kind of task, from a package on disk to the verdict."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from linear_models import classifier, colours, pack, regressor, write_rows

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import CacheSettings, EvaluationSettings, MetricSettings, Settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.gates import DatasetRules
from mlx_platform.inference.model import Model
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.evaluate import evaluate

GOOD = 5 * np.eye(3)


@pytest.fixture
def context(tmp_path) -> Context:
    settings = Settings(folder=tmp_path, actor="tester", cache=CacheSettings(dir=str(tmp_path / "cache")))
    return make_context(settings)


def _tagger(folder: Path) -> Path:
    """A package that says of each column whether it is positive, as a class of its own."""
    source = classifier(folder, GOOD)
    toml = (source / "model.toml").read_text()
    head, _, _ = toml.partition("[[post]]")
    steps = (
        '[[post]]\nstep = "threshold"\nthresholds = [0.34, 0.34, 0.9]\n'  # of probabilities that add up to 1
    )
    (source / "model.toml").write_text(head.replace('"classification"', '"multilabel"') + steps)
    return pack(source).root


def test_rows_with_several_labels_are_answered_and_measured(context, tmp_path):
    package = _tagger(tmp_path / "tagger")
    features, _codes = colours(300)
    powers = np.exp(5 * features.astype(np.float64))
    reached = powers / powers.sum(axis=1, keepdims=True) >= [0.34, 0.34, 0.9]
    truth = ["|".join(np.array(["red", "green", "blue"])[row]) for row in reached]
    truth[:30] = ["red|blue"] * 30
    data = write_rows(tmp_path / "rows.parquet", features, label=truth)

    result = evaluate(
        context, str(package), data=data, gate_expressions=("f1_micro>=0.5", "recall[green]>=0.9")
    )

    assert result.verdict is Verdict.PASS
    assert result.data["task"] == "multilabel"
    assert 0.85 < result.data["metrics"]["subset_accuracy"]["value"] < 0.95
    assert result.data["metrics"]["recall[green]"]["value"] > 0.9


def test_a_package_with_several_labels_a_row_answers_text(tmp_path):
    from mlx_platform.inference.package import open_package

    model = Model.load(open_package(_tagger(tmp_path / "tagger")))

    columns = model.predict({f"x{i}": np.array([0.0, 3.0 * (i == 2)]) for i in range(3)}).columns

    assert columns["labels"].tolist() == ["", "blue"]
    assert columns["probabilities"].shape == (2, 3)
    assert model.self_check() == []


def test_a_regression_with_queries_is_a_ranking(context, tmp_path):
    package = pack(regressor(tmp_path / "ranker", np.array([[1.0], [0.0], [0.0]]))).root
    features, _codes = colours(600)
    relevance = (features[:, 0] > 0.5).astype(float)
    data = write_rows(tmp_path / "rows.parquet", features, label=relevance, query=np.arange(600) // 10)

    result = evaluate(
        context,
        str(package),
        data=data,
        gate_expressions=("ndcg@10>=0.99", "recall@3>=0.5"),
        columns=DatasetRules(query="query"),
    )

    assert result.verdict is Verdict.PASS
    assert result.data["metrics"]["mrr"]["value"] == 1
    with pytest.raises(UsageError, match="regression"):
        evaluate(
            context,
            str(package),
            data=data,
            gate_expressions=("rmse<=1",),
            columns=DatasetRules(query="query"),
        )


def test_weights_groups_and_the_positive_class_come_from_columns(context, tmp_path):
    package = pack(classifier(tmp_path / "two", GOOD[:, :2], labels=("no", "yes"))).root
    features, _codes = colours(400)
    truth = np.where(features[:, 0] > features[:, 1], "no", "yes")
    truth[:40] = "no"
    weights = np.where(np.arange(400) < 40, 0.0, 2.0)
    data = write_rows(
        tmp_path / "rows.parquet", features, label=truth, weight=weights, user=np.arange(400) // 4
    )

    plain = evaluate(context, str(package), data=data, gate_expressions=("recall>=0.1",))
    weighed = evaluate(
        context,
        str(package),
        data=data,
        gate_expressions=("recall>=0.1",),
        columns=DatasetRules(weight="weight", group="user", positive="no"),
    )

    assert plain.data["metrics"]["accuracy"]["value"] < 0.99
    assert weighed.data["metrics"]["accuracy"]["value"] == 1
    assert weighed.data["metrics"]["recall"]["value"] == 1
    assert plain.data["metrics"]["recall"]["value"] == 1
    assert plain.data["metrics"]["specificity"]["value"] < 1


def test_a_metric_of_the_settings_is_measured_and_gated(context, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "shop_metrics_of_a_test.py").write_text(
        "def cost(truth, answer, probabilities, weights):\n    return 3.0 * (truth != answer).mean()\n"
    )
    own = MetricSettings("shop_metrics_of_a_test:cost", higher_is_better=False, unit="EUR")
    settings = replace(context.settings, evaluation=EvaluationSettings(metrics={"cost": own}))
    package = pack(classifier(tmp_path / "colours", GOOD)).root
    features, codes = colours(200)
    data = write_rows(
        tmp_path / "rows.parquet", features, label=[("red", "green", "blue")[code] for code in codes]
    )

    result = evaluate(
        replace(context, settings=settings), str(package), data=data, gate_expressions=("cost<=0.01",)
    )

    accuracy = result.data["metrics"]["accuracy"]["value"]
    assert result.data["metrics"]["cost"]["value"] == pytest.approx(3 * (1 - accuracy))
    assert result.verdict is Verdict.FAIL
    sys.modules.pop("shop_metrics_of_a_test", None)
