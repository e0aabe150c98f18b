import random
from datetime import UTC, datetime

from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.lease import LEASE, Lease
from mlx_platform.serving.rollout.plan import Plan, Step
from mlx_platform.serving.rollout.publication import (
    ARMS,
    LOOK,
    Published,
    added_up,
    last_look,
    leftovers,
    look_tag,
    published,
)
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict

_AT = "2026-03-08T07:00:00Z"


def _window(number=3, *, requests=10, errors=1, seconds=0.002):
    window = Window(number)
    for index in range(requests):
        window.arm("stable").observe(seconds, failed=False)
        window.arm("canary").observe(2 * seconds, failed=index < errors)
    return window


def _rollout():
    now = datetime(2026, 3, 8, 7, tzinfo=UTC)
    plan = Plan((Step("weight", 50.0),))
    return Rollout("r1", "m", "production", 1, 2, "a", "b", plan, "STEP", 0, 3, 50.0, 0.0, now, now, now)


def test_what_a_process_says_reads_back():
    said = Published("host-1", "r1", _window(), _AT, deaths=1, loaded=True, problem="", clean=True)
    assert published({said.tag: said.encode()}, "r1") == (said,)
    assert published({said.tag: said.encode()}, "r2") == ()


def test_windows_of_all_processes_add_up_and_others_do_not():
    tags = {}
    for server, window in (("a-1", _window(3)), ("a-2", _window(3)), ("b-1", _window(2))):
        said = Published(server, "r1", window, _AT)
        tags[said.tag] = said.encode()
    total = added_up(published(tags, "r1"), 3)
    assert (total.arm("canary").requests, total.arm("canary").errors) == (20, 2)
    assert total.arm("stable").latency.total == 20


def test_text_of_others_is_passed_over():
    said = Published("a-1", "r1", _window(), _AT)
    good = said.encode()
    tags = {f"{ARMS}x": "", f"{ARMS}y": "[]", f"{ARMS}z": good.replace('"n":10', '"n":-1'), said.tag: good}
    assert [found.server for found in published(tags, "r1")] == ["a-1"]


def test_the_tag_stays_small_however_much_was_counted():
    window, chance = Window(1), random.Random(0)  # noqa: S311 - test data
    for name in ("stable", "canary", "shadow"):
        arm = window.arm(name)
        for _ in range(20_000):
            arm.observe(chance.lognormvariate(-6, 2.5), failed=chance.random() < 0.1)
        for index in range(300):
            arm.compare([f"output-{index}"])
            arm.outcome(f"metric-{index % 40}", chance.random())
    text = Published("a-1", "r1", window, _AT, problem="x" * 1000).encode()
    assert len(text) <= 5000
    found = Published.decode(f"{ARMS}a-1", text)
    assert found is not None
    assert found.counted.arm("canary").requests == 20_000


def test_the_last_look_reads_back():
    verdict = StepVerdict(
        Outcome.FAIL, (MetricVerdict("errors", Outcome.FAIL, "many", 0.1, 0.01, failed=True),), 3, 4, 12.5
    )
    tags = {LOOK: look_tag(_rollout(), verdict, _AT)}
    assert last_look(tags, "r1") == verdict
    assert last_look(tags, "r2") is None
    assert last_look({LOOK: "{"}, "r1") is None
    assert last_look({}, "r1") is None


def test_a_look_with_many_metrics_loses_its_numbers_first():
    numbers = {f"number_{index}": index / 7 for index in range(20)}
    metrics = tuple(MetricVerdict(f"m{index}", Outcome.PASS, "fine", numbers=numbers) for index in range(20))
    text = look_tag(_rollout(), StepVerdict(Outcome.PASS, metrics, 3), _AT)
    assert len(text) <= 5000
    found = last_look({LOOK: text}, "r1")
    assert found is not None
    assert len(found.metrics) == 20


def test_leftovers_are_the_tags_of_other_rollouts():
    old, new = Published("a-1", "r0", _window(), _AT), Published("a-2", "r1", _window(), _AT)
    tags = {old.tag: old.encode(), new.tag: new.encode(), LEASE: Lease("r1", "a-2").encode(), "mine": "x"}
    assert leftovers(tags, "r1") == (old.tag,)
    assert leftovers(tags, None) == (old.tag, new.tag, LEASE)
