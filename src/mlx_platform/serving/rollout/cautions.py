"""What a plan can do and probably was not meant to."""

from mlx_platform.serving.rollout.binomial import requests_to_pass
from mlx_platform.serving.rollout.plan import Plan


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """What is possible and probably not meant, as sentences."""
    found = []
    holds = [step for step in plan.steps if step.kind != "pause" and not step.promotes]
    for rule in plan.metrics if plan.ab is None else ():
        for step in holds:
            applies = rule.applies(shadow=step.kind == "shadow") and not plan.ab  # which has its own count
            if rule.kind != "proportion" or rule.max is None or not applies:
                continue
            needed = requests_to_pass(0, rule.max)
            if step.min_requests < needed:
                found.append(
                    f"{step.title}: {step.min_requests:,} requests cannot show that {rule.name} is below "
                    f"{rule.max:.3g}; the step goes on to {needed:,} at least."
                )
    longest = sum(step.max_duration_s or 0.0 for step in holds) + plan.bake_s
    if plan.deadline_s < longest:
        found.append(
            f"the deadline of {plan.deadline_s:g} s comes before the steps end, at {longest:g} s at most."
        )
    if plan.promotes and not plan.bake_s:
        found.append(
            "nothing watches the version once it is promoted: end with a step of weight 100 that bakes."
        )
    for step in plan.steps:
        lasts, what = (step.bake_s, "bakes") if step.promotes else (step.max_duration_s, "lasts")
        if lasts and lasts < plan.look_every_s and (step.promotes or step.kind == "pause"):
            found.append(
                f"{step.title}: it {what} for {lasts:g} s, less than look_every, {plan.look_every_s:g} s: "
                "it is looked at once, at its end."
            )
    if plan.on_fail == "pause":
        found.append("a version that fails keeps its requests until somebody aborts, as on_fail is pause.")
    return tuple(found)
