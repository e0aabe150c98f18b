"""What a server that leads a rollout decides, without a server."""

from datetime import timedelta

from projects import Project

from mlx_platform.serving.rollout.carrying import carry_out, production_in, rollout_in
from mlx_platform.serving.rollout.machine import next_state
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict


def decide(
    project: Project, outcome: Outcome, *, seconds: float = 300.0, name: str = "error_rate"
) -> Rollout:
    """What a server that leads does after a look, so many seconds into the step."""
    catalog = project.anew()
    sight = catalog.sight("digits")
    rollout = rollout_in(sight)
    assert rollout is not None
    metric = MetricVerdict("error_rate", outcome, "20 of 300 failed.", 0.0667, 0.01, numbers={"count": 20.0})
    transition = next_state(
        rollout,
        now=rollout.step_since + timedelta(seconds=seconds),
        production=production_in(sight, "production"),
        verdict=StepVerdict(outcome, (metric,), rollout.window, 3, seconds),
    )
    assert transition is not None
    carry_out(catalog, transition, after=sight.head)
    return transition.rollout
