"""Offices of several processes on one real registry; only time is made."""

from functools import partial

from fleets import MODEL

from mlx_platform.registry.catalog import Catalog
from mlx_platform.serving.rollout.carrying import rollout_in
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.deaths import Marks
from mlx_platform.serving.rollout.lookbook import Lookbook
from mlx_platform.serving.rollout.notice import tell_beside
from mlx_platform.serving.rollout.office import Office, Own
from mlx_platform.serving.rollout.plan import MetricRule, Plan, Step

_ERRORS = MetricRule(name="error_rate", kind="proportion", of="errors", max=0.01)
_LATENCY = MetricRule(name="p99", kind="latency_ratio")
_STEP = Step("weight", 50.0, 300, 1.0, 60.0)
PLAN = Plan(
    steps=(Step("shadow", 100.0, 300, 1.0, 60.0), _STEP, Step("weight", 100.0, bake_s=10.0)),
    metrics=(_ERRORS, _LATENCY),
    look_every_s=1.0,
)


class Time:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


class Process:
    """An office, and what its process would count."""

    def __init__(self, fleet, name, time, settings=None):
        self.evidence = []
        self.folder = fleet.folder / "machines" / name.partition("-")[0]
        self.catalog = Catalog(fleet.settings)
        self.marks = Marks(self.folder / "loaded", name)
        self.window = Window(-1)
        self.differences = ()
        self.office = Office(
            self.catalog,
            MODEL,
            "production",
            me=name,
            marks=self.marks,
            book=Lookbook(self.folder / "looks"),
            witness=lambda ref, evidence: self.evidence.append((ref, evidence)),
            tell=partial(tell_beside, settings or fleet.settings, MODEL),
            monotonic=time,
        )
        self.standing = None

    def counts(self, *, requests, errors=0, seconds=0.002, slower=1.0, stable_errors=0):
        self._follow(rollout_in(self.catalog.sight(MODEL)))
        for index in range(requests):
            self.window.arm("stable").observe(seconds, failed=index < stable_errors)
            for arm in ("canary", "shadow"):
                self.window.arm(arm).observe(seconds * slower, failed=index < errors)

    def turn(self):
        sight = self.catalog.sight(MODEL)
        rollout = rollout_in(sight)
        self._follow(rollout)
        seen = self.differences
        own = Own(rollout.id, self.window, loaded=True, differences=seen) if rollout else None
        self.standing = self.office.turn(sight, own)
        return self.standing

    def _follow(self, rollout):
        if rollout is not None and self.window.number != rollout.window:
            self.window = Window(rollout.window)


def passes(process, time, *, requests=400):
    """Count what passes, and look."""
    process.turn()
    process.counts(requests=requests)
    time.passes(1.5)
    return process.turn()
