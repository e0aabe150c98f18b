import json
from typing import Any

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.rollout_settings import (
    AbSettings,
    RolloutMetricSettings,
    RolloutSettings,
    StepSettings,
)
from mlx_platform.core.tables import read_table
from mlx_platform.serving.rollout.cautions import warnings_of
from mlx_platform.serving.rollout.plan import (
    MetricRule,
    Plan,
    Step,
    draft,
    plan_from_document,
    plan_of,
    problems_of,
)

ERRORS = {"name": "errors", "kind": "proportion", "max": 0.01}


def settings(**values: Any) -> RolloutSettings:
    return read_table(RolloutSettings, values, source="mlx.toml")


def test_the_default_plan_goes_from_shadow_over_four_weights_to_a_bake() -> None:
    plan = plan_of(RolloutSettings())

    assert [step.title for step in plan.steps] == [
        *("shadow 100 %", "weight 1 %", "weight 5 %", "weight 20 %", "weight 50 %", "weight 100 %"),
    ]
    assert plan.steps[1] == Step("weight", 1.0, 300, 120.0, 3600.0)
    assert plan.bake_s == 900
    assert [(rule.name, rule.on) for rule in plan.metrics] == [
        ("error_rate", "any"),
        ("p99", "weight"),
        ("agreement", "shadow"),
    ]
    assert plan.promotes
    assert warnings_of(plan) == ()


def test_steps_take_what_the_plan_says_where_they_say_nothing() -> None:
    plan = plan_of(
        settings(
            min_duration="1h30m",
            max_duration="2d",
            deadline="9d",
            steps=[
                {"weight": 5, "min_requests": 500},
                {"pause": "10m"},
                {"pause": "manual"},
                {"weight": 100},
            ],
        )
    )

    assert plan.steps[0] == Step("weight", 5.0, 500, 5400.0, 172_800.0)
    assert [step.max_duration_s for step in plan.steps[1:3]] == [600.0, None]
    assert plan.steps[3].promotes


@pytest.mark.parametrize("values", [{}, {"metrics": [ERRORS], "look_every": "200ms", "min_duration": "0s"}])
def test_a_plan_comes_back_from_its_document(values: dict[str, Any]) -> None:
    plan = plan_of(settings(**values))

    assert plan_from_document(json.loads(json.dumps(plan.document()))) == plan


def test_a_zero_in_a_document_is_no_default() -> None:
    metric = {"name": "p99", "kind": "latency_ratio", "min_delta_ms": 0}
    plan = plan_of(settings(metrics=[ERRORS, metric], warmup_requests=0, error_limit=0))

    again = plan_from_document(plan.document())
    assert again.metrics[1].min_delta_ms == 0
    assert (again.warmup_requests, again.error_limit) == (0, 0)


@pytest.mark.parametrize(
    "document",
    [
        None,
        "plan",
        {},
        {"steps": []},
        {"steps": [{"kind": "jump"}]},
        {"steps": [{"kind": "weight", "percent": 1e9}]},
        {"steps": [{"kind": "weight", "percent": "many"}]},
        {"steps": [{"kind": "weight", "percent": 5, "unknown": 1}]},
        {"stepz": []},
    ],
)
def test_a_document_that_is_no_plan_is_refused(document: Any) -> None:
    with pytest.raises(UsageError):
        plan_from_document(document)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": [{}]}, "steps.0 says nothing"),
        ({"steps": [{"weight": 5, "shadow": 5}]}, "says shadow, weight"),
        (
            {"steps": [{"weight": 5}, {"pause": "1m", "min_requests": 5}]},
            "a pause, which has no min_requests",
        ),
        ({"steps": [{"weight": 5, "bake": "1m"}]}, "only the step of weight 100"),
        ({"steps": [{"weight": 5}, {"weight": 100, "max_duration": "1m"}]}, "no max_duration"),
        ({"steps": [{"weight": 20}, {"weight": 5}]}, "must rise"),
        ({"steps": [{"weight": 5}, {"weight": 5}]}, "must rise"),
        ({"steps": [{"weight": 5}, {"weight": 100}, {"pause": "1m"}]}, "must be the last"),
        ({"steps": [{"weight": 100}]}, "without anything that was measured"),
        ({"steps": [{"weight": 5}, {"shadow": 100}]}, "must come before"),
        ({"steps": [{"pause": "1m"}, {"weight": 5}]}, "cannot begin with a pause"),
        ({"steps": [{"pause": "1m"}]}, "needs a step"),
        ({"steps": []}, "needs a step"),
        ({"steps": [{"weight": 5, "min_duration": "2h", "max_duration": "1h"}]}, "must reach min_duration"),
        ({"look_every": "2h"}, "must reach min_duration and look_every"),
        ({"look_every": "0s"}, "longer than nothing"),
        ({"deadline": "400d"}, "longer than a year"),
        ({"bake": "99999d"}, "longer than a year"),
        ({"metrics": []}, "nothing passes by itself"),
        ({"metrics": [{**ERRORS, "dry_run": True}]}, "nothing passes by itself"),
        ({"metrics": [{"name": "p99", "kind": "latency_ratio"}]}, "no metric decides in step 1"),
        ({"metrics": [ERRORS, ERRORS]}, "two metrics are called errors"),
        (
            {
                "ab": {"metric": "clicked", "percent": 50, "base": 0.1, "min_effect": 0.01},
                "metrics": [{"name": "clicked", "kind": "business", "max_drop": 0.1}],
            },
            "clicked is what the A/B test asks",
        ),
        ({"metrics": [{"max": 0.01}]}, "metrics.0 has no name"),
        ({"metrics": [{"name": "x", "kind": "proportion"}]}, "needs max"),
        ({"metrics": [{**ERRORS, "max": 0}]}, "from 0.000001 to 0.99"),
        ({"metrics": [{**ERRORS, "of": "eror"}]}, "of errors or of disagree, not of eror"),
        ({"metrics": [{**ERRORS, "query": "up"}]}, "kind proportion, which has no query"),
        ({"metrics": [{**ERRORS, "of": "disagree", "on": "any"}]}, "set mirror"),
        ({"metrics": [{"name": "x", "kind": "prometheus", "query": "up"}]}, "needs address"),
        (
            {"metrics": [ERRORS, {"name": "x", "kind": "prometheus", "query": "up", "address": "http://h"}]},
            "needs a max or a min",
        ),
        ({"metrics": [{"name": "clicked", "kind": "business"}]}, "needs max_drop"),
        ({"ab": {"percent": 50}}, "needs the metric"),
        ({"ab": {"percent": 50, "metric": "clicked"}}, "min_effect"),
        ({"ab": {"percent": 50, "metric": "clicked", "min_effect": 0.01}}, "between 0 and 1"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_before_it_starts(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_of(settings(**values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics": [{"name": "x", "kind": "latency"}]}, "metrics.0.kind"),
        ({"metrics": [{"nam": "x"}]}, "unknown key"),
        ({"steps": [{"weight": 101}]}, "steps.0.weight"),
        ({"steps": [{"pause": "soon"}]}, "steps.0.pause"),
        ({"on_fail": "ignore"}, "on_fail"),
        ({"look_every": ""}, "look_every"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(**values)


def test_without_a_baseline_every_step_needs_a_metric_that_needs_none() -> None:
    alone = settings(steps=[{"weight": 5}], metrics=[{"name": "p99", "kind": "latency_ratio"}])

    assert not plan_of(alone).skip_baseline
    with pytest.raises(UsageError, match="nothing passes by itself"):
        plan_of(alone, skip_baseline=True)
    assert plan_of(RolloutSettings(), skip_baseline=True).skip_baseline


def test_every_problem_of_a_draft_is_told() -> None:
    plan = draft(settings(steps=[{"weight": 20}, {"weight": 5}], metrics=[{**ERRORS, "max": 2}]))

    assert len(problems_of(plan)) == 2


def test_what_is_possible_but_not_meant_is_warned_of() -> None:
    plan = plan_of(
        settings(
            steps=[{"weight": 5, "min_requests": 100}], deadline="10m", on_fail="pause", metrics=[ERRORS]
        )
    )

    told = " ".join(warnings_of(plan))
    assert "100 requests cannot show that errors is below 0.01" in told
    assert "299" in told
    assert "deadline of 600 s" in told
    assert "nothing watches" in told
    assert "on_fail is pause" in told


def test_a_bake_and_a_pause_that_are_over_before_the_first_look_are_said() -> None:
    steps: list[Any] = [{"weight": 5}, {"pause": "10s"}, {"weight": 100, "bake": "20s"}]

    told = warnings_of(plan_of(settings(steps=steps)))

    assert "pause: it lasts for 10 s, less than look_every, 30 s: it is looked at once, at its end." in told
    assert "weight 100 %: it bakes for 20 s, less than look_every" in " ".join(told)
    assert warnings_of(plan_of(settings(steps=steps, look_every="10s"))) == ()


def test_metrics_have_the_defaults_of_their_kind() -> None:
    outcome = RolloutMetricSettings(name="clicked", kind="business", max_drop=0.01)
    differ = RolloutMetricSettings(name="differ", of="disagree", max=0.02, on="any")
    plan = plan_of(RolloutSettings(metrics=(*RolloutSettings().metrics, outcome, differ), mirror=10.0))

    assert plan.metrics[3] == MetricRule("clicked", "business", "clicked", max_drop=0.01, on="weight")
    assert plan.metrics[3].applies(shadow=False)
    assert not plan.metrics[3].applies(shadow=True)
    assert plan.metrics[4].applies(shadow=False)


def test_an_ab_test_is_one_step_that_says_how_many_outcomes_it_needs() -> None:
    ab = AbSettings(percent=50, metric="clicked", base=0.12, min_effect=0.01)
    plan = plan_of(RolloutSettings(ab=ab))

    assert [step.title for step in plan.steps] == ["weight 50 %"]
    assert plan.steps[0].max_duration_s == 14 * 86_400
    assert plan.deadline_s == 28 * 86_400
    assert plan.ab
    assert plan.ab.required == (17_169, 17_169)
    assert not plan.promotes
    assert plan_from_document(json.loads(json.dumps(plan.document()))) == plan


def test_a_plan_of_shadow_alone_promotes_nothing() -> None:
    plan = plan_of(RolloutSettings(steps=(StepSettings(shadow=50.0),)))

    assert not plan.promotes
    assert Plan().bake_s == 0
