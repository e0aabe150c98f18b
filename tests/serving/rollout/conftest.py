"""A registry of versions that are well or ill, copied for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import fleets
import pytest
from offices import Process, Time


@pytest.fixture(scope="session")
def rollout_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The registry that tests copy."""
    return fleets.make_template(tmp_path_factory.mktemp("rollouts") / "template")


@pytest.fixture
def fleet(rollout_template: Path, tmp_path: Path) -> Iterator[fleets.Fleet]:
    """A registry of the test's own; servers that it starts end with it."""
    found = fleets.Fleet.copied(rollout_template, tmp_path / "fleet")
    yield found
    found.stop()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def process(fleet: fleets.Fleet, time: Time) -> Callable[..., Process]:
    def make(name: str = "a-1") -> Process:
        return Process(fleet, name, time)

    return make
