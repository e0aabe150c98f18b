"""The examples of the documentation are read by the parsers that a user's files meet."""

import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from support import RunCommand

from mlx_platform.cli.main import command_names, create_app
from mlx_platform.core.settings import load_settings
from mlx_platform.evaluation.gate_file import read_gates
from mlx_platform.inference.cases import read_golden
from mlx_platform.inference.spec import parse_spec
from mlx_platform.serving.rollout.plan import plan_of

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
CODE = {"", "bash", "sh", "console", "text"}
GROUPS = "|".join(sorted({name.split()[0] for name in command_names(create_app()) if " " in name}))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks in these languages, each as the rest of its info string and its text."""
    for language, rest, text in re.findall(r"(?ms)^```([\w-]*) ?(.*?)\n(.*?)^```$", page.read_text()):
        if language in languages:
            yield rest, text


def command_lines(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each `mlx COMMAND` in blocks of commands, indented lines and code spans, with its options.

    The name of a group is followed by that of its command, as in `events deliver`.
    """
    text = page.read_text()
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    pieces = [block for _, block in blocks(page, *CODE)]
    pieces += re.findall(r"(?m)^ {4}(.*)$", prose) + re.findall(r"`([^`\n]+)`", prose)
    for line in "\n".join(pieces).replace("\\\n", " ").splitlines():
        for name, rest in re.findall(rf"(?<![\w./-])mlx ((?:{GROUPS}) [a-z]+|[a-z]+)\b([^#|;]*)", line):
            yield name, re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)


@each_page
def test_toml_and_yaml_examples_say_what_they_are_and_are_read(page: Path, tmp_path: Path) -> None:
    for name, text in blocks(page, "toml", "yaml"):
        path = tmp_path / name
        path.write_text(text)
        if name == "mlx.toml":
            plan_of(load_settings(path, environment={}).rollout)
        elif name in {"gates.toml", "gates.yaml"}:
            assert read_gates(path).gates
        else:
            assert name == "model.toml", f"a block of {page.name} does not say which file it shows"
            spec = parse_spec(text, name)
            assert min(len(spec.inputs), len(spec.outputs)), "without them no step is checked"


@each_page
def test_json_examples_are_json(page: Path, tmp_path: Path) -> None:
    for _, text in blocks(page, "json"):
        orjson.loads(text)
    for name, text in blocks(page, "jsonl"):
        assert name == "golden.jsonl"
        path = tmp_path / name
        path.write_text(text)
        assert len(read_golden(path)) == len(text.splitlines())
    for _, text in blocks(page, "bash", "sh"):
        for body in re.findall(r"(?s)(?:-d|--data) '(.*?)'", text):
            orjson.loads(body)


def test_every_command_and_option_that_is_shown_exists(mlx: RunCommand) -> None:
    shown = [(page.name, *line) for page in PAGES for line in command_lines(page)]
    helps: dict[str, set[str]] = {}
    for name in {command for _, command, _ in shown}:
        outcome = mlx(*name.split(), "--help")
        assert outcome.code == 0, f"there is no mlx {name}"
        helps[name] = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", outcome.out))

    assert {"register", "eval", "promote", "serve", "drift", "consistency"} <= helps.keys()
    for page_name, command, options in shown:
        unknown = set(options) - helps[command]
        assert not unknown, f"{page_name}: mlx {command} has no {unknown}"


@each_page
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)", page.read_text()):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", path.read_text())
            anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page.name} links to {target}#{anchor}"
