import math
import sys
from pathlib import Path

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import MetricSettings, load_settings
from mlx_platform.evaluation.compare import compare
from mlx_platform.evaluation.custom import custom_metrics
from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.metrics import METRICS, find_metric, metric_of
from mlx_platform.evaluation.scored import Classified, Predicted, Ranked

SOURCE = """
import numpy as np

def cost(truth, answer, probabilities, weights):
    missed = (truth == "sick") & (answer == "well")
    return np.average(np.where(missed, 10.0, truth != answer), weights=weights)

def mae(truth, answer, probabilities, weights):
    return np.average(np.abs(truth - answer), weights=weights)

def spread(truth, answer, queries, weights):
    return float(len(set(queries.tolist())))

def broken(truth, answer, probabilities, weights):
    raise RuntimeError("no such column\\nsecond line")

def undefined(truth, answer, probabilities, weights):
    return float("nan")

def rows(truth, answer, probabilities, weights):
    return truth == answer

def word(truth, answer, probabilities, weights):
    return "1"

NUMBER = 3
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a function of a module that lies beside the settings."""
    module = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def one(function: str, name: str = "mine", *, higher_is_better: bool = False, path: str = ""):
        settings = MetricSettings(path or f"{module}:{function}", higher_is_better=higher_is_better)
        return custom_metrics({name: settings}, tmp_path)[name]

    yield one
    sys.modules.pop(module, None)


def _sick(rows=400, seed=0, weights=None):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 2, rows)
    answer = np.where(generator.random(rows) < 0.9, truth, 1 - truth)
    return Classified(truth, answer, None, 2, weights, labels=("well", "sick"))


def test_a_function_of_the_project_is_measured_with_an_interval(load):
    scored = _sick(weights=np.arange(400.0))

    measured = measure_scored(scored, metrics=[load("cost")])["mine"]

    missed = (scored.truth == 1) & (scored.answer == 0)
    expected = np.average(np.where(missed, 10.0, scored.truth != scored.answer), weights=scored.weights)
    assert measured.value == pytest.approx(expected)
    assert measured.lower < measured.value < measured.upper
    assert measured.higher_is_better is False


def test_its_interval_is_that_of_the_same_metric_computed_here(load, predicted):
    scored = predicted(rows=200)

    own, ours = measure_scored(scored, metrics=[load("mae"), "mae"]).values()

    assert (own.value, own.lower, own.upper) == pytest.approx((ours.value, ours.lower, ours.upper))


def test_it_is_compared_in_pairs(load):
    comparison = compare(_sick(), _sick(seed=0), metrics=[load("cost")])

    difference = comparison.differences["mine"]
    assert (difference.value, difference.lower, difference.upper) == (0, 0, 0)


def test_groups_are_drawn_whole_for_it_and_queries_are_its_third_argument(load):
    queries = np.repeat(np.arange(30), 4)
    numbers = np.arange(120.0)

    mae = measure_scored(Predicted(numbers, numbers + queries, groups=queries), metrics=[load("mae")])
    spread = measure_scored(Ranked(numbers, numbers, queries), metrics=[load("spread")])

    assert "30 groups" in mae["mine"].method
    assert spread["mine"].value == 30


def test_more_rows_are_drawn_less_often(load, monkeypatch):
    monkeypatch.setattr("mlx_platform.evaluation.measure._CALLED_ROWS", 120_000)

    assert "300 resamples" in measure_scored(_sick(), metrics=[load("cost")])["mine"].method


def test_a_function_that_fails_is_blamed_with_its_first_line(load):
    with pytest.raises(UsageError, match=r"RuntimeError: no such column$") as refusal:
        measure_scored(_sick(), metrics=[load("broken")])

    assert "'mine'" in refusal.value.message
    assert "400 rows" in refusal.value.message


def test_a_function_that_gives_nan_is_not_measured(load):
    measured = measure_scored(_sick(), metrics=[load("undefined")])["mine"]

    assert math.isnan(measured.value)
    assert "no finite number" in measured.reason


@pytest.mark.parametrize(("function", "kind"), [("rows", "ndarray"), ("word", "str")])
def test_a_function_that_gives_no_number_is_refused(load, function, kind):
    with pytest.raises(UsageError, match=f"gave a {kind}, not a number"):
        measure_scored(_sick(), metrics=[load(function)])


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere_to_be_found:f", "ModuleNotFoundError"),
        ("math:nothing", "AttributeError"),
        ("math:pi", "is a float, which cannot be called"),
        ("math", "is not written as one"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_named(load, path, problem):
    with pytest.raises(UsageError, match=problem):
        load("", path=path)


@pytest.mark.parametrize("name", ["accuracy", "recall[a]", "ndcg@3", "two words"])
def test_a_name_that_is_taken_or_none_is_refused(load, name):
    with pytest.raises(UsageError, match="settings"):
        load("cost", name)


def test_it_is_found_by_its_name_beside_the_others(load):
    own = {"mine": load("cost")}

    assert find_metric("mine", own) is own["mine"]
    assert find_metric("mine") is None
    assert metric_of("mine", "regression", custom=own) is own["mine"]
    assert metric_of("mae", "regression", custom=own) is METRICS["mae"]
    with pytest.raises(UsageError) as refusal:
        metric_of("mien", "regression", custom=own)
    assert "'mine'" in refusal.value.hint


def test_the_settings_file_names_functions(tmp_path: Path):
    (tmp_path / "mlx.toml").write_text(
        '[evaluation.metrics.cost]\nfunction = "own.metrics:cost"\nhigher_is_better = false\nunit = "EUR"\n'
    )

    metrics = load_settings(environment={}, start=tmp_path).evaluation.metrics

    assert metrics == {"cost": MetricSettings("own.metrics:cost", higher_is_better=False, unit="EUR")}
    (tmp_path / "mlx.toml").write_text('[evaluation.metrics.cost]\nfunction = "rm -rf"\n')
    with pytest.raises(UsageError, match=r"evaluation\.metrics\.cost\.function"):
        load_settings(environment={}, start=tmp_path)
