"""What became of requests, arm by arm: a guard against losing too much, and the question of an A/B test."""

from mlx_platform.evaluation.ab import Difference, Sample, difference
from mlx_platform.serving.rollout.counts import ArmCounts, Moments, Window
from mlx_platform.serving.rollout.plan import AbRule, MetricRule
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome

_LEAST = 50  # outcomes on both arms, before a difference is believed
_CONFIDENCE = 0.95
_LEAST_LEVEL = 1e-12  # below it numbers have no digits left


def not_worse(
    rule: MetricRule, candidate: ArmCounts, stable: ArmCounts, *, level: float, needed: int
) -> MetricVerdict:
    """Whether the candidate loses more of an outcome than it may.

    It fails where it is worse by more than `max_drop` at the level of the look, and passes where it is not
    at 95 %, both one-sided.

    Args:
        rule: of kind business.
        candidate: its counts.
        stable: likewise.
        level: what the look may spend.
        needed: requests of the candidate that a pass needs.
    """
    ours, theirs = _sample(candidate, rule.of), _sample(stable, rule.of)
    if not ours.count or not theirs.count:
        whose = "the candidate" if not ours.count else "the stable version"
        told = f"Nobody has said what became of a request that {whose} answered."
        return MetricVerdict(rule.name, Outcome.NO_DATA, told, limit=rule.max_drop, dry_run=rule.dry_run)
    passing = difference(theirs, ours, 2 * _CONFIDENCE - 1)
    failing = difference(theirs, ours, 1 - 2 * max(level, _LEAST_LEVEL))
    sign = 1.0 if rule.direction == "higher" else -1.0
    drop = -sign * passing.value
    numbers = {
        "candidate": ours.mean,
        "stable": theirs.mean,
        "outcomes": ours.count,
        "stable_outcomes": theirs.count,
        "level": level,
    }
    told = (
        f"{rule.of} is {ours.mean:.4g} of {ours.count:,} outcomes, {theirs.mean:.4g} of {theirs.count:,} "
        f"with the stable version; it may be worse by {rule.max_drop:g}"
    )
    outcome, reason = Outcome.INCONCLUSIVE, ""
    if min(ours.count, theirs.count) < _LEAST or candidate.requests < needed:
        told, reason = f"{told}; more are needed", "too_few"
    elif _least_drop(failing, sign) > rule.max_drop:
        outcome, told = Outcome.FAIL, f"{told}, and is by {_least_drop(failing, sign):.4g} at least"
    elif _most_drop(passing, sign) < rule.max_drop:
        outcome, told = Outcome.PASS, f"{told}, and is by {max(0.0, _most_drop(passing, sign)):.4g} at most"
    return MetricVerdict(rule.name, outcome, f"{told}.", drop, rule.max_drop, reason, numbers=numbers)


def compare_arms(rule: AbRule, window: Window) -> MetricVerdict:
    """The question of an A/B test, asked once both arms have the outcomes that were planned.

    It is inconclusive until then and a pass afterwards, whoever has won: `reason` says who.
    """
    theirs = _sample(window.arms.get("stable") or ArmCounts(), rule.metric)
    ours = _sample(window.arms.get("canary") or ArmCounts(), rule.metric)
    numbers: dict[str, float] = {"outcomes": ours.count, "stable_outcomes": theirs.count}
    if not ours.count or not theirs.count:
        told = f"Nobody has said the {rule.metric} of both arms: {theirs.count:,} and {ours.count:,}."
        return MetricVerdict(rule.metric, Outcome.NO_DATA, told, limit=rule.min_effect, numbers=numbers)
    stable_needed, candidate_needed = rule.required
    if theirs.count < stable_needed or ours.count < candidate_needed:
        told = (
            f"{rule.metric}: {theirs.count:,} of {stable_needed:,} outcomes of the stable version and "
            f"{ours.count:,} of {candidate_needed:,} of the candidate are there. Nobody looks at them before."
        )
        return MetricVerdict(
            rule.metric, Outcome.INCONCLUSIVE, told, None, rule.min_effect, "too_few", numbers=numbers
        )
    found = difference(theirs, ours, 1 - rule.alpha)
    winner = found.winner(rule.alpha, higher_is_better=rule.direction == "higher")
    numbers |= {"candidate": ours.mean, "stable": theirs.mean}
    numbers |= {"difference": found.value, "lower": found.lower, "upper": found.upper, "p": found.p}
    told = (
        f"{rule.metric} is {ours.mean:.4g} with the candidate and {theirs.mean:.4g} with the stable version: "
        f"{found.value:+.4g} [{found.lower:+.4g}, {found.upper:+.4g}], p = {found.p:.3g} ({found.method}). "
        + _SAID[winner]
    )
    return MetricVerdict(
        rule.metric, Outcome.PASS, told, found.value, rule.min_effect, winner, numbers=numbers
    )


_SAID = {
    "candidate": "The candidate wins.",
    "stable": "The stable version wins.",
    "none": "Neither wins: the difference may be luck.",
}


def _sample(counts: ArmCounts, metric: str) -> Sample:
    found = counts.outcomes.get(metric) or Moments()
    return Sample(found.count, found.mean, found.variance, found.binary)


def _least_drop(found: Difference, sign: float) -> float:
    return -found.upper if sign > 0 else found.lower


def _most_drop(found: Difference, sign: float) -> float:
    return -found.lower if sign > 0 else found.upper
