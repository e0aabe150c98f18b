"""Whoever is killed between two writes leaves the registry as it was before, or as it is after."""

import uuid
from collections.abc import Iterator

import pytest
from killed import Deed, Origin
from projects import Project
from racers import add_targets

from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Version

pytestmark = pytest.mark.timeout(900)

_MOST_WRITES = 150


@pytest.fixture(params=["sqlite", "server"])
def deed(request: pytest.FixtureRequest, project: Project) -> Deed:
    """What is to be done, to a model that nobody has heard of."""
    server = request.param == "server"
    uri = str(request.getfixturevalue("mlflow_server")) if server else f"sqlite:///{project.database}"
    return Deed("", _new_name(), project.folder, uri)


@pytest.fixture
def origin(deed: Deed) -> Iterator[Origin]:
    with Origin(deed) as origin:
        yield origin


def test_a_move_is_made_or_not_made(deed: Deed, origin: Origin) -> None:
    catalog, model = deed.catalog(), deed.model
    add_targets(catalog, model)
    kills, done = 0, False

    while not done:
        catalog.move(model, "production", 1, kind="rollback", actor="ada")
        moves = len(catalog.journal(model).valid)

        done = origin.do(deed.of("move"), after=kills)

        left = deed.catalog()
        assert (left.holders(model), len(left.journal(model).valid)) in (
            ({"production": 1}, moves),
            ({"production": 2}, moves + 1),
        )
        assert origin.do(deed.of("move"))  # what was made is not made again, and MLflow's alias follows
        assert (left.holders(model), len(left.journal(model).valid)) == ({"production": 2}, moves + 1)
        assert left.differences(model) == ()
        kills += 1
        assert kills < _MOST_WRITES
    assert kills > 3


def test_a_version_is_there_whole_or_not_at_all(deed: Deed, origin: Origin, project: Project) -> None:
    stride = 4 if deed.uri.startswith("http") else 1  # each write of it is several there
    kills, done = 0, False

    while not done:
        done = origin.do(deed.of("register"), after=kills)

        if _versions(deed):
            _is_whole(deed, project)
            assert origin.do(deed.of("register"))
            version = _is_whole(deed, project)
            assert version.tags["mlx.label"] == version.label
            deed = Deed("", _new_name(), deed.folder, deed.uri)
        # Where there is none, the next one tries again over what this one left, and is killed later.
        kills += stride
        assert kills < _MOST_WRITES
    assert kills > 10


def _new_name() -> str:
    return f"killed-{uuid.uuid4().hex}"


def _versions(deed: Deed) -> tuple[Version, ...]:
    catalog: Catalog = deed.catalog()
    return catalog.versions(deed.model) if catalog._backend.reader.count(deed.model) else ()


def _is_whole(deed: Deed, project: Project) -> Version:
    (version,) = _versions(deed)
    assert version.number == 1
    assert version.digest == project.package(2).digest == deed.catalog().fetch(version).digest
    assert (version.params, version.metrics) == ({"lr": "1"}, {"f1": 0.5})
    assert deed.catalog().holders(deed.model) == {}
    return version
