import base64
import hashlib
import hmac
import sqlite3
from contextlib import closing

import pytest
from projects import Project
from receivers import KEY, SECRET, receiving
from support import RunCommand

from mlx_platform.registry.version import Lineage


@pytest.fixture
def moved(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(project.folder)
    for to in (1, 2):
        assert project.anew().move("digits", "staging", to, kind="promote", actor="tester")
    return project


def write(project: Project, *tables: str) -> None:
    (project.folder / "mlx.toml").write_text("\n".join(tables))


def test_status_tells_what_waits_and_writes_nothing(moved: Project, mlx: RunCommand) -> None:
    with receiving(503) as receiver:
        write(moved, receiver.toml())
        fresh = mlx("events", "status", "--json").data["standings"]
        assert mlx("events", "status", "--json").data["standings"] == fresh
        assert receiver.requests == []
        mlx("events", "deliver", "--wait", "0")
        later = mlx("events", "status", "digits", "--json").data["standings"]
        page = mlx("events", "status").out

    (first,) = fresh
    assert (first["sink"], first["model"], first["settled"], first["pending"]) == ("ops", "digits", 0, [1, 2])
    assert first["next_try"] is None
    (second,) = later
    assert (second["attempts"], second["pending"]) == (1, [1, 2])
    assert second["next_try"].endswith("Z")
    assert "503 Service Unavailable" in page
    assert "mlx events deliver" in page


def test_status_without_sinks_says_so(moved: Project, mlx: RunCommand) -> None:
    outcome = mlx("events", "status")

    assert outcome.code == 0
    assert "No sinks are configured." in outcome.out


def test_status_goes_on_beside_a_broken_journal(moved: Project, mlx: RunCommand) -> None:
    with closing(sqlite3.connect(moved.database)) as database, database:
        database.execute("UPDATE model_version_tags SET value = 'x' WHERE key = 'mlx.event' AND version = 2")
    write(moved, '[[events.sinks]]\nname = "ops"\nurl = "https://example.com/"')
    outcome = mlx("events", "status")

    assert outcome.code == 0
    assert "journal of digits is broken" in outcome.err


def test_a_test_event_is_signed_like_any_other(
    moved: Project, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNING", SECRET)
    with receiving() as receiver:
        write(moved, receiver.toml(extra='secret_env = "SIGNING"'))
        outcome = mlx("events", "test", "ops", "--json")

    (request,) = receiver.requests
    signed = (
        f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    )
    digest = hmac.new(KEY, signed, hashlib.sha256).digest()
    assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert request.data["kind"] == "test"
    assert outcome.data["said"] == "204 No Content"
    assert outcome.data["id"] == request.headers["webhook-id"]


def test_a_sink_that_does_not_take_the_test_ends_with_9(moved: Project, mlx: RunCommand) -> None:
    with receiving(401, body=b"who are you") as receiver:
        write(moved, receiver.toml())
        outcome = mlx("events", "test", "ops")

    assert outcome.code == 9
    assert "401 Unauthorized: who are you" in outcome.err


def test_a_test_needs_no_registry(mlx: RunCommand, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    project.database.unlink()
    write(project, '[[events.sinks]]\nname = "hook"\nkind = "command"\ncommand = ["true"]')

    assert mlx("events", "test", "hook").code == 0


def test_what_was_parked_can_be_sent_again(moved: Project, mlx: RunCommand) -> None:
    with receiving(404, 404, 404, 204) as receiver:
        write(moved, receiver.toml(extra="max_attempts = 1"))
        mlx("events", "deliver", "--wait", "0")
        assert mlx("events", "status", "--json").data["standings"][0]["parked"] == [1, 2]

        failed = mlx("events", "retry", "ops", "1")
        one = mlx("events", "retry", "ops", "2", "--json")
        rest = mlx("events", "retry", "ops", "--json")
        nothing = mlx("events", "retry", "ops")
        other = mlx("events", "retry", "ops", "digits/2", "--json")

    assert failed.code == 9
    assert "404 Not Found" in failed.err
    assert "mlx events retry ops digits/1" in failed.err
    assert (one.data["delivered"], rest.data["delivered"]) == (["digits/2"], ["digits/1"])
    assert "Nothing is parked." in nothing.out
    assert other.data["delivered"] == ["digits/2"]
    assert receiver.numbers == [1, 2, 1, 2, 1, 2]


def test_what_is_parked_is_sent_again_beside_a_broken_journal(moved: Project, mlx: RunCommand) -> None:
    moved.catalog.register("other", moved.package(1), Lineage())
    moved.anew().move("other", "staging", 1, kind="promote", actor="tester")
    with receiving(404, 404, 404, 204) as receiver:
        write(moved, receiver.toml(extra="max_attempts = 1"))
        mlx("events", "deliver", "--wait", "0")
        with closing(sqlite3.connect(moved.database)) as database, database:
            database.execute(
                "UPDATE model_version_tags SET value = 'x' WHERE key = 'mlx.event' "
                "AND name = 'mlx.journal.digits' AND version = 2"
            )
        named = mlx("events", "retry", "ops", "other/1", "--json")
        broken = mlx("events", "retry", "ops", "digits/1")
        everything = mlx("events", "retry", "ops")

    assert (named.code, named.data["delivered"]) == (0, ["other/1"])
    assert (broken.code, everything.code) == (10, 10)


@pytest.mark.parametrize(
    ("event", "words"),
    [("7", "No event 7 is parked."), ("digits/99", "digits has no event 99."), ("x", "'x' is no event.")],
)
def test_an_event_that_is_not_there_is_said(moved: Project, mlx: RunCommand, event: str, words: str) -> None:
    with receiving() as receiver:
        write(moved, receiver.toml())
        outcome = mlx("events", "retry", "ops", event)

    assert outcome.code == 2
    assert words in outcome.err


def test_a_number_that_two_models_have_parked_must_be_told_apart(moved: Project, mlx: RunCommand) -> None:
    moved.catalog.register("other", moved.package(1), Lineage())
    moved.anew().move("other", "staging", 1, kind="promote", actor="tester")
    with receiving(404) as receiver:
        write(moved, receiver.toml(extra="max_attempts = 1"))
        mlx("events", "deliver", "--wait", "0")
        outcome = mlx("events", "retry", "ops", "1")

    assert outcome.code == 2
    assert "digits/1 and other/1" in outcome.err


def test_an_error_is_gone_once_what_it_was_about_was_told(moved: Project, mlx: RunCommand) -> None:
    with receiving(404, 404, 204) as receiver:
        write(moved, receiver.toml(extra="max_attempts = 1"))
        mlx("events", "deliver", "--wait", "0")
        mlx("events", "deliver", "--wait", "0")
        before = mlx("events", "status").out
        assert mlx("events", "retry", "ops").code == 0
        after = mlx("events", "status").out

    assert "404" in before
    assert "404" not in after


def test_what_was_due_next_is_told_no_second_time_after_a_retry(moved: Project, mlx: RunCommand) -> None:
    with receiving(503, 204) as receiver:
        write(moved, receiver.toml())
        mlx("events", "deliver", "--wait", "0")
        assert mlx("events", "retry", "ops", "digits/1").code == 0
        (standing,) = mlx("events", "status", "--json").data["standings"]
        mlx("events", "deliver", "--wait", "0")

    assert (standing["settled"], standing["pending"], standing["next_try"]) == (1, [2], None)
    assert receiver.numbers == [1, 1, 2]
