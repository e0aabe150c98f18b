import threading
from pathlib import Path
from typing import Any

import pytest
from projects import Project

from mlx_platform.core.errors import ConflictError, NotFoundError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry import removal
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.removal import DELETING, uses_of
from mlx_platform.registry.version import QUARANTINED, Lineage, Version, model_id_of


def promote(project: Project, *numbers: int, alias: str = "production") -> None:
    for number in numbers:
        assert project.catalog.move("digits", alias, number, kind="promote", actor="ada")


def package_of(project: Project, number: int) -> Path:
    source = project.catalog.resolve(f"digits/{number}").source
    return project.folder / "mlx-artifacts" / "models" / model_id_of(source)


def test_a_deleted_version_is_gone_with_its_bytes_and_says_who_deleted_it(project: Project) -> None:
    version, folder = project.catalog.resolve("digits/2"), package_of(project, 2)
    assert (folder / "artifacts" / "model.onnx").is_file()

    project.catalog.removal.delete(version, actor="ada", reason="trained on leaked data")

    assert not folder.exists()
    for ref in ("digits/2", version.label):
        with pytest.raises(NotFoundError, match=r"digits/2 was deleted by ada on .*: trained on leak"):
            project.anew().resolve(ref)
    assert [found.number for found in project.catalog.versions("digits")] == [3, 1]
    stone = project.catalog.removal.deleted("digits")[2]
    assert (stone.actor, stone.digest, stone.label) == ("ada", version.digest, version.label)


def test_a_number_is_not_given_out_again(project: Project) -> None:
    project.catalog.removal.delete(project.catalog.resolve("digits/3"), actor="ada", reason="")

    version, created = project.catalog.register("digits", project.package(3), Lineage())

    assert (version.number, created) == (4, True)


def test_what_holds_an_alias_or_can_be_rolled_back_to_is_not_deleted(project: Project) -> None:
    fourth, _ = project.catalog.register("digits", project.variant("4"), Lineage())
    promote(project, 1, 2, 3, fourth.number)

    for number, use in ((4, "digits@production is this"), (3, "rolled back to it"), (2, "rolled back to it")):
        with pytest.raises(ConflictError, match=use) as caught:
            project.catalog.removal.delete(
                project.catalog.resolve(f"digits/{number}"), actor="ada", reason=""
            )
        assert len(caught.value.details["uses"]) == 1
    project.catalog.removal.delete(project.catalog.resolve("digits/1"), actor="ada", reason="")

    with pytest.raises(NotFoundError, match="digits/1 was deleted by ada"):
        project.catalog.resolve("digits@production~3")
    assert project.catalog.resolve("digits@production~2").number == 2


def test_a_version_that_no_rollback_would_choose_does_not_count_as_a_target(project: Project) -> None:
    fourth, _ = project.catalog.register("digits", project.variant("4"), Lineage())
    promote(project, 1, 2, 3, fourth.number)
    project.catalog.set_tags(project.catalog.resolve("digits/3"), {QUARANTINED: "wrong answers"})

    assert project.catalog.removal.uses(project.catalog.resolve("digits/3")) == ()
    assert project.catalog.removal.uses(project.catalog.resolve("digits/1")) == (
        "digits@production can be rolled back to it",
    )


def test_an_alias_that_only_mlflow_knows_counts_as_well(project: Project) -> None:
    promote(project, 2)
    project.catalog._backend.writer.set_alias("digits", "production", 1)

    with pytest.raises(ConflictError, match="MLflow's own alias digits@production"):
        project.catalog.removal.delete(project.catalog.resolve("digits/1"), actor="ada", reason="")


def test_uses_are_told_alias_by_alias() -> None:
    holders = {"production": 2, "staging": 2}

    found = uses_of(2, name="m", journal=Journal(), holders=holders, mlflow=holders, sound=lambda _: True)

    assert found == ("m@production is this version", "m@staging is this version")


def test_bytes_that_another_version_names_stay(project: Project) -> None:
    version, folder = project.catalog.resolve("digits/2"), package_of(project, 2)
    writer = project.catalog._backend.writer
    writer.ensure_model("copies", tags={}, description="")
    writer.create_version("copies", "models:/digits/2", tags={})

    project.catalog.removal.delete(version, actor="ada", reason="")

    assert (folder / "artifacts" / "model.onnx").is_file()


@pytest.mark.parametrize("step", ["set_model_tags", "delete_version", "erase"])
def test_a_deletion_that_dies_on_the_way_is_ended_by_the_next(
    project: Project, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    version, folder = project.catalog.resolve("digits/2"), package_of(project, 2)
    backend = project.catalog._backend

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backend.store if step == "erase" else backend.writer, step, die)
    with pytest.raises(KeyboardInterrupt):
        project.catalog.removal.delete(version, actor="ada", reason="")

    catalog = project.anew()
    if step == "erase":
        assert catalog.removal.erase(catalog.removal.deleted("digits")[2].source, "digits/2")
    else:
        half = catalog.resolve("digits/2")
        with pytest.raises(ConflictError, match="is being deleted"):
            catalog.move("digits", "production", 2, kind="promote", actor="ada")
        catalog.removal.delete(half, actor="ada", reason="")
    assert not folder.exists()
    with pytest.raises(NotFoundError, match="was deleted"):
        catalog.resolve("digits/2")


def test_a_deletion_that_was_given_up_is_taken_back(project: Project) -> None:
    version = project.catalog.resolve("digits/2")
    project.catalog.set_tags(version, {DELETING: "2026-03-08T07:00:00Z"})

    project.catalog.removal.restore(project.catalog.resolve("digits/2"), actor="ada", reason="")

    promote(project, 2)


def test_a_promotion_between_the_looks_of_a_deletion_wins(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, other = project.catalog.resolve("digits/2"), project.anew()
    writer = project.catalog._backend.writer
    announce = writer.set_tags

    def promote_first(name: str, number: int, tags: dict[str, str]) -> None:
        if tags.get(DELETING):
            assert other.move("digits", "production", 2, kind="promote", actor="bob")
        announce(name, number, tags)

    monkeypatch.setattr(writer, "set_tags", promote_first)
    with pytest.raises(ConflictError, match="digits@production is this version"):
        project.catalog.removal.delete(version, actor="ada", reason="")

    assert project.anew().resolve("digits@production").number == 2
    assert not project.catalog.resolve("digits/2").tags[DELETING]


def test_a_deletion_that_comes_between_a_promotion_and_its_end_takes_the_alias_back(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(project, 1)
    other = project.anew()
    ledger = project.catalog._ledger
    append = ledger._append

    def delete_after(*arguments: object, **options: object) -> object:
        written = append(*arguments, **options)  # type: ignore[arg-type]
        if written[0].to_version == 2:
            # As if the deletion had looked just before the event was there.
            monkeypatch.setattr(other.removal, "refuse_used", lambda _: None)
            other.removal.delete(other.resolve("digits/2"), actor="bob", reason="")
        return written

    monkeypatch.setattr(ledger, "_append", delete_after)
    with pytest.raises(ConflictError, match="was deleted while it was moved to production"):
        project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    catalog = project.anew()
    assert catalog.resolve("digits@production").number == 1
    assert [event.kind for event in catalog.history("digits")] == ["rollback", "promote", "promote"]
    assert catalog.differences("digits") == ()


def test_a_promotion_waits_for_a_deletion_that_was_announced(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(project, 1)
    other = project.anew()
    version = other.resolve("digits/2")
    ledger, waits = project.catalog._ledger, threading.Event()
    append, load = ledger._append, project.catalog._backend.load

    def announce_after(*arguments: object, **options: object) -> object:
        written = append(*arguments, **options)  # type: ignore[arg-type]
        other.set_tags(version, {DELETING: "2026-03-08T07:00:00Z"})
        return written

    def give_up() -> None:
        assert waits.wait(60)
        other.set_tags(version, {DELETING: ""})

    def look(name: str, number: int, *standing: Any) -> Version | None:
        found = load(name, number, *standing)
        if found and found.tags.get(DELETING):
            waits.set()
        return found

    monkeypatch.setattr(ledger, "_append", announce_after)
    monkeypatch.setattr(project.catalog._backend, "load", look)
    monkeypatch.setattr(removal, "_WAIT_SECONDS", 60.0)
    giving_up = threading.Thread(target=give_up)
    giving_up.start()
    event = project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    giving_up.join()

    assert event
    assert waits.is_set()
    assert project.anew().resolve("digits@production").number == 2


def test_an_archiving_that_comes_between_a_promotion_and_its_end_takes_the_alias_back(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(project, 1)
    other = project.anew()
    ledger = project.catalog._ledger
    append = ledger._append

    def archive_after(*arguments: object, **options: object) -> object:
        written = append(*arguments, **options)  # type: ignore[arg-type]
        if written[0].to_version == 2:
            # As if the archiving had looked just before the event was there.
            monkeypatch.setattr(other.removal, "_refuse_holder", lambda _: None)
            other.removal.archive(other.resolve("digits/2"), actor="bob", reason="too slow")
        return written

    monkeypatch.setattr(removal, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(ledger, "_append", archive_after)
    with pytest.raises(ConflictError, match="digits/2 was archived while it was moved to production"):
        project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    catalog = project.anew()
    assert catalog.resolve("digits@production").number == 1
    assert [event.kind for event in catalog.history("digits")] == ["rollback", "promote", "promote"]
    assert catalog.resolve("digits/2").archived


def test_an_archived_version_says_by_whom_and_why_and_comes_back(project: Project) -> None:
    version = project.catalog.resolve("digits/2")

    project.catalog.removal.archive(version, actor="ada", reason="too slow")
    archived = project.anew().resolve("digits/2")
    project.catalog.removal.restore(archived, actor="bob", reason="")
    restored = project.anew().resolve("digits/2")

    assert (archived.archived, archived.state, archived.candidate) == (True, "archived", False)
    assert (archived.tags["mlx.archived_by"], archived.tags["mlx.archived_reason"]) == ("ada", "too slow")
    assert project.catalog.fetch(archived).digest == version.digest
    assert (restored.archived, restored.candidate) == (False, True)


def test_what_holds_an_alias_is_not_archived_not_even_at_the_same_time(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(project, 2)
    with pytest.raises(ConflictError, match="digits@production, so it cannot be archived"):
        project.catalog.removal.archive(project.catalog.resolve("digits/2"), actor="ada", reason="")

    version, other = project.catalog.resolve("digits/3"), project.anew()
    writer = project.catalog._backend.writer
    mark = writer.set_tags

    def promote_first(name: str, number: int, tags: dict[str, str]) -> None:
        if tags["mlx.archived"] == "true":
            assert other.move("digits", "production", 3, kind="promote", actor="bob")
        mark(name, number, tags)

    monkeypatch.setattr(writer, "set_tags", promote_first)
    with pytest.raises(ConflictError):
        project.catalog.removal.archive(version, actor="ada", reason="")

    assert not project.anew().resolve("digits@production").archived


def test_what_was_archived_meanwhile_is_not_promoted(project: Project) -> None:
    project.anew().removal.archive(project.catalog.resolve("digits/3"), actor="ada", reason="")

    with pytest.raises(ConflictError, match="digits/3 is archived"):
        project.catalog.move("digits", "production", 3, kind="promote", actor="bob")

    assert project.anew().history("digits") == ()


def test_a_server_deletes_the_bytes_as_well(mlflow_server: str, project: Project, tmp_path: Path) -> None:
    overrides = {"registry.uri": mlflow_server, "registry.timeout": 30}
    catalog = Catalog(load_settings(start=project.folder, environment={}, overrides=overrides))
    version, _ = catalog.register("deletions", project.package(1), Lineage())
    catalog.register("deletions", project.package(2), Lineage())
    store = catalog._backend.store
    _, place = store.logged_model(model_id_of(version.source))
    store.download(f"{place}/model.onnx", tmp_path, 1 << 20)
    catalog.removal.archive(version, actor="ada", reason="")

    catalog.removal.delete(catalog.resolve("deletions/1"), actor="ada", reason="leaked data")

    (tmp_path / "model.onnx").unlink()
    with pytest.raises(NotFoundError):
        store.download(f"{place}/model.onnx", tmp_path, 1 << 20)
    with pytest.raises(NotFoundError):
        store.logged_model(model_id_of(version.source))
    with pytest.raises(NotFoundError, match="deletions/1 was deleted by ada"):
        catalog.resolve(version.label)
    assert catalog.register("deletions", project.package(1), Lineage())[0].number == 3
