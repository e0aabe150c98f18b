"""What cannot wait for the next look: a candidate that is fine at one look and fails everything after it.

Looks lie further apart the longer a step lasts, and they count everything since it began. So what happened
since the last look is watched by itself, all the time, with a test that may be asked at any time. It spends a
tenth of what the next look spends, and takes only shares: errors, and copies that disagree.
"""

import math

from mlx_platform.core.values import frozen
from mlx_platform.serving.rollout.binomial import sequential_evidence
from mlx_platform.serving.rollout.counts import ArmCounts, Window
from mlx_platform.serving.rollout.judge import BASELINE_UNHEALTHY, in_shadow
from mlx_platform.serving.rollout.looks import Look
from mlx_platform.serving.rollout.plan import MetricRule, Plan
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict

_PART = 0.1  # of the level of a look


@frozen
class _Counts:
    count: int
    trials: int


class Alarm:
    """Watches one rollout between its looks."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None
        self._before: dict[tuple[str, bool], _Counts] = {}

    def hear(
        self, plan: Plan, step: int, window: Window, look: Look, *, baking: bool = False
    ) -> StepVerdict | None:
        """Tell what was counted by now.

        Args:
            plan: of the rollout.
            step: the index of its step.
            window: what all servers have counted in its window.
            look: the next one that is due: what is heard until then belongs together.
            baking: whether it is promoted, and no requests of the stable version are counted.

        Returns:
            A verdict that is no matter of luck: that the candidate fails, or that both versions do, which is
            inconclusive. None as long as there is none.
        """
        shadow = in_shadow(plan, step) and not baking
        arms = {name: window.arms.get(name) or ArmCounts() for name in ("stable", "canary", "shadow")}
        now = {
            (name, copies): _Counts(*_pair(counts, copies=copies))
            for name, counts in arms.items()
            for copies in (False, True)
        }
        key = (window.number, look.number)
        if key != self._key:
            fresh = self._key is None or self._key[0] != window.number
            self._key = key
            # A window that is new has everything still to tell; one that is gone on with begins here.
            self._before = {} if fresh and look.number == 1 else now
        for rule in plan.metrics:
            if rule.kind != "proportion" or rule.dry_run or not rule.applies(shadow=shadow):
                continue
            found = self._ask(rule, now, look, shadow=shadow, guarded=not (plan.skip_baseline or baking))
            if found:
                return StepVerdict(found.outcome, (found,), window.number, look.number - 1, look.elapsed_s)
        return None

    def _ask(
        self,
        rule: MetricRule,
        now: dict[tuple[str, bool], _Counts],
        look: Look,
        *,
        shadow: bool,
        guarded: bool,
    ) -> MetricVerdict | None:
        copies, limit = rule.of == "disagree", rule.max or 0.0
        needed = math.log(1.0 / (rule.alpha * look.level * _PART))
        ours = self._since(now, "shadow" if copies or shadow else "canary", copies=copies)
        if ours.count == 0 or sequential_evidence(ours.count, ours.trials, limit) < needed:
            return None
        rate = ours.count / ours.trials
        what = "copies that disagree" if copies else "errors"
        told = (
            f"{rate:.2%} {what}, {ours.count:,} of {ours.trials:,} since the last look; at most {limit:.2%}."
        )
        theirs = self._since(now, "stable", copies=False)
        if guarded and not copies and theirs.count > limit * theirs.trials:
            if sequential_evidence(theirs.count, theirs.trials, limit) < needed:
                return None  # perhaps an outage, of which the candidate only had the first half
            told = f"The stable version fails itself, {theirs.count:,} of {theirs.trials:,}. {told}"
            return MetricVerdict(rule.name, Outcome.INCONCLUSIVE, told, rate, limit, BASELINE_UNHEALTHY)
        return MetricVerdict(rule.name, Outcome.FAIL, told, rate, limit, "alarm", failed=True)

    def _since(self, now: dict[tuple[str, bool], _Counts], arm: str, *, copies: bool) -> _Counts:
        """What was counted since the last look; counts of a server that has gone may be missing."""
        present, before = now[arm, copies], self._before.get((arm, copies), _Counts(0, 0))
        trials = max(0, present.trials - before.trials)
        return _Counts(min(trials, max(0, present.count - before.count)), trials)


def _pair(counts: ArmCounts, *, copies: bool) -> tuple[int, int]:
    return (counts.disagreed, counts.compared) if copies else (counts.errors, counts.requests)
