"""The plan of a rollout: its steps, what is measured in them, and what happens when it goes wrong.

A plan is made of settings, checked as a whole, written into the first event of its rollout and read back from
there by every server that takes part.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal

from mlx_platform.core.clock import span_seconds
from mlx_platform.core.errors import UsageError
from mlx_platform.core.rollout_settings import (
    AbSettings,
    Direction,
    MetricKind,
    OnTrouble,
    RolloutMetricSettings,
    RolloutSettings,
    StepSettings,
    Where,
)
from mlx_platform.core.tables import gathered, read_table, setting
from mlx_platform.core.text import listed, printable
from mlx_platform.core.values import frozen

StepKind = Literal["shadow", "weight", "pause"]
_YEAR = 366 * 86_400.0
_KEYS: Mapping[str, tuple[str, ...]] = {  # which each kind of metric has
    "proportion": ("max", "of", "alpha", "on"),
    "latency_ratio": ("quantile", "max_ratio", "min_delta_ms", "confirm_looks", "on"),
    "prometheus": ("query", "address", "max", "min", "confirm_looks", "on"),
    "business": ("max_drop", "of", "direction", "alpha"),
}
_NEEDED = {"proportion": ("max",), "prometheus": ("query", "address"), "business": ("max_drop",)}
_OPTIONS = tuple(dict.fromkeys(key for keys in _KEYS.values() for key in keys))


@frozen
class Step:
    """A part of the way. `max_duration_s` of a pause is how long it lasts, None until somebody resumes.

    A step of weight 100 is the promotion: it holds nothing but bakes for `bake_s`.
    """

    kind: StepKind = "weight"
    percent: float = setting(0.0, ge=0, le=100)
    min_requests: int = setting(0, ge=0, le=10**9)
    min_duration_s: float = setting(0.0, ge=0, le=_YEAR)
    max_duration_s: float | None = setting(None, ge=0, le=_YEAR)
    bake_s: float = setting(0.0, ge=0, le=_YEAR)

    @property
    def promotes(self) -> bool:
        return self.kind == "weight" and self.percent >= 100

    @property
    def title(self) -> str:
        """The step in a few words: `shadow 100 %`, `weight 5 %`, `pause`."""
        return "pause" if self.kind == "pause" else f"{self.kind} {self.percent:g} %"


@frozen
class MetricRule:
    """One question of every look; see `RolloutMetricSettings`. Only what belongs to its kind is used."""

    name: str = ""
    kind: MetricKind = "proportion"
    of: str = ""
    max: float | None = setting(None, ge=-1e15, le=1e15)
    min: float | None = setting(None, ge=-1e15, le=1e15)
    alpha: float = setting(0.01, ge=1e-9, le=0.5)
    quantile: float = setting(0.99, gt=0, le=0.999)
    max_ratio: float = setting(1.5, gt=1, le=1000)
    min_delta_ms: float = setting(5.0, ge=0, le=600_000)
    confirm_looks: int = setting(2, ge=1, le=10)
    query: str = ""
    address: str = ""
    max_drop: float = setting(0.0, ge=0, le=1e15)
    direction: Direction = "higher"
    on: Where = "any"
    dry_run: bool = False

    @property
    def relative(self) -> bool:
        """Whether it compares with the stable version, instead of with a limit alone."""
        return self.kind in {"latency_ratio", "business"}

    def applies(self, *, shadow: bool) -> bool:
        """Whether it is asked in shadow, or in weight steps and while baking."""
        return self.on in {"any", "shadow" if shadow else "weight"}


@frozen
class AbRule:
    """The question of an A/B test; `required` requests with an outcome on each arm answer it.

    The order is (stable, candidate).
    """

    metric: str = ""
    direction: Direction = "higher"
    base: float = setting(0.0, ge=-1e15, le=1e15)
    deviation: float = setting(0.0, ge=0, le=1e15)
    min_effect: float = setting(0.0, ge=0, le=1e15)
    alpha: float = setting(0.05, ge=1e-9, le=0.5)
    power: float = setting(0.8, ge=0.5, le=0.999)
    required: tuple[int, ...] = ()

    @property
    def binary(self) -> bool:
        return self.deviation == 0


@frozen
class Plan:
    """Everything about a rollout that is decided before it starts.

    `skip_baseline` leaves out what compares with the stable version, for when that is the broken one.
    """

    steps: tuple[Step, ...] = ()
    metrics: tuple[MetricRule, ...] = ()
    warmup_requests: int = setting(20, ge=0, le=10**6)
    warmup_s: float = setting(10.0, ge=0, le=_YEAR)
    look_every_s: float = setting(30.0, gt=0, le=_YEAR)
    on_no_data: OnTrouble = "pause"
    on_metric_error: OnTrouble = "pause"
    error_limit: int = setting(4, ge=0, le=1000)
    on_inconclusive: OnTrouble = "pause"
    on_fail: OnTrouble = "abort"
    deadline_s: float = setting(21_600.0, gt=0, le=_YEAR)
    mirror: float = setting(0.0, ge=0, le=100)
    rtol: float = setting(0.01, ge=0, le=1)
    atol: float = setting(1e-5, ge=0, le=1e15)
    key_header: str = "x-request-key"
    ab: AbRule | None = None
    skip_baseline: bool = False

    @property
    def promotes(self) -> bool:
        """Whether it ends with a promotion: not an A/B test, and not a plan of shadow alone."""
        return self.ab is None and any(step.kind == "weight" for step in self.steps)

    @property
    def bake_s(self) -> float:
        """How long the promoted version stays under watch; 0 without a step that says so."""
        return next((step.bake_s for step in self.steps if step.promotes), 0.0)

    def document(self) -> dict[str, Any]:
        """JSON-ready; what is empty is left out."""
        found: dict[str, Any] = _short(self)
        return found


def plan_from_document(document: Any) -> Plan:
    """Read back what `Plan.document` wrote.

    Raises:
        UsageError: it is no plan, or one that cannot be carried out.
    """
    source = "The plan of the rollout"
    if not isinstance(document, Mapping):
        raise UsageError(f"{source} is not there, or is no table.")
    plan = read_table(Plan, document, source=source)
    if problems := problems_of(plan):
        raise UsageError(f"{source} cannot be carried out: {problems[0]}")
    return plan


def _short(value: Any) -> Any:
    """Fields as a table, without those that are empty. A default stays: another version may have another."""
    if isinstance(value, tuple):
        return [_short(inner) for inner in value]
    if not is_dataclass(value):
        return value
    found = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    return {
        key: _short(inner)
        for key, inner in found.items()
        if inner is not None and inner is not False and inner not in ("", ())
    }


def plan_of(settings: RolloutSettings, *, source: str = "[rollout]", skip_baseline: bool = False) -> Plan:
    """The plan that settings describe.

    Args:
        settings: of `mlx.toml` or of a plan file.
        source: what to call them in messages.
        skip_baseline: leave out what compares with the stable version.

    Raises:
        UsageError: they cannot be carried out; names the first problem.
    """
    plan = replace(draft(settings, source=source), skip_baseline=skip_baseline)
    if problems := problems_of(plan):
        raise UsageError(f"{source}: {problems[0]}", hint="See all there is: mlx rollout lint")
    return plan


def draft(settings: RolloutSettings, *, source: str = "[rollout]") -> Plan:
    """The plan as `plan_of` makes it, whose problems `problems_of` tells.

    Raises:
        UsageError: a step or a metric says nothing that makes sense by itself.
    """
    ab = _ab_rule(settings.ab, source) if settings.ab.percent else None
    steps, metrics = _parts(settings, source)
    deadline = _seconds(settings.deadline)
    if ab:
        longest = span_seconds(settings.ab.max_duration)
        steps = [Step("weight", settings.ab.percent, 1, 0.0, longest)]
        deadline = max(deadline, min(_YEAR, 2 * longest))
    return Plan(
        steps=tuple(steps),
        metrics=tuple(metrics),
        warmup_requests=settings.warmup_requests,
        warmup_s=_seconds(settings.warmup),
        look_every_s=_seconds(settings.look_every),
        on_no_data=settings.on_no_data,
        on_metric_error=settings.on_metric_error,
        error_limit=settings.error_limit,
        on_inconclusive=settings.on_inconclusive,
        on_fail=settings.on_fail,
        deadline_s=deadline,
        mirror=settings.mirror,
        rtol=settings.rtol,
        atol=settings.atol,
        key_header=settings.key_header,
        ab=ab,
    )


def _parts(settings: RolloutSettings, source: str) -> tuple[list[Step], list[MetricRule]]:
    found: list[Step | MetricRule] = gathered(
        [
            *(
                partial(_step, step, settings, f"{source}: steps.{index}")
                for index, step in enumerate(settings.steps)
            ),
            *(
                partial(_rule, metric, f"{source}: metrics.{index}")
                for index, metric in enumerate(settings.metrics)
            ),
        ]
    )
    return (
        [part for part in found if isinstance(part, Step)],
        [part for part in found if isinstance(part, MetricRule)],
    )


def _seconds(text: str, otherwise: float = 0.0) -> float:
    return span_seconds(text) if text else otherwise


def _step(step: StepSettings, settings: RolloutSettings, where: str) -> Step:
    said = [name for name in ("shadow", "weight", "pause") if getattr(step, name) is not None]
    if len(said) != 1:
        raise UsageError(
            f"{where} says {listed(said) if said else 'nothing'}: a step is one of shadow, weight and pause.",
            hint="Write one of: {shadow = 100}, {weight = 5}, {pause = 'manual'}",
        )
    held = [key for key in ("min_requests", "min_duration", "max_duration") if getattr(step, key)]
    if step.pause is not None:
        if held or step.bake:
            raise UsageError(f"{where} is a pause, which has no {(held or ['bake'])[0]}.")
        return Step("pause", 0.0, 0, 0.0, None if step.pause == "manual" else span_seconds(step.pause))
    if step.weight == 100:
        if held:
            raise UsageError(f"{where} promotes, so it has a bake time and no {held[0]}.")
        return Step("weight", 100.0, bake_s=_seconds(step.bake, _seconds(settings.bake)))
    if step.bake:
        raise UsageError(f"{where} has a bake time, which only the step of weight 100 can have.")
    return Step(
        "shadow" if step.shadow is not None else "weight",
        step.shadow or step.weight or 0.0,
        step.min_requests or settings.min_requests,
        _seconds(step.min_duration, _seconds(settings.min_duration)),
        _seconds(step.max_duration, _seconds(settings.max_duration)),
    )


def _rule(metric: RolloutMetricSettings, where: str) -> MetricRule:
    given = {key: getattr(metric, key) for key in _OPTIONS if getattr(metric, key) is not None}
    if not metric.name:
        raise UsageError(f"{where} has no name.")
    for key in _NEEDED.get(metric.kind, ()):
        if key not in given:
            raise UsageError(f"{where}: {metric.name} is of kind {metric.kind}, which needs {key}.")
    for key in given:
        if key not in _KEYS[metric.kind]:
            raise UsageError(
                f"{where}: {metric.name} is of kind {metric.kind}, which has no {key}.",
                hint=f"It has: {listed(_KEYS[metric.kind])}",
            )
    if metric.kind == "proportion":
        given.setdefault("of", "errors")
        if given["of"] not in {"errors", "disagree"}:
            raise UsageError(
                f"{where}: a proportion is of errors or of disagree, not of {printable(given['of'], 40)}.",
                hint="For an outcome that mlx feedback brings, write kind = 'business'.",
            )
        given.setdefault("on", "shadow" if given["of"] == "disagree" else "any")
    if metric.kind == "business":
        given.setdefault("of", metric.name)
    if metric.kind in {"business", "latency_ratio"}:  # copies wait for idle moments, and nobody sees them
        given.setdefault("on", "weight")
    return MetricRule(name=metric.name, kind=metric.kind, dry_run=metric.dry_run, **given)


def _ab_rule(ab: AbSettings, source: str) -> AbRule:
    from mlx_platform.evaluation.ab import required_samples

    if not ab.metric:
        raise UsageError(
            f"{source}: an A/B test needs the metric that it is about.", hint="ab.metric = 'clicked'"
        )
    if ab.min_effect <= 0:
        raise UsageError(f"{source}: an A/B test needs ab.min_effect, the smallest difference that matters.")
    if ab.deviation == 0 and not 0 < ab.base < 1:
        raise UsageError(
            f"{source}: ab.base is the share of the present version, between 0 and 1, such as 0.12.",
            hint="For an outcome that is a number, ab.deviation is its standard deviation.",
        )
    required = required_samples(
        base=ab.base,
        effect=ab.min_effect,
        deviation=ab.deviation,
        alpha=ab.alpha,
        power=ab.power,
        share=ab.percent / 100,
    )
    return AbRule(ab.metric, ab.direction, ab.base, ab.deviation, ab.min_effect, ab.alpha, ab.power, required)


def problems_of(plan: Plan) -> tuple[str, ...]:
    """What makes a plan impossible, as sentences; nothing, as a rule."""
    return (*_time_problems(plan), *_step_problems(plan), *_metric_problems(plan))


def _time_problems(plan: Plan) -> list[str]:
    found = []
    if plan.look_every_s <= 0 or plan.deadline_s <= 0:
        found.append("look_every and deadline are longer than nothing.")
    spans = [plan.look_every_s, plan.deadline_s, plan.warmup_s]
    spans += [
        span for step in plan.steps for span in (step.min_duration_s, step.max_duration_s or 0, step.bake_s)
    ]
    if max(spans) > _YEAR:
        found.append("nothing lasts longer than a year.")
    return found


def _step_problems(plan: Plan) -> list[str]:
    found = []
    if not any(step.kind != "pause" for step in plan.steps):
        found.append("a plan needs a step that copies or sends requests.")
    elif plan.steps[0].kind == "pause":
        found.append("a plan cannot begin with a pause.")
    weights = [step.percent for step in plan.steps if step.kind == "weight"]
    if weights != sorted(set(weights)):
        found.append(
            f"the weights must rise from step to step, and are {listed([f'{w:g}' for w in weights])}."
        )
    for index, step in enumerate(plan.steps):
        where = f"step {index + 1} ({step.title})"
        if step.promotes and index != len(plan.steps) - 1:
            found.append(f"{where} promotes, so it must be the last.")
        if step.promotes and index == 0:
            found.append(f"{where} promotes without anything that was measured before.")
        if step.kind == "shadow" and any(before.kind == "weight" for before in plan.steps[:index]):
            found.append(f"{where} must come before the steps with a weight.")
        if step.kind != "pause" and not step.promotes:
            if step.percent <= 0 or step.min_requests < 1:
                found.append(f"{where} measures nothing.")
            if step.max_duration_s is None or step.max_duration_s < max(
                step.min_duration_s, plan.look_every_s
            ):
                found.append(
                    f"{where} is over too soon: max_duration must reach min_duration and look_every."
                )
    return found


def _metric_problems(plan: Plan) -> list[str]:
    found = []
    names = [rule.name for rule in plan.metrics]
    if plan.ab and plan.ab.metric in names:
        found.append(
            f"{plan.ab.metric} is what the A/B test asks: a metric that guards it needs another name, "
            f"and of = '{plan.ab.metric}'."
        )
    found += [f"two metrics are called {name}." for name in sorted({n for n in names if names.count(n) > 1})]
    for rule in plan.metrics:
        found += [f"{rule.name} {problem}" for problem in _rule_problems(rule, plan)]
    for index, step in enumerate(plan.steps):
        if step.kind == "pause" or step.promotes or plan.ab:
            continue
        asked = [rule for rule in plan.metrics if not (plan.skip_baseline and rule.relative)]
        if not any(rule.applies(shadow=step.kind == "shadow") and not rule.dry_run for rule in asked):
            found.append(
                f"no metric decides in step {index + 1} ({step.title}), and nothing passes by itself."
            )
    return found


def _rule_problems(rule: MetricRule, plan: Plan) -> list[str]:
    found = []
    if rule.kind == "proportion":
        if rule.of not in {"errors", "disagree"}:
            found.append("is of something that nobody counts.")
        if rule.max is None or not 1e-6 <= rule.max <= 0.99:
            found.append("needs a max from 0.000001 to 0.99, such as 0.01 for 1 %.")
        if rule.of == "disagree" and rule.on != "shadow" and not plan.mirror:
            found.append("is about copies, and steps with a weight have none: set mirror, or on = 'shadow'.")
    if rule.kind == "prometheus" and rule.max is None and rule.min is None:
        found.append("needs a max or a min.")
    if rule.kind == "business" and rule.on != "weight":
        found.append("is about answers that somebody got, so it is asked in steps with a weight.")
    if rule.kind == "business" and rule.max_drop <= 0:
        found.append("needs a max_drop above 0: no number of outcomes shows that nothing is lost at all.")
    return found
