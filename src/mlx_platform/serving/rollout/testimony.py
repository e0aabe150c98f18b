"""The evidence that a rollout leaves about its candidate: `shadow` for the copies, `rollout` for the rest."""

from datetime import datetime
from typing import Any

from mlx_platform.core.evidence import Evidence
from mlx_platform.core.verdict import Verdict
from mlx_platform.core.version import VERSION
from mlx_platform.serving.rollout.judge import in_shadow
from mlx_platform.serving.rollout.machine import Transition
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict, verdict_of

_VERDICTS = {Outcome.PASS: Verdict.PASS, Outcome.FAIL: Verdict.FAIL, Outcome.ERROR: Verdict.ERROR}


def testimony_of(
    before: Rollout,
    decided: Transition,
    verdict: StepVerdict | None,
    now: datetime,
    *,
    by_hand: bool,
) -> tuple[Evidence, ...]:
    """What a transition proves: that the copies passed, that the rollout went through, or that one failed.

    Args:
        before: the rollout as it was.
        decided: what follows, which no person asked for.
        verdict: of the last look at the present window.
        now: the time.
        by_hand: whether somebody let it go past a step. One that went through all the same has shown nothing,
            and neither has one whose last look was no pass.
    """
    after = decided.rollout
    if verdict is None and before.state == "PROMOTING":
        verdict = verdict_of(before.verdicts, window=before.window)
    passed = verdict is not None and verdict.outcome is Outcome.PASS
    shadow = in_shadow(before.plan, before.step) and before.state != "BAKING"
    if "quarantine" in decided.effects:
        kind, outcome = ("shadow" if shadow else "rollout"), Verdict.FAIL
    elif before.state == "SHADOW" and passed and _moved_on(before, after):
        kind, outcome = "shadow", Verdict.PASS
    elif after.state == "PROMOTED":
        kind, outcome = "rollout", Verdict.PASS if passed and not by_hand else Verdict.UNDECIDED
    else:
        return ()
    metrics = verdict.metrics if verdict else ()
    evidence = Evidence(
        kind=kind,
        digest=before.candidate_digest,
        verdict=outcome,
        created=now,
        data_fingerprint="",
        parameters={
            "rollout": before.id,
            "stable": f"{before.model}/{before.stable}",
            "stable_digest": before.stable_digest,
            "step": before.at.title,
            "seconds": round(before.elapsed_s(now), 3),
            "cause": after.cause,
            "reason": after.reason,
        }
        | ({"advanced_by_hand": True} if by_hand else {}),
        numbers={
            **{found.name: _numbers(found) for found in metrics},
            "gates": [_gate(found) for found in metrics if not found.dry_run],
        },
        tools={"mlx-platform": VERSION},
    )
    return (evidence,)


def _moved_on(before: Rollout, after: Rollout) -> bool:
    """Whether a step was left for the next one, or for the end of a plan without a promotion."""
    return after.step > before.step or after.state == "COMPLETED"


def _numbers(found: MetricVerdict) -> dict[str, float]:
    measured = {} if found.measured is None else {"value": found.measured}
    return measured | dict(found.numbers)


def _gate(found: MetricVerdict) -> dict[str, Any]:
    return {
        "name": found.name,
        "verdict": str(_VERDICTS.get(found.outcome, Verdict.UNDECIDED)),
        "shown": found.message,
        "measured": found.measured,
        "threshold": "" if found.limit is None else f"{found.limit:g}",
    }
