"""`mlx rollout lint`: whether a plan can be carried out, and what it will take."""

from dataclasses import asdict
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.serving.rollout.cautions import warnings_of
from mlx_platform.serving.rollout.plan import Plan, draft, problems_of
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.rollouts import page
from mlx_platform.workflows.rollouts.planning import (
    ab_text,
    duration,
    longest,
    metric_table,
    settings_of,
    shortest,
    step_table,
)


def lint(context: Context, file: Path | None = None) -> Result:
    """Read a plan as `mlx rollout start` does, and tell everything that is wrong with it at once.

    Args:
        context: the command's context.
        file: the plan; `[rollout]` of the settings otherwise.

    Returns:
        PASS for a plan that can be carried out.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it cannot be read, or a step or metric makes no sense by itself.

    Exits:
        2: the plan cannot be carried out.
    """
    settings, source = settings_of(context, file)
    plan = draft(settings, source=source)
    problems = problems_of(plan)
    return Result(
        command="rollout lint",
        data={
            "source": source,
            "problems": list(problems),
            "plan": plan.document(),
            "steps": [page.step_document(step) for step in plan.steps],
            "metrics": [asdict(rule) for rule in plan.metrics],
            "shortest_seconds": shortest(plan),
            "longest_seconds": longest(plan),
        },
        report=Report(
            title=f"rollout lint {source}",
            summary=_summary(plan, problems, source),
            facts=_facts(plan),
            sections=(step_table(plan, "Steps"), metric_table(plan, "Metrics")),
            checks=tuple(Check("plan", Verdict.FAIL, "", "", problem) for problem in problems),
            next_steps=() if problems else ("mlx rollout start REF" + (f" --plan {file}" if file else ""),),
        ),
        verdict=Verdict.FAIL if problems else Verdict.PASS,
        warnings=warnings_of(plan) if not problems else (),
        code=UsageError.exit_code if problems else None,
    )


def _summary(plan: Plan, problems: tuple[str, ...], source: str) -> str:
    if problems:
        return f"{source} cannot be carried out: {plural(len(problems), 'problem')}."
    if plan.ab:
        return f"{source} is an A/B test of {plan.ab.metric} on {plan.steps[0].percent:g} % of the requests."
    ends = "promotes" if plan.promotes else "ends without a promotion"
    return f"{source}: {plural(len(plan.steps), 'step')}, {duration(shortest(plan))} at best; {ends}."


def _facts(plan: Plan) -> tuple[Fact, ...]:
    facts = {
        "at best": "" if plan.ab else duration(shortest(plan)),
        "at most": f"{duration(longest(plan))}; then it waits for somebody",
        "deadline": f"{duration(plan.deadline_s)}, without pauses",
        "warm-up": f"{plural(plan.warmup_requests, 'request')} and {duration(plan.warmup_s)} of each step",
        "a look": f"every {duration(plan.look_every_s)}",
        "on fail": plan.on_fail,
        "undecided": plan.on_inconclusive,
        "no data": plan.on_no_data,
        "no measurement": f"{plan.on_metric_error} after {plan.error_limit} in a row",
        "A/B": ab_text(plan.ab) if plan.ab else "",
    }
    return tuple(Fact(label, value) for label, value in facts.items() if value)
