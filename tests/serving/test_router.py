"""Which version answers whom."""

import asyncio

import pytest

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.router import Router, Split
from mlx_platform.serving.served import Served

SETTINGS = ServingSettings()


@pytest.fixture
def serve_version(packages):
    def make(version):
        package = open_package(packages["affine"])
        model = Model.load(package, name="affine", version=version, device="cpu", threads=1)
        return Served(Engine(model, SETTINGS, Metrics(), None), SETTINGS)

    return make


def is_candidates(_seed, key, _share):
    return key.startswith("c")


def split(percent, key_header=b""):
    return Split("seed", percent, 0, key_header, is_candidates)


def test_without_a_split_everybody_gets_the_stable_version(serve_version):
    router = Router(serve_version("3"))
    assert router.choose("any", {}) is router.stable
    router.add(serve_version("4"), "warm")
    assert router.choose("any", {}) is router.stable
    router.split = split(100)
    assert router.choose("candidate's", {}) is router.stable  # there is none


def test_a_split_sends_by_request_or_by_the_header_that_it_names(serve_version):
    router, candidate = Router(serve_version("3")), serve_version("4")
    router.add(candidate, "warm")
    router.try_out(candidate)
    router.split = split(5)
    assert router.choose("c1", {}) is candidate
    assert router.choose("s1", {}) is router.stable
    router.split = split(5, b"x-user")
    assert router.choose("s1", {b"x-user": b"carl"}) is candidate
    assert router.choose("c1", {b"x-user": b"sue"}) is router.stable
    assert router.choose("c1", {}) is candidate  # who has no key is told apart by request
    router.split = split(0)
    assert router.choose("c1", {}) is router.stable
    assert (router.stable.arm, candidate.arm) == ("production", "canary")
    assert b"x-mlx-arm: canary" in candidate.identity.lines


def test_a_version_that_is_named_is_taken_whatever_the_split_says(serve_version):
    router, candidate = Router(serve_version("3")), serve_version("4")
    router.add(candidate, "warm")
    router.try_out(candidate)
    router.split = split(100)
    assert router.named("affine", "3") is router.stable is router.named("affine")
    assert router.named("affine", "4") is candidate
    for name, version in (("affine", "5"), ("other", ""), ("other", "3")):
        with pytest.raises(Refusal) as caught:
            router.named(name, version)
        assert caught.value.status == 404


def test_a_switch_is_one_step_and_ends_the_candidacy(serve_version):
    first, second = serve_version("3"), serve_version("4")
    router = Router(first)
    router.add(second, "warm")
    router.try_out(second)
    router.split = split(100)
    assert router.switch(second) is first
    assert (router.stable, router.candidate, router.split) == (second, None, None)
    assert (router.choose("c1", {}), router.named("affine", "3")) == (second, first)
    assert second.arm == "production"
    router.stand_by(first)
    assert first.arm == "warm"
    router.remove(first)
    assert router.loaded == (second,)
    with pytest.raises(Refusal):
        router.named("affine", "3")


def test_removing_the_candidate_sends_everybody_back(serve_version):
    router, candidate = Router(serve_version("3")), serve_version("4")
    router.add(candidate, "warm")
    router.try_out(candidate)
    router.split = split(100)
    router.remove(candidate)
    assert router.choose("c1", {}) is router.stable


def test_the_requests_of_versions_that_are_gone_are_counted(serve_version):
    router, second = Router(serve_version("3")), serve_version("4")
    router.add(second, "warm")
    for served, status in ((router.stable, 200), (second, 200), (second, 404)):
        served.engine.metrics.observe_request("/predict", status, 0.1)
    before = router.requests_by_status()
    router.remove(second)
    router.add_up(second)
    assert router.requests_by_status() == before == {"2xx": 2, "4xx": 1}


class Watcher:
    def __init__(self):
        self.seen, self.copied = [], []

    def observe(self, served, exchange, status, total):
        self.seen.append((served.version, exchange.request_id, status, total >= 0))

    def copy(self, served, exchange):
        self.copied.append((served.version, exchange.request_id))


def test_an_observer_sees_routed_requests_and_gets_copies_of_what_the_stable_version_answered(serve_version):
    async def main():
        router, candidate = Router(serve_version("3")), serve_version("4")
        router.add(candidate, "warm")
        for served in router:
            await served.engine.start()
        router.observer = watcher = Watcher()
        for request_id, served, status, pinned in (
            ("good", router.stable, 200, False),
            ("bad", router.stable, 400, False),
            ("candidate's", candidate, 200, False),
            ("named", router.stable, 200, True),
        ):
            exchange = served.open(request_id, "predict", {}, None)
            exchange.pinned = pinned
            router.finish(served, exchange, status=status, error="")
        for served in router:
            await served.wait_until_idle()
            await served.close(0)
        return watcher

    watcher = asyncio.run(main())
    assert watcher.seen == [
        ("3", "good", 200, True),
        ("3", "bad", 400, True),
        ("4", "candidate's", 200, True),
    ]
    assert watcher.copied == [("3", "good")]
