"""The plan that a command is given: a file of its own, or `[rollout]` in the settings; and how it reads."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from mlx_platform.core.clock import span_text
from mlx_platform.core.documents import read_document
from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Table
from mlx_platform.core.rollout_settings import RolloutSettings
from mlx_platform.core.tables import changed, read_table
from mlx_platform.serving.rollout.plan import AbRule, MetricRule, Plan, Step, plan_of
from mlx_platform.workflows.context import Context

_HEAD = "rollout"
_WHERE = {"shadow": "shadow", "weight": "weight", "any": "all"}


def settings_of(context: Context, file: Path | None, ab: float | None = None) -> tuple[RolloutSettings, str]:
    """What a plan file says, or else the settings, and how to call it in messages.

    Args:
        context: the command's context.
        file: holds what would be under `[rollout]` in the settings, with that heading or without.
        ab: the share of an A/B test, instead of what is written.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a key that is not known, or a value that is not possible.
    """
    if file is None:
        found, source = context.settings.rollout, "[rollout]"
    else:
        content = read_document(file, "plan").content
        if not isinstance(content, Mapping):
            raise UsageError(f"The plan {file} says nothing: it is no table.")
        inner = content.get(_HEAD) if set(content) == {_HEAD} else content
        if not isinstance(inner, Mapping):
            raise UsageError(f"The plan {file} says nothing below {_HEAD}.")
        found, source = read_table(RolloutSettings, inner, source=str(file)), str(file)
    if ab is not None:
        found = replace(found, ab=changed(found.ab, {"percent": ab}, source="--ab"))
    return found, source


def read_plan(
    context: Context, file: Path | None, *, ab: float | None = None, skip_baseline: bool = False
) -> Plan:
    """The plan of a rollout that is about to start.

    Raises:
        NotFoundError: there is no such file.
        UsageError: the plan cannot be carried out; names the first problem.
    """
    settings, source = settings_of(context, file, ab)
    return plan_of(settings, source=source, skip_baseline=skip_baseline)


def step_table(plan: Plan, title: str) -> Table:
    """The steps, what each holds for, and how much traffic that takes."""
    rows = tuple(
        (str(place), step.title, _requests(step, plan), _hold(step), _traffic(step, plan))
        for place, step in enumerate(plan.steps, 1)
    )
    return Table(title, ("#", "step", "requests", "holds for", "takes, of all"), rows, numeric=(2, 4))


def metric_table(plan: Plan, title: str) -> Table:
    """What every look asks, and what the answer must be."""
    rows = tuple((rule.name, question(rule), limit(rule), _decides(rule)) for rule in plan.metrics)
    return Table(title, ("metric", "asks for", "limit", "decides in"), rows)


def question(rule: MetricRule) -> str:
    """What a metric measures, in a few words."""
    match rule.kind:
        case "proportion" if rule.of == "errors":
            return "requests that failed"
        case "proportion":
            return "answers that differ"
        case "latency_ratio":
            return f"P{rule.quantile * 100:g} against the stable version's"
        case "prometheus":
            return "a query to Prometheus"
        case "business":
            return f"{rule.of}, against the stable version's"


def limit(rule: MetricRule) -> str:
    """What a metric may be at most, or at least."""
    match rule.kind:
        case "proportion":
            return f"< {100 * (rule.max or 0):g} %"
        case "latency_ratio":
            return f"<= {rule.max_ratio:g} x, or {rule.min_delta_ms:g} ms more"
        case "prometheus":
            bounds = [f">= {rule.min:g}"] if rule.min is not None else []
            return " and ".join([*bounds, *([f"<= {rule.max:g}"] if rule.max is not None else [])])
        case "business":
            return f"{'drops' if rule.direction == 'higher' else 'rises'} by less than {rule.max_drop:g}"


def ab_text(rule: AbRule) -> str:
    """What an A/B test needs before it can answer."""
    base = f"{rule.base:g}" if rule.binary else f"{rule.base:g} (deviation {rule.deviation:g})"
    needed = " + ".join(f"{count:,}" for count in rule.required)
    return (
        f"needs {needed} requests with an outcome (stable + candidate) to see a difference of "
        f"{rule.min_effect:g} in {rule.metric} from {base} "
        f"(two-sided, level {rule.alpha:g}, power {rule.power:g})"
    )


def shortest(plan: Plan) -> float:
    """Seconds that a plan takes if everything passes as soon as it may, without those of pauses by hand."""
    return sum(_least(step) for step in plan.steps) + plan.bake_s


def longest(plan: Plan) -> float:
    """Seconds that a plan takes at most, before it waits for somebody."""
    return sum(step.max_duration_s or 0.0 for step in plan.steps) + plan.bake_s


def duration(seconds: float) -> str:
    """A span for people; fractions only below ten seconds."""
    if 0 < seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    return span_text(timedelta(seconds=round(seconds)))


def _least(step: Step) -> float:
    return (step.max_duration_s or 0.0) if step.kind == "pause" else step.min_duration_s


def _hold(step: Step) -> str:
    if step.kind == "pause":
        return "until somebody resumes" if step.max_duration_s is None else duration(step.max_duration_s)
    if step.promotes:
        return f"bakes for {duration(step.bake_s)}" if step.bake_s else "nothing"
    most = "" if step.max_duration_s is None else f" to {duration(step.max_duration_s)}"
    return f"{duration(step.min_duration_s)}{most}"


def _requests(step: Step, plan: Plan) -> str:
    """Those of the candidate that a step needs."""
    if step.kind == "pause" or step.promotes:
        return ""
    return f"{plan.ab.required[1] if plan.ab else step.min_requests:,}"


def _traffic(step: Step, plan: Plan) -> str:
    """The requests that it takes until the candidate has its own."""
    if step.kind == "pause" or step.promotes or step.percent <= 0:
        return ""
    share = step.percent / 100
    if plan.ab:
        stable, candidate = plan.ab.required
        return f"{max(stable / (1 - share), candidate / share):,.0f}"
    return f"{step.min_requests / share:,.0f}"


def _decides(rule: MetricRule) -> str:
    return "nothing: dry run" if rule.dry_run else f"{_WHERE[rule.on]} steps"
