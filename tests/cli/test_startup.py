"""Questions to the registry are answered by a process that loads Typer and the standard library alone."""

import pytest
from projects import Project
from support import LIGHT, modules_of, packages_in

# Of the standard library, what brings a network stack or a parser that no question needs.
NEVER = {"asyncio", "email", "http", "importlib.metadata", "multiprocessing", "ssl", "unittest", "xml"}


@pytest.fixture
def moved(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project.catalog.move("digits", "production", 2, kind="promote", actor="x")
    monkeypatch.chdir(project.folder)
    return project


@pytest.mark.parametrize(
    "arguments",
    [
        ["resolve", "digits@production"],
        ["resolve", "digits/1", "--json"],
        ["list"],
        ["list", "digits", "--limit", "2"],
        ["show", "digits/1"],
        ["history", "digits"],
    ],
)
def test_a_question_loads_nothing_beside_typer(arguments: list[str], moved: Project) -> None:
    modules = modules_of(*arguments)

    assert packages_in(modules) <= LIGHT
    assert modules & NEVER == set()
