import json
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from projects import Project, evidence_of

from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError, UnavailableError, UsageError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry import store as store_module
from mlx_platform.registry.address import parse_address
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.refusals import LostError
from mlx_platform.registry.sqlite_read import SqliteReader
from mlx_platform.registry.sqlite_write import SqliteWriter
from mlx_platform.registry.store import Store
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.listing import list_versions


def store_of(project: Project, timeout: float = 10) -> Store:
    address = parse_address("sqlite:///mlx.db", project.folder)
    return Store(address, timeout=timeout, artifacts=str(project.folder / "mlx-artifacts"))


@pytest.fixture
def client(project: Project) -> Any:
    import mlflow

    uri = f"sqlite:///{project.database}"
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    yield mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)


def test_both_readers_say_the_same(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    fast, slow = SqliteReader(project.database, timeout=5), store_of(project)

    assert fast.names() == slow.names() == ("digits", "mlx.journal.digits")
    assert fast.rows("digits") == slow.rows("digits")
    assert fast.rows("digits", limit=2) == slow.rows("digits", limit=2)
    assert fast.rows("digits", numbers=(1, 9)) == slow.rows("digits", numbers=(1, 9))
    assert fast.rows("letters") == slow.rows("letters") == ()
    for key, value in (("mlx.dataset", "2026-02"), ("mlx.dataset", "it's"), ("mlx.nothing", "2026-02")):
        assert fast.tagged("digits", key, value) == slow.tagged("digits", key, value)
    assert fast.tagged("digits", "mlx.dataset", "2026-02") == (2,)
    assert [set(row.tags) for row in fast.rows("digits", keys=["mlx.params", "mlx.no"])] == [
        {"mlx.params"}
    ] * 3
    assert [row.number for row in fast.rows("digits", keys=[])] == [3, 2, 1]
    assert fast.aliases("digits") == slow.aliases("digits") == {"production": 2}
    assert fast.aliases("letters") == slow.aliases("letters") == {}
    assert fast.count("digits") == slow.count("digits") == 3
    assert fast.location("digits", 1) == slow.location("digits", 1)


def test_a_model_of_plain_mlflow_may_have_a_quote_in_its_name(project: Project) -> None:
    store = store_of(project)
    store.ensure_model("ada's", tags={"owner": "ada"}, description="")
    store.create_version("ada's", "models:/digits/1", tags={"mlx.dataset": "2026-02"})

    assert [row.number for row in store.rows("ada's")] == [1]
    assert store.tagged("ada's", "mlx.dataset", "2026-02") == (1,)
    assert store.model_tags("ada's") == {"owner": "ada"}
    assert store.aliases("ada's") == {}


def test_tags_of_a_model_are_written_and_read(project: Project) -> None:
    store = store_of(project)

    store.set_model_tags("digits", {"mlx.journal.head": "1 abc", "owner": "ada"})
    store.set_model_tags("digits", {"owner": "bob"})

    tags = store.model_tags("digits")
    assert (tags["mlx.journal.head"], tags["owner"]) == ("1 abc", "bob")
    assert store.model_tags("nothing") == {}


def test_an_unknown_schema_is_left_to_mlflow(project: Project) -> None:
    connection = sqlite3.connect(project.database)
    with connection:
        connection.execute("ALTER TABLE registered_model_tags RENAME COLUMN value TO worth")
    connection.close()

    assert not SqliteReader(project.database, timeout=5).understands()


@pytest.mark.filterwarnings("ignore")  # MLflow's own, when it imports its flavours
def test_mlflow_loads_what_was_registered(project: Project, client: Any) -> None:
    import mlflow
    import numpy as np

    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")

    model = mlflow.pyfunc.load_model("models:/digits/1")
    answers = model.predict(np.ones((2, 4), dtype=np.float32))

    assert answers["probabilities"].shape == (2, 3)
    assert mlflow.onnx.load_model("models:/digits@production").graph.name == "digits"


def test_what_was_registered_shows_in_mlflow(project: Project, client: Any) -> None:
    version = client.get_model_version("digits", "2")
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    run = client.get_run(version.run_id)

    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.2"}
    assert run.data.metrics == {"f1": 0.92}
    assert run.data.tags["mlflow.source.git.commit"].startswith("0123456789")
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert str(model.status) == "READY"
    assert {metric.key: metric.value for metric in model.metrics} == {"f1": 0.92}
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "digits", "version": 2}]


def test_evidence_shows_in_mlflow_on_the_model(project: Project, client: Any) -> None:
    version = project.catalog.resolve("digits/2")

    project.catalog.record(version, evidence_of(version))

    model = client.get_logged_model(version.source.removeprefix("models:/"))
    assert {metric.key: metric.value for metric in model.metrics} == {
        "f1": 0.92,
        "accuracy": 0.95,
        "accuracy.lower": 0.93,
        "accuracy.upper": 0.97,
        "rows": 500,
    }


def test_the_journal_explains_itself_to_whoever_meets_it_in_mlflow(project: Project, client: Any) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada", reason="better")

    model = client.get_registered_model("mlx.journal.digits")
    event = client.get_model_version("mlx.journal.digits", "1")

    assert "not a model" in model.description
    assert model.tags == {"mlx.journal": "digits"}
    assert event.description == "promote production: nobody → 2 by ada: better"
    assert event.source == "models:/digits/2"


def test_prompts_and_names_that_nobody_may_have_are_not_listed(project: Project, client: Any) -> None:
    client.create_registered_model("=cmd()")
    client.create_registered_model("a\nb")
    client.create_registered_model("greeting")
    client.set_registered_model_tag("greeting", "mlflow.prompt.is_prompt", "true")

    assert [model.name for model in project.anew().models()] == ["digits"]
    assert project.anew().left_out() == ("=cmd()", "a\\u000ab")
    (warning,) = list_versions(project.context).warnings
    assert warning.isprintable()
    assert "greeting" not in SqliteReader(project.database, timeout=5).names()


def test_a_hostile_source_that_mlflow_accepts_is_not_followed(project: Project, client: Any) -> None:
    digest = project.catalog.resolve("digits/1").digest
    client.create_registered_model("evil")
    client.create_model_version("evil", "file:///etc", tags={"mlx.digest": digest})

    with pytest.raises(MlxError, match="where no package may be"):
        project.anew().fetch(project.anew().resolve("evil/1"))


def test_the_process_wide_uri_of_whoever_uses_mlflow_stays(project: Project) -> None:
    import mlflow

    catalog = project.catalog  # from here on MLflow's own variable would name another registry
    mlflow.set_tracking_uri("sqlite:///mine.db")
    try:
        catalog.register("digits", project.variant("a"), Lineage())

        assert mlflow.get_tracking_uri() == "sqlite:///mine.db"
    finally:
        mlflow.set_tracking_uri(None)
    assert not list(project.folder.parent.rglob("mine.db"))


# Interruptions


STEPS = (
    "create_run",
    "create_logged_model",
    "log_model_artifacts",
    "finalize_logged_model",
    "log_batch",
    "create_registered_model",
    "create_model_version",
)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, BaseException], None]:
    """Make a step of MLflow's client end with an exception."""

    def stop(step: str, error: BaseException) -> None:
        import mlflow

        def fail(*_arguments: object, **_options: object) -> None:
            raise error

        monkeypatch.setattr(mlflow.MlflowClient, step, fail)

    return stop


@pytest.mark.parametrize(
    ("step", "killed"), [*((step, False) for step in STEPS), *((step, True) for step in STEPS[2::2])]
)
def test_a_registration_that_is_interrupted_leaves_nothing_visible(
    project: Project,
    stop_at: Callable[[str, BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    killed: bool,
) -> None:
    package = project.variant("a")
    if killed:
        # A killed process cleans nothing up.
        monkeypatch.setattr(Store, "_discard", lambda *_: None)
    with monkeypatch.context():
        stop_at(step, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            project.anew().register("letters", package, Lineage(params={"lr": "1"}))
    monkeypatch.undo()
    catalog = project.anew()

    assert [model.name for model in catalog.models()] == ["digits"]
    if not killed:
        assert len(list((project.folder / "mlx-artifacts" / "models").iterdir())) == 3
    version, created = catalog.register("letters", package, Lineage(params={"lr": "1"}))
    assert (version.number, created) == (1, True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the connection was lost")])
def test_a_version_that_was_made_although_nobody_said_so_keeps_its_bytes(
    project: Project, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    import mlflow

    create, package = mlflow.MlflowClient.create_model_version, project.variant("a")

    def make_and_fail(*arguments: Any, **options: Any) -> None:
        create(*arguments, **options)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "create_model_version", make_and_fail)
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                project.anew().register("letters", package, Lineage())
        else:
            project.anew().register("letters", package, Lineage())

    catalog = project.anew()
    assert [version.number for version in catalog.versions("letters")] == [1]
    version, created = catalog.register("letters", package, Lineage())
    assert (version.number, created) == (1, False)
    assert catalog.fetch(version).digest == version.digest


def test_a_move_that_is_interrupted_before_the_alias_has_happened(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SqliteWriter, "set_alias", stop)
    with pytest.raises(KeyboardInterrupt):
        project.catalog.move("digits", "production", 2, expect=None, kind="promote", actor="ada")
    monkeypatch.undo()
    catalog = project.anew()

    assert catalog.resolve("digits@production").number == 2
    assert catalog.move("digits", "production", 2, kind="promote", actor="ada") is None
    assert catalog.differences("digits") == ()


def test_a_move_whose_answer_was_lost_is_known_by_its_event(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteWriter.create_version

    def lose(self: SqliteWriter, *arguments: Any, **options: Any) -> int:
        real(self, *arguments, **options)
        raise UnavailableError("The connection was lost.")

    monkeypatch.setattr(SqliteWriter, "create_version", lose)

    event = project.catalog.move("digits", "production", 2, expect=None, kind="promote", actor="ada")

    assert event is not None
    assert event.valid
    assert project.anew().resolve("digits@production").number == 2


@pytest.mark.parametrize("write", ["create_version", "set_alias"])
def test_a_move_that_nobody_answered_may_have_been_made_and_the_error_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    def lose(*_arguments: Any, **_options: Any) -> int:
        raise LostError("No answer within 10 s.")

    monkeypatch.setattr(SqliteWriter, write, lose)

    with pytest.raises(UnavailableError, match="production may have been moved to 2 all the") as caught:
        project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    assert "mlx history digits" in caught.value.hint


def test_a_move_whose_outcome_cannot_be_read_may_have_been_made(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteWriter.create_version

    def away(*_arguments: Any, **_options: Any) -> None:
        raise UnavailableError("The registry is away.")

    def go_away(self: SqliteWriter, *arguments: Any, **options: Any) -> int:
        number = real(self, *arguments, **options)
        monkeypatch.setattr(SqliteReader, "rows", away)
        return number

    monkeypatch.setattr(SqliteWriter, "create_version", go_away)

    with pytest.raises(UnavailableError, match="production may have been moved to 2 all the"):
        project.catalog.move("digits", "production", 2, kind="promote", actor="ada")


def test_a_version_that_is_not_ready_takes_nobodys_place(project: Project) -> None:
    connection = sqlite3.connect(project.database)
    with connection:
        connection.execute("UPDATE model_versions SET status = 'PENDING_REGISTRATION' WHERE version = 3")
    connection.close()

    assert [row.number for row in store_of(project).rows("digits", limit=1)] == [2]


def test_a_file_that_is_announced_as_too_large_is_not_fetched(project: Project, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(bytes(11))
    target = tmp_path / "target"
    target.mkdir()
    location = f"{tmp_path.as_uri()}/model.onnx"

    with pytest.raises(IntegrityError, match="more than 10 bytes"):
        store_of(project).download(location, target, 10)
    assert list(target.iterdir()) == []
    store_of(project).download(location, target, 11)

    assert (target / "model.onnx").stat().st_size == 11


def test_a_slow_winner_does_not_overwrite_a_newer_holder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, other = SqliteWriter.set_alias, project.anew()

    def late(self: SqliteWriter, name: str, alias: str, number: int | None) -> None:
        monkeypatch.undo()
        other.move("digits", "production", 3, kind="promote", actor="bob")
        real(self, name, alias, number)

    monkeypatch.setattr(SqliteWriter, "set_alias", late)
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    assert project.anew().resolve("digits@production").number == 3
    assert project.anew().differences("digits") == ()


# The door


def test_a_locked_database_ends_within_the_timeout_in_one_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLX_REGISTRY_TIMEOUT", "0.2")
    catalog = Catalog(load_settings(start=project.folder))
    connection = sqlite3.connect(project.database, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    for ask in (
        lambda: catalog.resolve("digits/1"),
        lambda: store_of(project, timeout=0.2).create_version("digits", "models:/digits/1", tags={}),
    ):
        with pytest.raises(UnavailableError, match="is locked by another program") as caught:
            ask()
        assert "\n" not in caught.value.message
    connection.close()

    # MLflow alone would wait for twenty seconds.
    assert time.monotonic() - started < 15
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda store: store.location("digits", 99), NotFoundError),
        (lambda store: store.set_alias("digits", "x" * 300, 1), UsageError),
        (lambda store: store.create_version("letters", "models:/digits/1", tags={}), NotFoundError),
        (lambda store: store.set_tags("digits", 99, {"a": "b"}), NotFoundError),
    ],
)
def test_mlflows_errors_become_ours(
    project: Project, ask: Callable[[Store], object], error: type[MlxError], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error) as caught:
        ask(store_of(project))

    assert "\n" not in caught.value.message
    assert capfd.readouterr() == ("", "")


def test_loggers_and_warnings_are_as_they_were(project: Project) -> None:
    logger, root = logging.getLogger("mlflow"), logging.getLogger()
    store = store_of(project)
    store.names()
    before = (logger.level, root.level, list(root.handlers))

    with pytest.raises(NotFoundError):
        store.location("digits", 99)

    assert (logger.level, root.level, list(root.handlers)) == before


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "mlx.db").write_text(
        "this is no database, but it is long enough to look like a header of one"
    )
    catalog = Catalog(load_settings(start=tmp_path, environment={}))

    with pytest.raises(UnavailableError, match="cannot be read"):
        catalog.models()


def test_nothing_else_in_the_package_imports_mlflow() -> None:
    root = Path(store_module.__file__).parents[1]
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith(("import mlflow", "from mlflow"))
    ]

    assert set(found) == {"registry/store.py"}
