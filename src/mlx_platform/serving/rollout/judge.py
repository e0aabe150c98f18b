"""One look at a step: each metric against its limit, and the worst of them for the step.

Failing takes an exact test that luck is no explanation, at the level that the look may spend. Passing takes
as many requests as show that the limit holds. What shows neither is inconclusive, and what was not measured
is no data: neither ever passes.
"""

import math
from collections.abc import Callable

from mlx_platform.core.values import frozen
from mlx_platform.serving.rollout.binomial import upper_bound, upper_tail
from mlx_platform.serving.rollout.counts import PER_E, SHIFT, ArmCounts, Window, slower_p
from mlx_platform.serving.rollout.looks import Look, Reading
from mlx_platform.serving.rollout.plan import MetricRule, Plan
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict, worst

BASELINE_UNHEALTHY = "baseline_unhealthy"
CONFIDENCE = 0.95  # of a pass
TAIL_REQUESTS = 300  # on both arms, before a tail is compared
_RANK_REQUESTS = 50  # on both arms, before ranks are
_RANK_LEVEL = 0.001


@frozen
class Question:
    """What a metric is asked about: the counts that belong to it, and how they came about.

    `candidate` counts the candidate's own requests, `copies` those it was given to compare. `needed` is how
    many requests a pass needs, `before` what the metric was at the look before.
    """

    rule: MetricRule
    look: Look
    candidate: ArmCounts
    copies: ArmCounts
    stable: ArmCounts
    needed: int
    before: MetricVerdict | None
    skip_baseline: bool


def judge(
    plan: Plan,
    step: int,
    window: Window,
    look: Look,
    history: StepVerdict | None = None,
    *,
    baking: bool = False,
) -> StepVerdict:
    """Look at a step.

    Args:
        plan: of the rollout.
        step: the index of its step, from 0. A pause is judged like the step before it.
        window: what all servers counted in this window; while baking, with the stable arm as it was before.
        look: which look it is; see `Schedule.look`.
        history: what the look before found, in the same window.
        baking: whether the candidate is promoted, and has all requests.
    """
    shadow = in_shadow(plan, step) and not baking
    before = {}
    if history and history.window == window.number:
        before = {found.name: found for found in history.metrics}
    metrics = []
    for rule in plan.metrics:
        if not rule.applies(shadow=shadow) or (plan.skip_baseline and rule.relative):
            continue
        question = Question(
            rule=rule,
            look=look,
            candidate=window.arms.get("shadow" if shadow else "canary") or ArmCounts(),
            copies=window.arms.get("shadow") or ArmCounts(),
            stable=window.arms.get("stable") or ArmCounts(),
            needed=0 if plan.ab or baking else plan.steps[_held(plan, step)].min_requests,
            before=before.get(rule.name),
            skip_baseline=plan.skip_baseline or baking,  # what failed then excuses nothing now
        )
        metrics.append(_latched(question, _ASK[rule.kind](question)))
    if plan.ab:
        from mlx_platform.serving.rollout.business import compare_arms

        metrics.append(compare_arms(plan.ab, window))
    deciding = [found.outcome for found in metrics if not found.dry_run]
    if plan.ab:  # the others only guard it
        deciding = [metrics[-1].outcome, *(found for found in deciding if found is Outcome.FAIL)]
    outcome = worst(deciding)
    return StepVerdict(outcome, tuple(metrics), window.number, look.number, look.elapsed_s)


def in_shadow(plan: Plan, step: int) -> bool:
    """Whether the candidate is only given copies in a step, or in the pause after it."""
    return plan.steps[_held(plan, step)].kind == "shadow"


def _held(plan: Plan, step: int) -> int:
    """The step whose requests are judged: the one itself, or the last before a pause."""
    return next((i for i in range(step, 0, -1) if plan.steps[i].kind != "pause"), 0)


def _latched(question: Question, found: MetricVerdict) -> MetricVerdict:
    """A metric that failed once stays so for as long as the window lasts."""
    rule, before = question.rule, question.before
    failed = found.outcome is Outcome.FAIL or bool(before and before.failed)
    outcome, message = found.outcome, found.message
    if failed and outcome is not Outcome.FAIL and before:
        outcome = Outcome.FAIL
        message = before.message if before.reason == "latched" else f"It failed before: {before.message}"
        return MetricVerdict(
            rule.name, outcome, message, before.measured, before.limit, "latched", 0, True, rule.dry_run
        )
    return MetricVerdict(
        rule.name, outcome, message, found.measured, found.limit, found.reason, found.streak, failed,
        rule.dry_run, found.numbers,
    )  # fmt: skip


def _nothing(question: Question, message: str) -> MetricVerdict:
    return MetricVerdict(question.rule.name, Outcome.NO_DATA, message, limit=question.rule.max)


def _proportion(question: Question) -> MetricVerdict:
    rule, look = question.rule, question.look
    limit = rule.max or 0.0
    copies = rule.of == "disagree"
    counts = question.copies if copies else question.candidate
    count, trials = (counts.disagreed, counts.compared) if copies else (counts.errors, counts.requests)
    what = "copies that disagree" if copies else "errors"
    if not trials:
        return _nothing(
            question, f"No {what}: none of its requests were {'compared' if copies else 'answered'}."
        )
    level = rule.alpha * look.level
    luck, bound = upper_tail(count, trials, limit), upper_bound(count, trials, CONFIDENCE)
    rate = count / trials
    numbers = {"count": count, "requests": trials, "p": luck, "level": level, "upper": bound}
    told = f"{rate:.2%} {what}, {count:,} of {trials:,}; at most {limit:.2%}"
    outcome, reason = Outcome.INCONCLUSIVE, ""
    stable = question.stable
    if (
        not copies
        and not question.skip_baseline
        and upper_tail(stable.errors, stable.requests, limit) < level
    ):
        reason = BASELINE_UNHEALTHY
        told = (
            f"The stable version fails itself: {stable.errors / stable.requests:.2%} errors, "
            f"{stable.errors:,} of {stable.requests:,}. The candidate has {told}."
        )
        return MetricVerdict(rule.name, outcome, told, rate, limit, reason, numbers=numbers)
    if luck < level:
        outcome, told = Outcome.FAIL, f"{told}: by luck once in {_times(luck)} (level {level:.2g})."
    elif trials < question.needed:
        told, reason = f"{told}; {question.needed:,} requests are needed.", "too_few"
    elif bound < limit:
        outcome, told = Outcome.PASS, f"{told}, and below {bound:.2%} at {CONFIDENCE:.0%} confidence."
    else:
        told = f"{told}, and as much as {bound:.2%} at {CONFIDENCE:.0%} confidence."
    return MetricVerdict(rule.name, outcome, told, rate, limit, reason, numbers=numbers)


def _times(luck: float) -> str:
    return f"{1 / luck:,.0f} times" if luck > 1e-9 else "more than a billion times"


def _rank_shift(max_ratio: float) -> int:
    """By how many buckets most requests may be slower: a factor of 1.2 where the tail may be 1.5 x as long.

    Whoever allows the tail more or less allows the same share of it, on the scale of logarithms, to the rest.
    """
    return max(1, round(SHIFT * math.log(max_ratio) / math.log(1.5)))


def _latency_ratio(question: Question) -> MetricVerdict:
    rule, look = question.rule, question.look
    ours, theirs = question.candidate.latency, question.stable.latency
    if not ours.total or not theirs.total:
        whose = "the candidate" if not ours.total else "the stable version"
        return MetricVerdict(
            rule.name, Outcome.NO_DATA, f"{whose} answered nothing.".capitalize(), limit=rule.max_ratio
        )
    new, old = 1000 * ours.quantile(rule.quantile), 1000 * theirs.quantile(rule.quantile)
    shift = _rank_shift(rule.max_ratio)
    ratio, slower = new / old, slower_p(ours, theirs, shift)
    longer = 1000 * (ours.quantile(0.5) - theirs.quantile(0.5))
    beyond = ratio > rule.max_ratio and new - old >= rule.min_delta_ms
    enough = min(ours.total, theirs.total) >= TAIL_REQUESTS
    streak = (question.before.streak if question.before else 0) + 1 if beyond and enough else 0
    numbers = {
        "candidate_ms": new,
        "stable_ms": old,
        "requests": ours.total,
        "stable_requests": theirs.total,
        "p_slower": slower,
    }
    told = (
        f"P{100 * rule.quantile:g} is {new:.3g} ms, {ratio:.2f} x {old:.3g} ms; at most {rule.max_ratio:g} x"
    )
    outcome, reason = Outcome.INCONCLUSIVE, ""
    matters = min(ours.total, theirs.total) >= _RANK_REQUESTS and longer >= rule.min_delta_ms
    ranks = matters and slower < _RANK_LEVEL * look.late
    if ranks or streak >= rule.confirm_looks:
        reason = "slower" if ranks else "tail"
        factor = f"{math.exp(shift / PER_E):.2g}"
        why = f"most requests are more than {factor} x as slow" if ranks else f"at {streak} looks in a row"
        outcome, told = Outcome.FAIL, f"{told}: {why}."
    elif min(ours.total, theirs.total) < question.needed:
        told, reason = f"{told}; {question.needed:,} requests are needed.", "too_few"
    elif not beyond:
        outcome = Outcome.PASS
        within = "." if ratio <= rule.max_ratio else f", and {new - old:.2g} ms more is nothing that matters."
        told += within
    else:
        told += f", to be confirmed by {rule.confirm_looks} looks at {TAIL_REQUESTS} requests each."
    return MetricVerdict(rule.name, outcome, told, ratio, rule.max_ratio, reason, streak, numbers=numbers)


def _prometheus(question: Question) -> MetricVerdict:
    rule = question.rule
    reading = question.look.readings.get(rule.name, Reading(error="it was not asked"))
    limit = rule.max if rule.max is not None else rule.min
    before = question.before
    if reading.error:
        streak = before.streak + 1 if before and before.outcome is Outcome.ERROR else 1
        told = f"It could not be measured, {streak} in a row: {reading.error}."
        return MetricVerdict(rule.name, Outcome.ERROR, told, limit=limit, reason="source", streak=streak)
    value = reading.value
    if value is None or math.isnan(value):
        return _nothing(question, "The query has no value.")
    if not question.candidate.requests:
        return _nothing(question, f"It is {value:g}, but the candidate answered nothing.")
    bounds = [f"at most {rule.max:g}"] if rule.max is not None else []
    bounds += [f"at least {rule.min:g}"] if rule.min is not None else []
    told = f"It is {value:g}; {' and '.join(bounds)}"
    beyond = (rule.max is not None and value > rule.max) or (rule.min is not None and value < rule.min)
    earlier = before.streak if before and before.outcome is not Outcome.ERROR else 0
    streak = earlier + 1 if beyond else 0
    outcome, reason = Outcome.INCONCLUSIVE, ""
    if streak >= rule.confirm_looks:
        outcome = Outcome.FAIL
    elif beyond:
        told += f", to be confirmed by {rule.confirm_looks} looks"
    elif question.candidate.requests < question.needed:
        told, reason = f"{told}; {question.needed:,} requests are needed", "too_few"
    else:
        outcome = Outcome.PASS
    return MetricVerdict(rule.name, outcome, f"{told}.", value, limit, reason, streak)


def _business(question: Question) -> MetricVerdict:
    from mlx_platform.serving.rollout.business import not_worse

    return not_worse(
        question.rule,
        question.candidate,
        question.stable,
        level=question.rule.alpha * question.look.level,
        needed=question.needed,
    )


_ASK: dict[str, Callable[[Question], MetricVerdict]] = {
    "proportion": _proportion,
    "latency_ratio": _latency_ratio,
    "prometheus": _prometheus,
    "business": _business,
}
