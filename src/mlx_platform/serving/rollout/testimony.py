"""The evidence that a rollout leaves about its candidate: `shadow` for the copies, `rollout` for the rest."""

from datetime import datetime
from typing import Any

from mlx_platform.core.evidence import Evidence
from mlx_platform.core.verdict import Verdict
from mlx_platform.core.version import VERSION
from mlx_platform.serving.rollout.judge import in_shadow
from mlx_platform.serving.rollout.machine import Transition
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict

_VERDICTS = {Outcome.PASS: Verdict.PASS, Outcome.FAIL: Verdict.FAIL, Outcome.ERROR: Verdict.ERROR}


def testimony_of(
    before: Rollout, decided: Transition, verdict: StepVerdict | None, now: datetime
) -> tuple[Evidence, ...]:
    """What a transition proves: that the copies passed, that the rollout went through, or that one failed.

    What somebody decided by hand proves nothing.
    """
    after = decided.rollout
    shadow = in_shadow(before.plan, before.step) and before.state != "BAKING"
    if "quarantine" in decided.effects:
        kind, outcome = ("shadow" if shadow else "rollout"), Verdict.FAIL
    elif shadow and after.cause == "passed":
        kind, outcome = "shadow", Verdict.PASS
    elif after.state == "PROMOTED":
        kind, outcome = "rollout", Verdict.PASS
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
        },
        numbers={
            **{found.name: _numbers(found) for found in metrics},
            "gates": [_gate(found) for found in metrics if not found.dry_run],
        },
        tools={"mlx-platform": VERSION},
    )
    return (evidence,)


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
