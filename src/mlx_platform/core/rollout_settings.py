"""What `[rollout]` in a settings file, or a plan file, says about rollouts; checked as a whole by the plan.

Spans of time are text such as `30s`, `2m` or `1h30m`.
"""

from typing import Literal

from mlx_platform.core.clock import SPAN
from mlx_platform.core.tables import setting
from mlx_platform.core.values import frozen

MetricKind = Literal["proportion", "latency_ratio", "prometheus", "business"]
Direction = Literal["higher", "lower"]
Where = Literal["shadow", "weight", "any"]
OnTrouble = Literal["pause", "abort"]


def _span(default: str, description: str = "such as 30s, 2m or 1h30m") -> str:
    pattern = SPAN if default else f"({SPAN})?"
    found: str = setting(default, pattern=pattern, description=description)
    return found


@frozen
class StepSettings:
    """One step: `shadow`, `weight` or `pause`, and how long it is held.

    `pause` is a span of time, or `manual` until somebody resumes. `min_requests`, `min_duration` and
    `max_duration` are those of the plan where a step does not say. `bake` belongs to the step of weight 100.
    """

    shadow: float | None = setting(None, gt=0, le=100, description="percent of requests that are copied")
    weight: float | None = setting(None, gt=0, le=100, description="percent of requests that it answers")
    pause: str | None = setting(None, pattern=f"manual|{SPAN}", description="manual, or such as 10m")
    min_requests: int | None = setting(None, ge=1, le=10**9)
    min_duration: str = _span("")
    max_duration: str = _span("")
    bake: str = _span("")


@frozen
class RolloutMetricSettings:
    """One question that every look asks. Which keys a metric has depends on its kind.

    proportion: `max`, and `of`, which is `errors` or `disagree`. latency_ratio: `quantile`, `max_ratio`,
    `min_delta_ms`, `confirm_looks`. prometheus: `query`, `address`, `max` or `min`, `confirm_looks`.
    business: `of` names the outcome, and `max_drop`, `direction`.
    """

    name: str = setting("", pattern="[A-Za-z_][A-Za-z0-9_.-]{0,63}")
    kind: MetricKind = "proportion"
    of: str | None = setting(None, pattern="[A-Za-z_][A-Za-z0-9_.-]{0,63}")
    max: float | None = setting(None, ge=-1e15, le=1e15)
    min: float | None = setting(None, ge=-1e15, le=1e15)
    alpha: float | None = setting(None, ge=1e-9, le=0.5, description="the chance of a false alarm in a step")
    quantile: float | None = setting(None, gt=0, le=0.999)
    max_ratio: float | None = setting(None, gt=1, le=1000)
    min_delta_ms: float | None = setting(None, ge=0, le=600_000)
    confirm_looks: int | None = setting(None, ge=1, le=10)
    query: str | None = None
    address: str | None = setting(None, pattern=r"https?://\S+")
    max_drop: float | None = setting(None, gt=0, le=1e15)
    direction: Direction | None = None
    on: Where | None = None
    dry_run: bool = False


@frozen
class AbSettings:
    """A fixed split that ends with a test instead of a promotion; off while `percent` is 0.

    `metric` is the outcome of `mlx feedback`. `base` is what the present version is expected to reach, and
    `deviation` the standard deviation of a number; 0 says that the outcome is a yes or no. `min_effect` is
    the smallest difference that matters, in the outcome's own unit.
    """

    percent: float = setting(0.0, ge=0, le=99, description="of requests that the candidate answers")
    metric: str = setting("", pattern="([A-Za-z_][A-Za-z0-9_.-]{0,63})?")
    direction: Direction = "higher"
    base: float = setting(0.0, ge=-1e15, le=1e15)
    deviation: float = setting(0.0, ge=0, le=1e15)
    min_effect: float = setting(0.0, ge=0, le=1e15)
    alpha: float = setting(0.05, ge=1e-9, le=0.5, description="two-sided")
    power: float = setting(0.8, ge=0.5, le=0.999)
    max_duration: str = _span("14d")


_STEPS = (
    StepSettings(shadow=100.0, min_requests=500),
    StepSettings(weight=1.0),
    StepSettings(weight=5.0),
    StepSettings(weight=20.0),
    StepSettings(weight=50.0),
    StepSettings(weight=100.0),
)
_METRICS = (
    RolloutMetricSettings(name="error_rate", kind="proportion", of="errors", max=0.01),
    RolloutMetricSettings(name="p99", kind="latency_ratio", quantile=0.99, max_ratio=1.5),
    RolloutMetricSettings(name="agreement", kind="proportion", of="disagree", max=0.02),
)


@frozen
class RolloutSettings:
    """How `mlx rollout` brings a version to traffic, and what takes it back.

    `warmup` and `warmup_requests` at the beginning of each step count for nothing, on both arms. `mirror`
    copies requests to the candidate in weight steps too. Answers without labels agree within `rtol` and
    `atol`. Pauses do not count towards the `deadline`.
    """

    steps: tuple[StepSettings, ...] = _STEPS
    metrics: tuple[RolloutMetricSettings, ...] = _METRICS
    min_requests: int = setting(300, ge=1, le=10**9)
    min_duration: str = _span("2m")
    max_duration: str = _span("1h")
    bake: str = _span("15m", "after the promotion, ready to roll back; 0s for none")
    warmup_requests: int = setting(20, ge=0, le=10**6)
    warmup: str = _span("10s")
    look_every: str = _span("30s")
    on_no_data: OnTrouble = "pause"
    on_metric_error: OnTrouble = "pause"
    error_limit: int = setting(4, ge=0, le=1000, description="failed measurements in a row")
    on_inconclusive: OnTrouble = "pause"
    on_fail: OnTrouble = "abort"
    deadline: str = _span("6h")
    mirror: float = setting(0.0, ge=0, le=100, description="percent of requests in weight steps")
    rtol: float = setting(0.01, ge=0, le=1, description="numbers in two answers agree within this share")
    atol: float = setting(1e-5, ge=0, le=1e15, description="or within so much")
    key_header: str = setting("x-request-key", pattern="[A-Za-z0-9-]{1,64}")
    ab: AbSettings = AbSettings()
