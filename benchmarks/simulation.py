"""Rollouts of good and bad versions, drawn from a seed and judged by the judge that servers have.

Requests are drawn, nothing is served. How often a version that is fine is taken back, and how often and how
soon one that is not, is counted over many rounds.
"""

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
from measure import table

from mlx_platform.core.settings import Settings
from mlx_platform.serving.rollout.alarm import Alarm
from mlx_platform.serving.rollout.binomial import upper_bound
from mlx_platform.serving.rollout.counts import BUCKETS, LEAST_S, PER_E, ArmCounts, LatencyHistogram, Window
from mlx_platform.serving.rollout.judge import judge
from mlx_platform.serving.rollout.looks import Look, Schedule, planned_looks, schedule_of
from mlx_platform.serving.rollout.machine import Production, begin, next_state
from mlx_platform.serving.rollout.plan import MetricRule, Plan, Step, plan_of
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import Outcome, StepVerdict

LOOKS = 10
STABLE_AT_5 = 19  # requests of the stable version for each of a candidate with 5 %
MEDIAN_MS = 20.0
_SEED = 20261201
_TICK_S = 10.0  # between two times that the alarm is asked

Floats = npt.NDArray[np.float64]
Generator = np.random.Generator


def simulation(quick: bool) -> None:
    """All tables; quick: a tenth of the rounds."""
    scale = 10 if quick else 1
    _errors(20_000 // scale)
    _latency(500 // scale)
    _single_looks(500 // scale)
    _whole_rollouts(100 // scale)


# Errors


def _errors(rounds: int) -> None:
    """One step of ten looks, for candidates with a true share of errors; the limit is 1 %."""
    generator = np.random.default_rng(_SEED)
    lines = []
    for rate in (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.5):
        cells = [
            _naive(generator, rate, rounds),
            *(_exact(generator, rate, n, rounds) for n in (50, 100, 500)),
        ]
        lines.append((f"{rate:.1%}", *cells))
    table(
        f"Errors, limit 1 %: failed steps of {LOOKS} looks, {rounds:,} rounds (median look)",
        lines,
        (
            "true errors",
            "> 1 % in a window of 50",
            "judge, 50 a look",
            "judge, 100 a look",
            "judge, 500 a look",
        ),
    )


def _naive(generator: Generator, rate: float, rounds: int) -> str:
    found = generator.binomial(50, rate, (rounds, LOOKS))
    return _share(np.mean(np.any(found > 0.01 * 50, axis=1)), rounds)


def _exact(generator: Generator, rate: float, requests: int, rounds: int) -> str:
    drawn = np.cumsum(generator.binomial(requests, rate, (rounds, LOOKS)), axis=1)
    plan = _step_plan(MetricRule(name="errors", of="errors", max=0.01))
    schedule = planned_looks(1.0, float(LOOKS))
    failing = []  # by look, from how many errors on the judge says so; it is asked, not copied
    for look in range(1, LOOKS + 1):
        trials = requests * look
        failing.append(
            next(
                count
                for count in range(trials + 2)
                if count > trials or _fails(plan, schedule.look(look, float(look)), count, trials)
            )
        )
    hits = drawn >= np.array(failing)
    failed = np.any(hits, axis=1)
    first = np.argmax(hits, axis=1)[failed] + 1
    return _share(float(np.mean(failed)), rounds, first)


def _fails(plan: Plan, look: Look, errors: int, requests: int) -> bool:
    window = Window(0, {"canary": ArmCounts(requests=requests, errors=errors)})
    return judge(plan, 0, window, look).outcome is Outcome.FAIL


def _step_plan(*rules: MetricRule) -> Plan:
    return Plan(steps=(Step("weight", 5.0, 300, 0.0, float(LOOKS)),), metrics=rules, look_every_s=1.0)


# Latency


class Latency:
    """Lognormal times, as the share of requests in each bucket; `slow` of them are `factor` times as slow."""

    def __init__(self, sigma: float, *, factor: float = 1.0, slow: float = 1.0) -> None:
        edges = LEAST_S * np.exp(np.arange(1, BUCKETS) / PER_E)
        quick = self._below(edges, sigma, 1.0)
        below = (1.0 - slow) * quick + slow * self._below(edges, sigma, factor)
        self.shares = np.diff(np.concatenate([[0.0], below, [1.0]]))

    @staticmethod
    def _below(edges: Floats, sigma: float, factor: float) -> Floats:
        normal = statistics.NormalDist(math.log(factor * MEDIAN_MS / 1000), sigma)
        return np.array([normal.cdf(math.log(edge)) for edge in edges])

    def draw(self, generator: Generator, requests: int) -> LatencyHistogram:
        """The times of that many requests."""
        counts = generator.multinomial(requests, self.shares)
        places = np.nonzero(counts)[0]
        return LatencyHistogram(dict(zip(places.tolist(), counts[places].tolist(), strict=True)))


_P99 = MetricRule(name="p99", kind="latency_ratio", on="weight")


def _latency(rounds: int) -> None:
    """One step of ten looks, at a weight of 5 % and of 50 %: healthy ones that fail, slow ones that do."""
    generator = np.random.default_rng(_SEED)
    lines = []
    for sigma in (0.5, 1.0):
        usual = Latency(sigma)
        for name, kind in _kinds(sigma).items():
            cells = [
                _judged(generator, (kind, usual), (n, n * times), rounds)
                for n in (50, 100)
                for times in (STABLE_AT_5, 1)
            ]
            lines.append((f"{sigma:g}", name, *cells))
    table(
        f"Latency, lognormal: failed steps of {LOOKS} looks, {rounds:,} rounds (median look)",
        lines,
        ("sigma", "candidate", "50 a look, 5 %", "50 a look, 50 %", "100 a look, 5 %", "100 a look, 50 %"),
    )


def _kinds(sigma: float) -> dict[str, Latency]:
    return {
        "healthy": Latency(sigma),
        "1.2 x as slow": Latency(sigma, factor=1.2),
        "2 x as slow": Latency(sigma, factor=2.0),
        "5 % are 10 x as slow": Latency(sigma, factor=10.0, slow=0.05),
    }


def _judged(
    generator: Generator, kinds: tuple[Latency, Latency], requests: tuple[int, int], rounds: int
) -> str:
    plan = _step_plan(_P99)
    schedule = planned_looks(1.0, float(LOOKS))
    first = []
    for _ in range(rounds):
        window = Window(0)
        verdict: StepVerdict | None = None
        for number in range(1, LOOKS + 1):
            window.arm("canary").latency.add(kinds[0].draw(generator, requests[0]))
            window.arm("stable").latency.add(kinds[1].draw(generator, requests[1]))
            verdict = judge(plan, 0, window, schedule.look(number, float(number)), verdict)
            if verdict.outcome is Outcome.FAIL:
                first.append(number)
                break
    return _share(len(first) / rounds, rounds, first)


def _single_looks(rounds: int) -> None:
    """One look: how often the ranks show that a version is slower, and the tail goes beyond its limit."""
    generator = np.random.default_rng(_SEED)
    lines = []
    for sigma in (0.5, 1.0):
        for name, kind in _kinds(sigma).items():
            seen = [_seen(generator, kind, Latency(sigma), n, rounds) for n in (50, 100, 300)]
            cells = [_share(ranks, rounds) for ranks, _ in seen]
            lines.append((f"{sigma:g}", name, *cells, _share(seen[-1][1], rounds)))
    table(
        f"Latency at a single look, with a weight of 5 %, {rounds:,} rounds",
        lines,
        ("sigma", "candidate", "ranks, n = 50", "ranks, n = 100", "ranks, n = 300", "tail, n = 300"),
    )


def _seen(
    generator: Generator, ours: Latency, theirs: Latency, requests: int, rounds: int
) -> tuple[float, float]:
    look = planned_looks(1.0, float(LOOKS)).look(1, 1.0)
    ranks = tails = 0
    for _ in range(rounds):
        window = Window(0)
        window.arm("canary").latency.add(ours.draw(generator, requests))
        window.arm("stable").latency.add(theirs.draw(generator, STABLE_AT_5 * requests))
        alone = judge(_step_plan(_P99), 0, window, look).metrics[0]
        ranks += alone.reason == "slower"
        at_once = replace(_P99, confirm_looks=1)
        tails += judge(_step_plan(at_once), 0, window, look).metrics[0].streak > 0
    return ranks / rounds, tails / rounds


# Whole rollouts


@dataclass(frozen=True, slots=True)
class World:
    """What requests meet: shares of errors and of copies that disagree, and times.

    `later` is the candidate's share of errors from `fails_at` seconds after the beginning of the step of 50 %
    on, or else once it is promoted.
    """

    errors: float = 0.002
    stable_errors: float = 0.002
    disagree: float = 0.005
    times: tuple[Latency, Latency] = field(default_factory=lambda: (Latency(0.5), Latency(0.5)))
    later: float | None = None
    fails_at: float | None = None
    per_second: float = 50.0


def _whole_rollouts(rounds: int) -> None:
    """The default plan from its start to its end, in simulated time, through judge and state machine."""
    generator = np.random.default_rng(_SEED)
    usual = Latency(0.5)
    worlds = {
        "healthy, 0.2 % errors": World(),
        "healthy, 0.5 % errors": World(errors=0.005, stable_errors=0.005),
        "healthy, sigma 1": World(times=(Latency(1.0), Latency(1.0))),
        "healthy, 10 requests a second": World(per_second=10.0),
        "2 % errors": World(errors=0.02),
        "3 % errors": World(errors=0.03),
        "5 % errors": World(errors=0.05),
        "2 x as slow": World(times=(usual, Latency(0.5, factor=2.0))),
        "5 % are 10 x as slow": World(times=(usual, Latency(0.5, factor=10.0, slow=0.05))),
        "5 % of copies disagree": World(disagree=0.05),
        "5 % errors once promoted": World(later=0.05),
        "50 % errors after 75 s at 50 %": World(later=0.5, fails_at=75.0),
        "both have 5 % errors": World(errors=0.05, stable_errors=0.05),
        "no traffic": World(per_second=0.0),
    }
    lines = []
    for name, world in worlds.items():
        ends: Counter[str] = Counter()
        spent, exposed = [], []
        for _ in range(rounds):
            rollout, seconds, answered = _roll_out(generator, world)
            ends[f"{rollout.state} {rollout.cause}"] += 1
            spent.append(seconds)
            exposed.append(answered)
        told = ", ".join(f"{end} {_share(count / rounds, rounds)}" for end, count in ends.most_common(3))
        median = timedelta(seconds=round(statistics.median(spent)))
        lines.append((name, told, str(median), f"{statistics.median(exposed):,.0f}"))
    table(
        f"The default plan as a whole, 50 requests a second, {rounds:,} rounds",
        lines,
        ("candidate", "ends", "median time", "median requests it answered before the end"),
    )


def _next_s(schedule: Schedule, taken: int) -> float:
    """When the look after number `taken` is due, in seconds since the step began."""
    if taken < len(schedule.times):
        return schedule.times[taken]
    return schedule.times[-1] * 2.0 ** (taken - len(schedule.times) + 1)


def _roll_out(generator: Generator, world: World) -> tuple[Rollout, float, float]:
    """One rollout until it ends or waits; with its seconds, and the requests that the candidate answered."""
    plan = plan_of(Settings().rollout)
    start = now = datetime(2026, 12, 1, tzinfo=UTC)
    rollout = begin(
        plan, id="simulated", model="m", stable=1, candidate=2, stable_digest="1", candidate_digest="2",
        now=now, actor="simulation",
    )  # fmt: skip
    production = Production(1)
    answered = 0.0
    while rollout.active and rollout.state != "PAUSED":
        baking = rollout.state == "BAKING"
        window = Window(rollout.window)
        if baking:
            window.arms["stable"] = ArmCounts.from_document(rollout.baseline)
        schedule = schedule_of(plan, rollout.step, baking=baking)
        verdict: StepVerdict | None = None
        before, taken = 0.0, 0
        moved, alarm = None, Alarm()
        while moved is None:
            elapsed = min(_next_s(schedule, taken), before + _TICK_S)
            answered += _requests(generator, world, rollout, window, elapsed - before, before)
            before, now = elapsed, rollout.step_since + timedelta(seconds=elapsed)
            look = schedule.look(taken + 1, elapsed)
            if elapsed >= _next_s(schedule, taken):
                taken += 1
                verdict = judge(plan, rollout.step, window, look, verdict, baking=baking)
            else:
                verdict = alarm.hear(plan, rollout.step, window, look, baking=baking) or verdict
            baseline = window.arm("stable").document()
            moved = next_state(rollout, now=now, production=production, verdict=verdict, baseline=baseline)
        rollout = moved.rollout
        if rollout.state == "PROMOTING":
            production = Production(2, rollout.id)
            moved = next_state(rollout, now=now, production=production)
            rollout = moved.rollout if moved else rollout
    return rollout, (now - start).total_seconds(), answered


def _requests(
    generator: Generator, world: World, rollout: Rollout, window: Window, seconds: float, before: float
) -> int:
    """Draw the requests of some seconds into the window; how many of them the candidate answered.

    `before` is how many seconds of the window have gone by.
    """
    every = int(generator.poisson(world.per_second * seconds))
    ours = int(generator.binomial(every, rollout.weight / 100))
    stable, slow = world.times
    baking = rollout.state == "BAKING"
    late = baking if world.fails_at is None else rollout.weight >= 50 and before >= world.fails_at
    rate = world.later if late and world.later is not None else world.errors
    if not baking:
        _draw(generator, window.arm("stable"), every - ours, world.stable_errors, stable)
    copied = int(generator.binomial(every - ours, rollout.shadow / 100))
    copies = window.arm("shadow")
    _draw(generator, copies, copied, rate, slow)
    copies.compared += copied
    copies.disagreed += int(generator.binomial(copied, world.disagree))
    _draw(generator, window.arm("canary"), ours, rate, slow)
    return ours


def _draw(generator: Generator, counts: ArmCounts, requests: int, rate: float, times: Latency) -> None:
    counts.requests += requests
    counts.errors += int(generator.binomial(requests, rate))
    counts.latency.add(times.draw(generator, requests))


def _share(share: float, rounds: int, first: npt.ArrayLike = ()) -> str:
    """A share with its upper bound where it never happened, and the median look where it did."""
    count = round(share * rounds)
    looks = list(np.atleast_1d(np.asarray(first)))
    if not count:
        return f"0 % (< {upper_bound(0, rounds):.2%})"
    return (f"{share:.1%}" if share >= 0.001 else f"{share:.2%}") + (
        f" ({statistics.median(looks):g})" if looks else ""
    )
