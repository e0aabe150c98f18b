import subprocess
import sys
import threading
from pathlib import Path

import pytest
from projects import Project
from receivers import SECRET, receiving, speaking
from support import clean_environment

from mlx_platform.core.errors import ConflictError
from mlx_platform.registry.backend import Backend
from mlx_platform.workflows.doctor import doctor_registry
from mlx_platform.workflows.events import deliver_pending
from mlx_platform.workflows.promote import promote
from mlx_platform.workflows.rollback import rollback


def write(project: Project, *tables: str) -> None:
    (project.folder / "mlx.toml").write_text("\n".join(tables))


def move(project: Project, to: int) -> None:
    assert project.anew().move("digits", "staging", to, kind="promote", actor="tester")


def test_promotions_and_rollbacks_are_told_at_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_WEBHOOK_SECRET", SECRET)
    with receiving() as receiver:
        write(project, receiver.toml(extra='secret_env = "MLX_WEBHOOK_SECRET"'))
        results = [
            promote(project.context, "digits/1", to="production", override=("all",), reason="first"),
            promote(project.context, "digits/2", to="production", override=("all",), reason="second"),
            rollback(project.context, "digits", reason="wrong answers"),
        ]

    assert [result.warnings for result in results] == [()] * 3
    told = [request.data for request in receiver.requests]
    assert [(data["kind"], data["from_version"], data["to_version"]) for data in told] == [
        ("promote", None, 1),
        ("promote", 1, 2),
        ("rollback", 2, 1),
    ]
    assert told[2]["reason"] == "wrong answers"
    assert told[0]["evidence"]["overridden"]


def test_what_the_doctor_takes_over_is_told(project: Project) -> None:
    with receiving() as receiver:
        write(project, receiver.toml())
        move(project, 1)
        Backend(project.settings).writer.set_alias("digits", "staging", 2)
        doctor_registry(project.context, "digits", adopt=("digits@staging",))

    told = [request.data for request in receiver.requests]
    assert [(data["kind"], data["to_version"]) for data in told] == [("promote", 1), ("adopt", 2)]


def test_a_dry_run_and_a_lost_compare_and_set_tell_nothing(project: Project) -> None:
    with receiving() as receiver:
        write(project, receiver.toml())
        promote(project.context, "digits/1", to="staging", dry_run=True)
        with pytest.raises(ConflictError):
            promote(project.context, "digits/1", to="staging", expect="3")

    assert receiver.requests == []


def test_a_move_that_was_not_told_is_told_with_the_next(project: Project) -> None:
    with receiving() as receiver:
        write(project, receiver.toml())
        move(project, 1)
        promote(project.context, "digits/2", to="staging")

    assert receiver.numbers == [1, 2]


def test_a_receiver_that_hangs_costs_a_warning_and_not_the_move(project: Project) -> None:
    def hang(_connection: object, over: threading.Event) -> None:
        over.wait(20)

    with speaking(hang) as url, receiving() as receiver:
        write(project, f'[[events.sinks]]\nname = "slow"\nurl = "{url}"', receiver.toml("quick"))
        result = promote(project.context, "digits/1", to="staging")

    (warning,) = result.warnings
    assert result.data["changed"]
    assert "'slow'" in warning
    assert "no answer within 1." in warning, "half of three seconds"
    assert "mlx events deliver digits" in warning
    assert receiver.numbers == [1]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('name = "a"\nurl = "https://example.com/"\nsecret_env = "MLX_NOT_SET"', "MLX_NOT_SET"),
        ('name = "a"\nurl = "http://example.com/"', "plain text"),
        ('name = "a"\nkind = "command"', "names no command"),
        ('name = "a"\nkind = "command"\ncommand = ["false"]', "exit code 1"),
        ('url = "https://example.com/"', "has no name"),
    ],
)
def test_whatever_is_wrong_with_a_sink_is_a_warning(project: Project, table: str, words: str) -> None:
    write(project, f"[[events.sinks]]\n{table}")
    move(project, 1)

    (warning,) = deliver_pending(project.context, "digits")

    assert words in warning


def test_an_error_that_nobody_thought_of_is_a_warning(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, '[[events.sinks]]\nname = "a"\nkind = "command"\ncommand = ["true"]')
    move(project, 1)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("mlx_platform.registry.courier.make_sender", fail)

    (warning,) = deliver_pending(project.context, "digits")

    assert "division by zero" in warning


def test_models_that_a_sink_did_not_ask_for_are_not_looked_up(project: Project) -> None:
    write(project, '[[events.sinks]]\nname = "a"\nmodels = ["other"]')

    assert deliver_pending(project.context, "digits") == ()


def test_without_sinks_nothing_is_loaded(project: Project) -> None:
    script = (
        "import sys; from mlx_platform.core.settings import load_settings;"
        "from mlx_platform.workflows.context import make_context;"
        "from mlx_platform.workflows.events import deliver_pending;"
        "context = make_context(load_settings()); before = set(sys.modules);"
        "assert deliver_pending(context, 'digits') == (); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout.strip() == "[]"
    assert not list(Path(project.folder).glob(".*outbox*"))
