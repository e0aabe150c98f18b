"""Whatever somebody writes into the registry, output stays text of our own making."""

import json
import sqlite3

import pytest
from hostile import TEXTS
from projects import Project
from support import RunCommand

from mlx_platform.core.text import SHOWN_TEXT, printable

_LONGEST = 16 * SHOWN_TEXT  # characters of a line: a few cells, each of them cut


def _infest(project: Project, text: str) -> None:
    """Put a text everywhere that a writer to the registry can put one."""
    tags = {
        "mlx.dataset": text,
        "mlx.git_commit": text,
        "mlx.parent": text,
        "mlx.quarantined": text,
        "mlx.label": text,
        "mlx.actor": text,
        "mlx.task": text,
        "mlx.inputs": text,
        "mlx.environment": text,
        "mlx.adopted_from": text,
        "mlx.params": json.dumps({text: text, "lr": text}),
        "mlx.metrics": json.dumps({text: 0.5, "f1": text}),
        f"mlx.evidence.{text}": json.dumps({"verdict": text, "numbers": {text: text}}),
        text: text,
    }
    connection = sqlite3.connect(project.database)
    with connection:
        connection.execute(
            "DELETE FROM model_version_tags WHERE name = 'digits' AND version = 2 AND key != 'mlx.digest'"
        )
        connection.executemany(
            "INSERT INTO model_version_tags (name, version, key, value) VALUES ('digits', 2, ?, ?)",
            tags.items(),
        )
        connection.execute(
            "UPDATE model_versions SET description = ?, run_id = ?, current_stage = ? "
            "WHERE name = 'digits' AND version = 2",
            (text, text, text),
        )
        connection.execute(
            "INSERT INTO registered_model_aliases (name, alias, version) VALUES ('digits', ?, 2)", (text,)
        )
        connection.execute("INSERT INTO registered_models (name) VALUES (?)", (text,))
    connection.close()


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_never_reaches_a_terminal_as_it_is(
    project: Project, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    _infest(project, text)
    monkeypatch.chdir(project.folder)

    for words in (
        ("list",),
        ("list", "digits"),
        ("show", "digits/2"),
        ("history", "digits"),
        ("resolve", "digits/2"),
        ("diff", "digits/1", "digits/2"),
    ):
        outcome = mlx(*words)
        assert outcome.code == 0, outcome.err
        for line in (outcome.out + outcome.err).split("\n"):
            assert line.isprintable(), (words, line)
            assert len(line) < _LONGEST, words
        if words[0] == "show" and len(text) < SHOWN_TEXT:
            assert printable(text).strip() in outcome.out  # as it is written, markup and all

    document = mlx("show", "digits/2", "--json")
    assert document.document["data"]["description"] == text.encode("utf-8", "replace").decode()
    assert "\x1b" not in document.out
    assert not (project.folder / "canary").exists()
