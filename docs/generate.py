"""Write docs/cli.md from the commands themselves, or check that it is current.

What a command takes comes from its parameters, what it is for from the workflow behind it, and the exit codes
from the errors that the workflow says it raises.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from mlx_platform.cli.main import command_names, create_app
from mlx_platform.core import errors

PAGE = Path(__file__).with_name("cli.md")
SOURCES = Path(inspect.getfile(create_app)).parent
HEAD = """# Command reference

Written by `make docs` from the commands themselves; do not edit by hand.

    mlx COMMAND [ARGUMENTS] [OPTIONS]

Results go to stdout, everything else to stderr. A reference `REF` is `NAME@ALIAS`, `NAME@ALIAS~1` (the holder
before), `NAME/12`, `NAME:12`, a label such as `digits-20261130-012`, `models:/NAME/12`, or where a command
says so the path of a model that nobody registered. `mlx --install-completion` lets the Tab key fill in
commands, options and references in bash, zsh and fish; `mlx --show-completion zsh` prints the script.
"""
JSON = """## JSON documents

With `--json`, stdout is exactly one document, also for an error:

| key | what |
|---|---|
| `schema` | `mlx/v1` |
| `command` | the command's name |
| `verdict` | `pass`, `fail`, `undecided`, `error`, or null for a command that gives none |
| `exit_code` | what the process ends with |
| `data` | what the command found; null after an error |
| `warnings` | sentences |
| `error` | only after an error: `code`, `message`, `hint`, and what else is known |

Numbers are numbers, times are RFC 3339 in UTC, and what could not be computed is null.
"""
CODES = {
    0: "done, passed, or already so",
    1: "something unexpected; `--debug` shows the traceback",
    2: "a flag, a file or a setting that cannot be used",
    3: "not found",
    4: "conflict: somebody else moved it, the version is in use, or `--expect` was not met",
    5: "a gate failed: a metric, the loss of a quantization, drift, consistency",
    6: "a rollout was aborted or rolled back",
    7: "undecided: too little data, not applicable, cannot be measured, waits for somebody; never a pass",
    8: "still running when its time was over",
    9: "the registry, the store or a server is unreachable, busy or refuses",
    10: "integrity: a digest that does not match, missing bytes, a broken journal",
    130: "Ctrl-C",
}
_VERDICTS = {5: "The verdict is fail.", 7: "The verdict is undecided."}
_GIVES_A_VERDICT = re.compile(r"\bverdict|\bPASS\b|\bpassed\b|a difference fails")


@dataclass(frozen=True)
class Source:
    """Where a command is defined: its module, and the docstring of the workflow that it calls."""

    module: str
    text: str = ""

    def part(self, title: str) -> str:
        """A section of the docstring, such as `Raises`, without its indent."""
        found = re.search(rf"(?m)^{title}:\n((?:[ ]{{4}}.*\n?|\n)+)", self.text + "\n")
        return inspect.cleandoc("\n" + found[1]).strip() if found else ""

    @property
    def body(self) -> str:
        """The paragraphs between the first sentence and the sections."""
        first, _, rest = self.text.partition("\n\n")
        body = re.split(r"(?m)^(?:Args|Returns|Raises|Attributes|Exits):$", rest)[0].strip()
        return body if first else ""


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it would change."""
    page = render()
    if "--check" in arguments:
        if PAGE.read_text() != page:
            sys.stderr.write("docs/cli.md is out of date: run make docs\n")
            return 1
        return 0
    PAGE.write_text(page)
    return 0


def render() -> str:
    """The whole page."""
    app = create_app()
    root: Any = typer.main.get_command(app)
    names = command_names(app)
    sources = find_sources()
    shared = _shared(root, names)
    parts = [HEAD, _index(root, names), _shared_section(root, names[0], shared), JSON, _codes_section()]
    parts += [_section(root, name, names, sources, shared) for name in names]
    return "\n".join(parts)


def find_sources() -> dict[str, Source]:
    """Every command by name: `@command(app, "name", ...)` above a function that imports its workflow."""
    found = {}
    for path in sorted(SOURCES.glob("*.py")):
        tree = ast.parse(path.read_text())
        groups = _groups(tree)
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in function.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "command":
                    owner, name = getattr(call.args[0], "id", ""), ast.literal_eval(call.args[1])
                    full = f"{groups[owner]} {name}" if owner in groups else name
                    found[full] = Source(path.stem, _docstring(function))
    return found


def _groups(tree: ast.Module) -> dict[str, str]:
    """Variables that hold a group of commands, with the group's name."""
    return {
        node.targets[0].id: ast.literal_eval(node.value.args[1])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "command_group"
    }


def _docstring(function: ast.FunctionDef) -> str:
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlx_platform.workflows"):
            module: Any = importlib.import_module(str(node.module))
            for name in node.names:
                workflow = getattr(module, name.name, None)
                if workflow is None:
                    workflow = importlib.import_module(f"{node.module}.{name.name}")
                if inspect.ismodule(workflow):
                    workflow = _called_of(function, name.asname or name.name, workflow)
                if inspect.isfunction(workflow):
                    return inspect.getdoc(workflow) or ""
    return ""


def _called_of(function: ast.FunctionDef, alias: str, module: Any) -> Any:
    """The last function of a module that a command calls: what it returns."""
    called = [
        node.func.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and getattr(node.func.value, "id", "") == alias
    ]
    return getattr(module, called[-1], None) if called else None


def _command(root: Any, name: str) -> Any:
    for word in name.split():
        root = root.commands[word]
    return root


def _parameters(root: Any, name: str) -> list[Any]:
    return list(_command(root, name).params)


def _shared(root: Any, names: list[str]) -> set[str]:
    """The options that every command has."""
    options = [
        {option for parameter in _parameters(root, name) for option in parameter.opts} for name in names
    ]
    return {option for option in set.intersection(*options) if option.startswith("-")}


def _index(root: Any, names: list[str]) -> str:
    rows = [(f"[`mlx {name}`]({_anchor(name)})", _command(root, name).short_help) for name in names]
    return _table(("command", "what it does"), rows)


def _shared_section(root: Any, name: str, shared: set[str]) -> str:
    options = [one for one in _parameters(root, name) if shared.intersection(one.opts)]
    rows = [(_words(one), one.help) for one in options]
    rows.append(("`-h`, `--help`", "Show help and exit."))
    return "## Options of every command\n\n" + _table(("option", "what it does"), rows)


def _codes_section() -> str:
    rows = [(f"{code}", what) for code, what in CODES.items()]
    text = "What is special about a command stands with it below; 1, 2, 9 and 130 can happen to every one.\n"
    return f"## Exit codes\n\n{text}\n{_table(('exit', 'meaning'), rows)}"


def _section(root: Any, name: str, names: list[str], sources: Mapping[str, Source], shared: set[str]) -> str:
    command, source = _command(root, name), sources[name]
    own = [one for one in command.params if not shared.intersection(one.opts)]
    arguments = [one for one in own if one.param_type_name == "argument"]
    options = [one for one in own if one.param_type_name == "option"]
    parts = [f"## mlx {name}\n", f"{command.help}\n", _block("text", _synopsis(name, arguments, options))]
    if source.body:
        parts.append(f"{_by_flags(source.body, options)}\n")
    if arguments:
        rows = [(f"`{_bare(one)}`", _meaning(one)) for one in arguments]
        parts.append(_table(("argument", "what it is"), rows))
    if options:
        rows = [(_words(one), _meaning(one)) for one in options]
        parts.append(_table(("option", "what it does"), rows))
    parts.append(_block("bash", "\n".join(_examples(command))))
    returns = source.part("Returns")
    if returns:
        parts.append(f"{_by_flags(' '.join(returns.split()), options)}\n")
    exits = [(code, _by_flags(reason, options)) for code, reason in _exits(source)]
    parts.append(_table(("exit", "when"), exits))
    links = [f"[`mlx {other}`]({_anchor(other)})" for other in _neighbours(name, names, sources)]
    links += [*_pages_about(name), "[JSON documents](#json-documents)"]
    parts.append(f"See also: {', '.join(links)}.\n")
    return "\n".join(parts)


def _neighbours(name: str, names: list[str], sources: Mapping[str, Source]) -> list[str]:
    """The commands around this one in its module, which belong to the same work."""
    family = [other for other in names if sources[other].module == sources[name].module]
    place = family.index(name)
    return family[max(0, place - 2) : place] + family[place + 1 : place + 3]


def _by_flags(text: str, options: list[Any]) -> str:
    """What a docstring says of a parameter, said of its flag."""
    for option in options:
        text = text.replace(f"`{option.name}`", f"`{max(option.opts, key=len)}`")
    return text


def _synopsis(name: str, arguments: list[Any], options: list[Any]) -> str:
    words = [f"mlx {name}"]
    for one in arguments:
        metavar = _bare(one) if one.required else f"[{_bare(one)}]"
        words.append(f"{metavar}..." if one.nargs == -1 else metavar)
    for one in options:
        flag = max(one.opts, key=len)
        text = flag if one.is_flag else f"{flag} {one.metavar or 'VALUE'}"
        words.append(text if one.required else f"[{text}]" + ("..." if one.multiple else ""))
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) > 95:
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def _bare(argument: Any) -> str:
    """Its name without the brackets around all of it, which say that it may be left out."""
    return re.sub(r"^\[(.*)\](\.\.\.)?$", r"\1", argument.metavar)


def _words(option: Any) -> str:
    metavar = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return ", ".join(
        f"`{word}{metavar if word.startswith('--') else ''}`" for word in sorted(option.opts, key=len)
    )


def _meaning(parameter: Any) -> str:
    notes = []
    if parameter.required and parameter.param_type_name == "option":
        notes.append("Needed.")
    elif parameter.default not in (None, "", False, [], ()):
        notes.append(f"Default: `{parameter.default}`.")
    if parameter.multiple and "repeatable" not in (parameter.help or ""):
        notes.append("Repeatable.")
    return " ".join([parameter.help or "", *notes])


def _examples(command: Any) -> list[str]:
    return [line.strip() for line in command.epilog.splitlines() if line.strip().startswith("mlx ")]


def _exits(source: Source) -> Iterator[tuple[str, str]]:
    reasons: dict[int, list[str]] = {0: ["Done, or already so."]}
    text = re.sub(r"\n\s+", " ", source.part("Raises"))
    for name, reason in re.findall(r"(?m)^(\w+): (.*)$", text):
        code = getattr(errors, name).exit_code
        reasons.setdefault(code, []).append(f"{reason[0].upper()}{reason[1:]}")
    own = re.sub(r"\n\s+", " ", source.part("Exits"))
    for number, reason in re.findall(r"(?m)^(\d+): (.*)$", own):
        reasons.setdefault(int(number), []).append(f"{reason[0].upper()}{reason[1:]}")
    if own:
        pass  # it says what its verdicts end with
    elif _GIVES_A_VERDICT.search(source.part("Returns")) or "a difference fails" in source.part("Args"):
        for code, reason in _VERDICTS.items():
            reasons.setdefault(code, []).append(reason)
    for code, all_reasons in sorted(reasons.items()):
        yield f"{code}", " ".join(all_reasons)


def _pages_about(name: str) -> list[str]:
    pages = []
    for path in sorted(PAGE.parent.glob("*.md")):
        text = path.read_text()
        if path != PAGE and re.search(rf"\bmlx {re.escape(name)}\b", text):
            pages.append(f"[{path.stem}]({path.name})")
    return pages


def _anchor(name: str) -> str:
    return "#mlx-" + name.replace(" ", "-")


def _table(columns: tuple[str, ...], rows: list[tuple[str, str]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
