"""Whoever is killed between two writes leaves the registry as it was before, or as it is after."""

import uuid

import pytest
from killed import Deed, do
from projects import Project
from racers import add_targets

from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Version

_MOST_WRITES = 80
_STRIDE_OVER_HTTP = 3  # a server takes its time


@pytest.fixture(params=["sqlite", "server"])
def uri(request: pytest.FixtureRequest, project: Project) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{project.database}"
    return str(request.getfixturevalue("mlflow_server"))


def test_a_move_is_made_or_not_made(uri: str, project: Project) -> None:
    model = f"moved-{uuid.uuid4().hex}"
    deed = Deed("move", model, project.folder, uri)
    add_targets(deed.catalog(), model)
    moves, holder, kills, done = 0, 0, 0, False

    while not done:
        done = do(deed, after=kills)
        moved = deed.catalog().holders(model).get("production", 0)
        assert moved in {holder, holder + 1}
        if moved != holder:
            moves += 1
            assert len(deed.catalog().journal(model).valid) == moves
            # Promoting again what holds the alias already brings MLflow's alias after it, and is no move.
            assert deed.catalog().move(model, "production", moved, kind="promote", actor="ada") is None
            assert deed.catalog().differences(model) == ()
            assert deed.catalog().resolve(f"{model}@production").number == moved
            assert (
                deed.catalog().move(model, "production", 1, kind="rollback", actor="ada") is None or moved > 1
            )
            moves, holder = len(deed.catalog().journal(model).valid), 1
        kills += 1
        assert kills < _MOST_WRITES
    assert kills > 3


def test_a_version_is_there_whole_or_not_at_all(uri: str, project: Project) -> None:
    server = uri.startswith("http")
    deed, model, kills, done = None, "", 0, False

    while not done:
        if not model:
            model = f"killed-{uuid.uuid4().hex}"
            deed = Deed("register", model, project.folder, uri)
        assert deed is not None
        done = do(deed, after=kills)
        if _versions(deed.catalog(), model):
            _is_whole(deed.catalog(), model, project)
            assert do(deed)  # finds it, and completes what is missing
            version = _is_whole(deed.catalog(), model, project)
            assert version.tags["mlx.label"] == version.label
            model = ""
        # Where there is none, the next one tries again over what this one left, and is killed later.
        kills += _STRIDE_OVER_HTTP if server else 1
        assert kills < _MOST_WRITES
    assert kills > 10


def _versions(catalog: Catalog, model: str) -> tuple[Version, ...]:
    return catalog.versions(model) if catalog._backend.reader.count(model) else ()


def _is_whole(catalog: Catalog, model: str, project: Project) -> Version:
    (version,) = _versions(catalog, model)
    assert version.number == 1
    assert version.digest == project.package(2).digest == catalog.fetch(version).digest
    assert version.metrics == {"f1": 0.5}
    assert catalog.holders(model) == {}
    return version
