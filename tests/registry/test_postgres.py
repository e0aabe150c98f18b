"""A registry in PostgreSQL, which only MLflow's client reads and writes."""

from pathlib import Path

import pytest
from projects import Project, evidence_of, see_a_rollout_through
from services import Postgres, free_port
from support import RunCommand

from mlx_platform.core.errors import ConflictError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def uri(postgres: Postgres) -> str:
    # As people write it: the driver is found by itself.
    return postgres.database().replace("+psycopg", "")


@pytest.fixture
def catalog(uri: str, project: Project) -> Catalog:
    return Catalog(load_settings(start=project.folder, environment={}, overrides={"registry.uri": uri}))


def test_everything_works_in_postgresql(
    catalog: Catalog, project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    version, created = catalog.register("letters", project.package(1), Lineage(params={"lr": "1"}))
    other, _ = catalog.register("letters", project.package(2), Lineage(metrics={"f1": 0.9}))
    again, created_again = catalog.register("letters", project.package(1), Lineage())

    assert (version.number, created, other.number) == (1, True, 2)
    assert (again.number, created_again) == (1, False)
    assert [found.number for found in catalog.versions("letters")] == [2, 1]
    assert catalog.versions("letters", limit=1)[0].metrics == {"f1": 0.9}
    assert [model.name for model in catalog.models()] == ["letters"]

    assert catalog.move("letters", "production", 1, expect=None, kind="promote", actor="ada") is not None
    with pytest.raises(ConflictError):
        catalog.move("letters", "production", 2, expect=None, kind="promote", actor="bob")
    assert catalog.move("letters", "production", 2, expect=1, kind="promote", actor="bob") is not None
    assert [move.to_version for move in catalog.history("letters")] == [2, 1]
    assert catalog.resolve("letters@production~1").number == 1
    assert catalog.resolve(version.label).number == 1
    assert catalog.differences("letters") == ()

    catalog.record(version, evidence_of(version))
    assert catalog.evidence(version)["evaluation"].verdict == "pass"
    assert catalog.fetch(version).model_path.read_bytes() == project.package(1).model_path.read_bytes()
    assert capfd.readouterr() == ("", "")


def test_the_command_line_works_in_postgresql(
    uri: str, project: Project, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("MLX_REGISTRY", uri)
    override = ("--override", "all", "--reason", "a test", "--json")

    for number in (1, 2):
        registered = mlx("register", "words", f"model-{number}.onnx", "--json")
        assert registered.data["version"] == number
        assert mlx("promote", f"words/{number}", "--to", "production", *override).code == 0
    assert mlx("promote", "words/1", "--to", "production", "--expect", "1", *override).code == 4
    assert mlx("rollback", "words", "--reason", "worse", "--json").data["after"] == 1
    assert [move["kind"] for move in mlx("history", "words", "--json").data["events"]] == [
        *("rollback", "promote", "promote"),
    ]
    assert mlx("list", "words", "--json").code == 0
    assert mlx("show", "words@production", "--json").code == 0
    assert mlx("pull", "words@production", "--output", tmp_path / "pulled", "--json").code == 0
    assert (tmp_path / "pulled" / "model.onnx").exists()
    doctor = mlx("doctor", "registry", "--json")
    assert doctor.code == 0, doctor.out
    assert mlx("resolve", "words/7").code == 3


def test_a_database_that_is_not_there_is_unavailable_and_its_password_stays_secret(
    mlx: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_REGISTRY", f"postgresql://ada:hunter2@127.0.0.1:{free_port()}/mlx")

    outcome = mlx("list")

    assert outcome.code == 9
    assert "hunter2" not in outcome.err
    assert len(outcome.err.splitlines()) <= 2


def test_a_database_of_another_name_or_user_is_unavailable(
    postgres: Postgres, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uri in (postgres.uri("nothing"), postgres.uri("prepared").replace("mlx@", "ada:hunter2@")):
        monkeypatch.setenv("MLX_REGISTRY", uri)

        outcome = mlx("list")

        assert outcome.code == 9
        assert "Traceback" not in outcome.err
        assert "hunter2" not in outcome.err


def test_a_rollout_works_in_postgresql(catalog: Catalog, project: Project) -> None:
    for number in (1, 2):
        catalog.register("sounds", project.package(number), Lineage())
    catalog.move("sounds", "production", 1, kind="promote", actor="ada")
    see_a_rollout_through(catalog, "sounds")
