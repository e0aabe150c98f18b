"""A rollout drawn: where it stands, what each arm counted, what every metric says, and what comes next."""

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.report import Fact, Table
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.serving.rollout.counts import ArmCounts
from mlx_platform.serving.rollout.plan import Plan, Step
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import Outcome
from mlx_platform.workflows.rollouts.planning import duration, limit
from mlx_platform.workflows.rollouts.seen import Seen, verdict_of_outcome

_ARMS = ("stable", "canary", "shadow")
CAUSES = {
    "step": "its plan pauses here",
    "manual": "by hand",
    "fail": "a metric failed",
    "inconclusive": "nothing was decided in the time of the step",
    "no_data": "there was nothing to judge",
    "metric_error": "a metric could not be measured",
    "baseline_unhealthy": "the stable version fails itself",
    "server_died": "servers died with the candidate loaded",
    "deadline": "its deadline passed",
    "moved": "somebody moved production",
}
"""Why a rollout is where it is, by the word that its event has."""


def place_text(rollout: Rollout) -> str:
    """Where it stands, in a few words: `step 2 of 6 (weight 5 %)`, `paused in step 2 of 6`, `promoted`."""
    state, steps = rollout.state, len(rollout.plan.steps)
    step = f"step {rollout.step + 1} of {steps}"
    match state:
        case "SHADOW" | "STEP":
            return f"{step} ({rollout.at.title})"
        case "PAUSED":
            share = f"at {rollout.weight:g} %" if rollout.weight else f"with {rollout.shadow:g} % copied"
            return f"paused in {step}, {share}"
        case "PROMOTING":
            return "about to be promoted"
        case "BAKING":
            return f"promoted, baking for {duration(rollout.plan.bake_s)}"
    return state.lower().replace("_", " ")


def why_text(rollout: Rollout) -> str:
    """Why it is there; empty where its state says it all."""
    cause, reason = CAUSES.get(rollout.cause, ""), printable(rollout.reason, 500)
    if cause and reason:
        return f"{cause}: {reason}"
    return cause or reason


def summary(seen: Seen) -> str:
    """One sentence, the same as long as nothing changes that anybody acts on."""
    rollout = seen.rollout
    text = f"{rollout.ref}: {place_text(rollout)}"
    why = why_text(rollout) if rollout.state not in {"SHADOW", "STEP", "BAKING", "PROMOTED"} else ""
    if rollout.state == "COMPLETED" and rollout.plan.ab:
        why = _answer(rollout) or why
    return f"{text}: {why.rstrip('.')}." if why else f"{text}."


def _answer(rollout: Rollout) -> str:
    """What an A/B test has found."""
    metric = rollout.plan.ab.metric if rollout.plan.ab else ""
    found = next((verdict for verdict in rollout.verdicts if verdict.get("name") == metric), {})
    return printable(str(found.get("message", "")), 500)


def facts(seen: Seen) -> tuple[Fact, ...]:
    """Where a rollout stands in a few lines; what there is nothing to say of is left out."""
    rollout, now = seen.rollout, seen.now
    since, ago = both_zones(rollout.state_since), duration((now - rollout.state_since).total_seconds())
    found = {
        "rollout": rollout.id,
        "candidate": f"{rollout.ref}, digest {rollout.candidate_digest[:16]}",
        rollout.channel: f"{rollout.model}/{rollout.stable} when it began",
        "started": both_zones(rollout.started_at),
        "state": f"{rollout.state} since {since}, {ago}" if rollout.active else f"{rollout.state} at {since}",
        "because": why_text(rollout),
        "by hand": printable(", ".join(rollout.overridden), 200),
        "who": printable(rollout.actor, 80),
        "traffic": _traffic(rollout) if rollout.active else "",
        "next": next_text(seen),
        "leads": printable(seen.leader, 80) if rollout.active else "",
    }
    return tuple(Fact(label, value) for label, value in found.items() if value)


def _traffic(rollout: Rollout) -> str:
    parts = [f"{rollout.share:g} % answered by the candidate"] if rollout.share else []
    if rollout.shadow:
        parts.append(f"{rollout.shadow:g} % of the others copied to it")
    return ", ".join(parts) or "none"


def next_text(seen: Seen) -> str:
    """What comes next, and when; empty once it has ended."""
    rollout, now = seen.rollout, seen.now
    elapsed = rollout.elapsed_s(now)
    match rollout.state:
        case "SHADOW" | "STEP":
            step = rollout.at
            wait = step.min_duration_s - elapsed
            earliest = f" and {duration(wait)} have passed" if wait > 0 else ""
            text = f"{_after(rollout)} once every metric passes{earliest}"
            if step.max_duration_s is not None:
                left = step.max_duration_s - elapsed
                text += f"; without that it pauses in {duration(left)}" if left > 0 else "; its time is over"
            return text
        case "PAUSED":
            resumes = seen.resumes
            if seen.timed_pause and resumes is not None:
                left = (resumes - now).total_seconds()
                return f"goes on in {duration(max(0.0, left))}, at {both_zones(resumes)}"
            return f"waits for somebody: mlx rollout resume {rollout.model}, or abort"
        case "PROMOTING":
            return f"{rollout.channel} moves to {rollout.ref}"
        case "BAKING":
            left = max(0.0, rollout.plan.bake_s - elapsed)
            return f"done in {duration(left)}; until then it can still be rolled back"
    return ""


def _after(rollout: Rollout) -> str:
    steps = rollout.plan.steps
    if rollout.step + 1 < len(steps):
        return steps[rollout.step + 1].title
    if rollout.plan.ab:
        return "the answer"
    return "the promotion" if rollout.plan.promotes else "the end"


def arm_table(seen: Seen) -> Table | None:
    """What both arms, and the copies, counted since the step began."""
    rollout = seen.rollout
    rows = []
    for arm in _ARMS:
        counts = seen.window.arms.get(arm)  # type: ignore[call-overload]  # one of the arms
        if counts is None:
            continue
        version = rollout.stable if arm == "stable" else rollout.candidate
        rows.append((arm, f"{rollout.model}/{version}", *_counted(counts)))
    if not rows:
        return None
    columns = ("arm", "version", "requests", "errors", "error rate", "P50 ms", "P99 ms", "compared", "differ")
    return Table(f"Counted since step {rollout.step + 1} began", columns, tuple(rows), tuple(range(2, 9)))


def _counted(counts: ArmCounts) -> tuple[str, ...]:
    rate = f"{counts.errors / counts.requests:.2%}" if counts.requests else ""
    compared = (
        (f"{counts.compared:,}", f"{counts.disagreed / counts.compared:.2%}") if counts.compared else ("", "")
    )
    quantiles = (milliseconds(counts.latency.quantile(share)) for share in (0.5, 0.99))
    return (f"{counts.requests:,}", f"{counts.errors:,}", rate, *quantiles, *compared)


def outcome_table(seen: Seen) -> Table | None:
    """What `mlx feedback` told about the requests of each arm."""
    rows = [
        (name, arm, f"{moments.count:,}", f"{moments.mean:.4g}")
        for arm, counts in seen.window.arms.items()
        for name, moments in sorted(counts.outcomes.items())
    ]
    if not rows:
        return None
    return Table("Outcomes", ("outcome", "arm", "requests", "mean"), tuple(sorted(rows)), numeric=(2, 3))


def process_table(seen: Seen) -> Table | None:
    """The processes that take part, and whether they have the candidate."""
    rows = tuple(
        (
            said.server,
            _loaded(said.loaded, said.problem, clean=said.clean),
            f"{sum(counts.requests for counts in said.counted.arms.values()):,}",
            printable(said.at, 40),
            "leads" if said.server == seen.leader else "",
        )
        for said in seen.processes
    )
    if not rows:
        return None
    return Table("Servers", ("server", "candidate", "requests", "last word", ""), rows, numeric=(2,))


def _loaded(loaded: bool, problem: str, *, clean: bool) -> str:
    if clean:
        return "has said goodbye"
    return "loaded" if loaded else printable(problem, 300) or "not loaded yet"


def checks(seen: Seen) -> tuple[Check, ...]:
    """The metrics of the last look; of a rollout that has ended, those that decided."""
    rollout = seen.rollout
    if seen.look is not None and rollout.active:
        return tuple(check_of(metric.document(), rollout.plan) for metric in seen.look.metrics)
    return tuple(check_of(document, rollout.plan) for document in rollout.verdicts)


def check_of(document: Mapping[str, Any], plan: Plan) -> Check:
    """One metric of a look, as its event or its tag has it."""
    name = printable(str(document.get("name", "")), 80)
    rule = next((rule for rule in plan.metrics if rule.name == name), None)
    asked = limit(rule) if rule else ""
    if plan.ab and name == plan.ab.metric:
        asked = f"two-sided, {plan.ab.alpha:g}"
    return Check(
        name=name,
        verdict=_verdict(document),
        measured=measured_text(document, rule.kind if rule else ""),
        threshold=asked,
        message=printable(str(document.get("message", "")), 500),
        group="rollout",
        skipped="dry run: decides nothing" if document.get("dry_run") else "",
        values=tuple((key, f"{value:g}") for key, value in _numbers(document).items()),
    )


def _verdict(document: Mapping[str, Any]) -> Verdict:
    try:
        return verdict_of_outcome(Outcome(str(document.get("outcome"))))
    except ValueError:
        return Verdict.ERROR


def _numbers(document: Mapping[str, Any]) -> dict[str, float]:
    found = document.get("numbers")
    if not isinstance(found, Mapping):
        return {}
    return {
        printable(str(key), 40): float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def measured_text(document: Mapping[str, Any], kind: str) -> str:
    """What a metric measured, with its unit."""
    value = document.get("measured")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if kind == "proportion":
        return f"{value:.2%}"
    return f"{value:.3g} x" if kind == "latency_ratio" else f"{value:.4g}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds for a table; nothing where there were none."""
    return (
        "" if math.isnan(seconds) else f"{seconds * 1000:,.3g}" if seconds < 1 else f"{seconds * 1000:,.0f}"
    )


def document(seen: Seen) -> dict[str, Any]:
    """Where a rollout stands, JSON-ready."""
    rollout = seen.rollout
    found = rollout.document()
    return {
        "name": rollout.model,
        "id": rollout.id,
        "active": rollout.active,
        "waits": rollout.active and seen.settled,
        **{key: found.get(key) for key in ("state", "cause", "reason", "actor", "channel")},
        "winner": winner(rollout),
        "overridden": list(rollout.overridden),
        "version": rollout.candidate,
        "digest": rollout.candidate_digest,
        "stable": rollout.stable,
        "step": rollout.step + 1,
        "steps": [step_document(step) for step in rollout.plan.steps],
        "weight": rollout.share,
        "shadow": rollout.split[1],
        "started_at": rfc3339(rollout.started_at),
        "state_since": rfc3339(rollout.state_since),
        "step_since": rfc3339(rollout.step_since),
        "now": rfc3339(seen.now),
        "next": next_text(seen) or None,
        "ready_at": _ready_at(seen),
        "leader": (seen.leader if rollout.active else "") or None,
        "event": rollout.event,
        "look": seen.look.look if seen.look else None,
        "metrics": [dict(metric) for metric in _metrics(seen)],
        "arms": {arm: arm_document(counts) for arm, counts in seen.window.arms.items()},
        "servers": [
            {
                "server": said.server,
                "loaded": said.loaded,
                "problem": said.problem,
                "clean": said.clean,
                "deaths": said.deaths,
                "at": said.at,
            }
            for said in seen.processes
        ],
    }


def winner(rollout: Rollout) -> str | None:
    """Who won an A/B test: `candidate`, `stable` or `none`; null before it is over, and without one."""
    if rollout.state != "COMPLETED" or rollout.plan.ab is None:
        return None
    metric = rollout.plan.ab.metric
    found = (verdict for verdict in rollout.verdicts if verdict.get("name") == metric)
    return next((str(verdict.get("reason", "none")) for verdict in found), None)


def _metrics(seen: Seen) -> Iterable[Mapping[str, Any]]:
    if seen.look is not None and seen.rollout.active:
        return (metric.document() for metric in seen.look.metrics)
    return seen.rollout.verdicts


def step_document(step: Step) -> dict[str, Any]:
    """A step of a plan, JSON-ready."""
    return {
        "kind": step.kind,
        "percent": step.percent,
        "min_requests": step.min_requests,
        "min_duration_seconds": step.min_duration_s,
        "max_duration_seconds": step.max_duration_s,
        "bake_seconds": step.bake_s,
    }


def _ready_at(seen: Seen) -> str | None:
    """The earliest moment at which the next state may come by itself."""
    rollout = seen.rollout
    if rollout.state in {"SHADOW", "STEP"}:
        return rfc3339(rollout.step_since + timedelta(seconds=rollout.at.min_duration_s))
    if rollout.state == "BAKING":
        return rfc3339(rollout.step_since + timedelta(seconds=rollout.plan.bake_s))
    return rfc3339(seen.resumes) if seen.timed_pause and seen.resumes else None


def arm_document(counts: ArmCounts) -> dict[str, Any]:
    """One arm's counts as numbers."""
    return {
        "requests": counts.requests,
        "errors": counts.errors,
        "p50_seconds": counts.latency.quantile(0.5),
        "p99_seconds": counts.latency.quantile(0.99),
        "compared": counts.compared,
        "disagreed": counts.disagreed,
        "by_output": dict(counts.by_output),
        "outcomes": {
            name: {"count": moments.count, "mean": moments.mean, "variance": moments.variance}
            for name, moments in counts.outcomes.items()
        },
    }
