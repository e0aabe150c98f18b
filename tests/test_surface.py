"""Promises about the whole surface, that hold for every command and module there will ever be."""

import ast
import json
import re
from pathlib import Path

import pytest
import typer
from support import LIGHT, RunCommand, modules_of, packages_in

import mlx_platform
from mlx_platform.cli.main import command_names, create_app
from mlx_platform.cli.output import error_document
from mlx_platform.core.errors import MlxError
from mlx_platform.core.report import Report, Result

ROOT = Path(__file__).parents[1]
COMMANDS = command_names(create_app())
LINKS = ("cli", "registry", "evaluation", "drift", "quantize", "serving")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["promote", "--help"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    assert packages_in(modules_of(*arguments)) <= LIGHT


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_its_parameters_and_gives_examples(name: str, mlx: RunCommand) -> None:
    outcome = mlx(*name.split(), "--help")
    command = typer.main.get_command(create_app())
    for word in name.split():
        command = command.commands[word]  # type: ignore[attr-defined]

    assert outcome.code == 0
    assert f"mlx {name}" in outcome.out.partition("Examples:")[2]
    assert [parameter.name for parameter in command.params if not getattr(parameter, "help", None)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_shared_options(name: str, mlx: RunCommand) -> None:
    text = mlx(*name.split(), "--help").out

    for option in (
        "--json",
        "--quiet",
        "--no-color",
        "--registry",
        "--config",
        "--actor",
        "--yes",
        "--debug",
    ):
        assert option in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert f"## mlx {name}\n" in (ROOT / "docs" / "cli.md").read_text()
    assert f"mlx {name}" in (ROOT / "README.md").read_text()


def test_an_error_is_one_json_document_with_the_keys_of_a_result(mlx: RunCommand) -> None:
    outcome = mlx("resolve", "digits@production", "--json")
    document = json.loads(outcome.out)
    result = Result("resolve", {}, Report("", "")).document()

    assert outcome.code == 3
    assert set(document) == set(result) | {"error"}
    assert document["exit_code"] == 3
    assert set(error_document(MlxError("x"), "resolve")) == set(document)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["promte"], "Did you mean 'promote'"),
        (["resolve", "digits@production", "--jsn"], "--json"),
        (["resolve"], "REF"),
        (["promote", "digits/1"], "--to"),
        (["doctor", "registri"], "Did you mean 'registry'?"),
        (["doctor", "registry", "--jsn"], "See: mlx doctor registry --help"),
    ],
)
def test_a_usage_error_is_a_sentence_and_exits_with_2(
    arguments: list[str], words: str, mlx: RunCommand
) -> None:
    outcome = mlx(*arguments)

    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


def test_mlx_alone_prints_its_help(mlx: RunCommand) -> None:
    outcome = mlx()

    assert outcome.code == 0
    assert outcome.out == mlx("--help").out
    assert outcome.out.count("\n") > 20


def test_the_list_of_commands_is_that_of_the_whole_application(mlx: RunCommand) -> None:
    whole = typer.main.get_command(create_app())
    context = whole.make_context("mlx", [], resilient_parsing=True)

    assert mlx("--help").out == whole.get_help(context) + "\n"
    assert command_names(create_app(summaries=True)) == COMMANDS


def test_a_group_alone_prints_its_help(mlx: RunCommand) -> None:
    outcome = mlx("doctor")

    assert outcome.code == 0
    assert outcome.out == mlx("doctor", "--help").out
    assert "registry" in outcome.out


def test_an_option_before_the_command_is_shown_where_it_goes(mlx: RunCommand) -> None:
    outcome = mlx("--json", "list")

    assert outcome.code == 2
    assert "mlx list --json" in outcome.err


def test_a_usage_error_is_a_document_when_json_was_asked_for(mlx: RunCommand) -> None:
    outcome = mlx("promte", "--json")

    assert json.loads(outcome.out)["error"]["code"] == "usage"


def test_the_public_names_are_the_promised_ones() -> None:
    assert mlx_platform.__all__ == ["__version__", "load"]
    assert all(hasattr(mlx_platform, name) for name in mlx_platform.__all__)


def test_the_version_is_the_one_of_the_distribution(mlx: RunCommand) -> None:
    project = (ROOT / "pyproject.toml").read_text()

    assert f'version = "{mlx_platform.__version__}"' in project
    assert mlx("--version").out == f"mlx {mlx_platform.__version__}\n"


@pytest.mark.parametrize("name", LINKS)
def test_the_rooms_at_the_root_are_links_into_the_package(name: str) -> None:
    link = ROOT / name

    assert link.is_symlink()
    assert str(link.readlink()) == f"src/mlx_platform/{name}"
    assert (link / "__init__.py").is_file()


def test_the_lock_pins_by_hash_and_names_no_index() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^[a-z0-9].*$", lock, re.MULTILINE)

    assert "://" not in lock
    assert all("==" in pin for pin in pins)
    assert lock.count("--hash=sha256:") >= len(pins)


def test_whoever_catches_everything_raises_again_or_says_why() -> None:
    silent = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if broad and not raises and "#" not in lines[node.lineno - 1]:
                silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert silent == []
