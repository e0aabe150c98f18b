import re
from pathlib import Path

import pytest
from support import RunCommand

from mlx_platform.core.rollout_settings import RolloutSettings
from mlx_platform.core.settings import load_settings
from mlx_platform.serving.rollout.plan import MetricRule
from mlx_platform.workflows.rollouts.planning import duration, limit, question

PAGE = Path(__file__).parents[3] / "docs" / "rollouts.md"


def test_the_page_shows_the_plan_that_is_the_default(tmp_path: Path) -> None:
    shown = re.findall(r"(?ms)^```toml mlx.toml\n(.*?)^```$", PAGE.read_text())[0]
    path = tmp_path / "mlx.toml"
    path.write_text(shown)
    default = RolloutSettings()
    settings = load_settings(path, environment={}).rollout

    assert settings == default
    for key in re.findall(r"(?m)^(\w+) = ", shown):
        assert key in RolloutSettings.__dataclass_fields__, key


def test_the_default_plan_takes_an_hour_or_less_at_best_and_promotes(mlx: RunCommand) -> None:
    outcome = mlx("rollout", "lint", "--json")

    assert outcome.code == 0
    assert [step["percent"] for step in outcome.data["steps"]] == [100, 1, 5, 20, 50, 100]
    assert outcome.data["shortest_seconds"] == 5 * 120 + 900
    assert outcome.data["source"] == "[rollout]"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.toml", "steps = [{shadow = 100}, {weight = 100}]"),
        ("plan.toml", "[rollout]\nsteps = [{shadow = 100}, {weight = 100}]"),
        ("plan.yaml", "rollout:\n  steps:\n    - shadow: 100\n    - weight: 100\n"),
        ("plan.yml", "steps: [{shadow: 100}, {weight: 100}]"),
        ("plan.json", '{"steps": [{"shadow": 100}, {"weight": 100}]}'),
    ],
)
def test_a_plan_is_toml_or_yaml_with_its_heading_or_without(
    mlx: RunCommand, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)

    outcome = mlx("rollout", "lint", name, "--json")

    assert outcome.code == 0, outcome.err
    assert [step["kind"] for step in outcome.data["steps"]] == ["shadow", "weight"]


def test_every_problem_of_a_plan_is_told_at_once(mlx: RunCommand, tmp_path: Path) -> None:
    steps = "{weight = 50}, {weight = 5}, {pause = '5m'}, {shadow = 10}"
    (tmp_path / "plan.toml").write_text(f"steps = [{steps}]")

    outcome = mlx("rollout", "lint", "plan.toml", "--json")

    assert (outcome.code, outcome.document["verdict"]) == (2, "fail")
    assert any("rise from step to step" in problem for problem in outcome.data["problems"])
    assert any("must come before" in problem for problem in outcome.data["problems"])


def test_every_value_that_is_not_possible_is_told_at_once(mlx: RunCommand, tmp_path: Path) -> None:
    steps = "[{weight = 101}, {pause = '1m', bake = '1m'}]"
    text = f"min_duration = 'soon'\nsteps = {steps}\nlook_every = 'often'"
    (tmp_path / "plan.toml").write_text(text)

    outcome = mlx("rollout", "lint", "plan.toml")

    assert outcome.code == 2
    assert all(word in outcome.err for word in ("min_duration", "steps.0.weight", "look_every"))
    assert "\\d" not in outcome.err


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("stepz = []", "Did you mean 'steps'?", 2),
        ("metrics = [{name = 'p99', kind = 'latency'}]", "latency_ratio", 2),
        ("metrics = [{name = 'e', max = 0.1, of = 'eror'}]", "errors or of disagree", 2),
        ("steps = [{weight = 101}]", "at most 100", 2),
        ("min_duration = 'soon'", "30s, 2m or 1h30m", 2),
        ("steps = [", "no valid TOML", 2),
        ("[rollout]\n[other]", "unknown key", 2),
    ],
)
def test_what_is_misspelt_in_a_plan_is_named(
    mlx: RunCommand, tmp_path: Path, text: str, said: str, code: int
) -> None:
    (tmp_path / "plan.toml").write_text(text)

    outcome = mlx("rollout", "lint", "plan.toml")

    assert outcome.code == code
    assert said in outcome.err


def test_a_plan_that_is_not_there_is_not_found(mlx: RunCommand) -> None:
    assert mlx("rollout", "lint", "nothing.toml").code == 3


def test_every_kind_of_metric_reads_as_a_question_and_a_limit() -> None:
    rules = {
        MetricRule("e", "proportion", "errors", max=0.01): ("requests that failed", "< 1 %"),
        MetricRule("d", "proportion", "disagree", max=0.07): ("answers that differ", "< 7 %"),
        MetricRule("p95", "latency_ratio", quantile=0.95, max_ratio=1.3): (
            "P95 against the stable version's",
            "<= 1.3 x, or 5 ms more",
        ),
        MetricRule("q", "prometheus", min=1, max=2): ("a query to Prometheus", ">= 1 and <= 2"),
        MetricRule("c", "business", "clicked", max_drop=0.02): (
            "clicked, against the stable version's",
            "drops by less than 0.02",
        ),
        MetricRule("c", "business", "refunds", max_drop=1, direction="lower"): (
            "refunds, against the stable version's",
            "rises by less than 1",
        ),
    }

    assert {rule: (question(rule), limit(rule)) for rule in rules} == rules


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (1.25, "1.2s"), (60, "1m"), (5400, "1h 30m")])
def test_spans_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
