"""Answers to the Tab key: which words can stand where the cursor is.

The shell's function calls `mlx` with `_MLX_COMPLETE` in the environment; the answer goes to stdout, one
proposal a line. Nothing else is ever printed, and no failure is told: a shell has no place to show it.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlx_platform.cli.main import create_app
from mlx_platform.cli.shells import SHELLS, Answer, show, typed_words
from mlx_platform.core.settings import load_settings
from mlx_platform.core.values import frozen

if TYPE_CHECKING:
    from mlx_platform.workflows.suggestions import Proposal, Suggestions

_SECONDS = 1.0  # for a registry on this disk
_REMOTE_SECONDS = 0.25  # for one that may be at the end of the world
_MODELS = "models:/"


def respond() -> None:
    """Print the proposals for the words in the environment and the arguments, and end the process."""
    answer = ""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        shell = os.environ["_MLX_COMPLETE"]
        words, current, cut = typed_words(shell, os.environ, sys.argv[1:])
        answer = show(shell, complete(words, current), cut, os.environ)
    except Exception:  # noqa: BLE001, S110 - whatever went wrong, the user is typing and wants no message
        pass
    data = answer.encode(errors="replace")
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)  # a thread may still wait for a server


def complete(words: Sequence[str], current: str) -> Answer:
    """What can stand after these words of the command line of `mlx` and begins like `current`."""
    app = create_app(only=words[0] if words else None, summaries=not words)
    if not words:
        return Answer(tuple(_starting(current, [*_commands(app), *_OWN_OPTIONS])))
    if not app.only:  # there is no such command
        shells = [(shell, "") for shell in SHELLS] if words[-1].endswith("-completion") else []
        return Answer(tuple(_starting(current, shells)))
    path = [words[0]]
    command: Any = typer.main.get_command(app)
    command = command.commands[words[0]]
    if app.registered_groups:
        inner = app.registered_groups[0].typer_instance
        if len(words) == 1 and inner:
            return Answer(tuple(_starting(current, [*_commands(inner), _HELP])))
        command = command.commands.get(words[1])
        if command is None:
            return Answer()
        path.append(words[1])
    return _Line(command.params, words[len(path) :]).answer(current)


_HELP = ("--help", "Show this message and exit.")
_OWN_OPTIONS = [
    ("--version", "Print the version."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Print the completion script of a shell."),
    _HELP,
]


def _commands(app: typer.Typer) -> "list[Proposal]":
    found = [(str(command.name), str(command.short_help or "")) for command in app.registered_commands]
    for group in app.registered_groups:
        if group.typer_instance:
            info = group.typer_instance.info
            found.append((str(info.name), str(info.help)))
    return found


def _starting(start: str, proposals: "Sequence[Proposal]") -> "Iterator[Proposal]":
    return (proposal for proposal in proposals if proposal[0].startswith(start))


class _Line:
    """The words behind a command: which options have their values, and what is due next."""

    def __init__(self, parameters: Sequence[Any], words: Sequence[str]) -> None:
        self._options = {word: one for one in parameters for word in one.opts if word.startswith("-")}
        self._arguments = [one for one in parameters if one.param_type_name == "argument"]
        self._values: dict[str, list[str]] = {}
        self._pending: Any = None
        self._literal = False
        self._place = 0
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if self._pending is not None:
            self._keep(self._pending, word)
            self._pending = None
        elif self._literal or not word.startswith("-") or word == "-":
            self._keep(self._argument, word)
            self._place += 1
        elif word == "--":
            self._literal = True
        else:
            name, equals, text = word.partition("=")
            if not word.startswith("--"):
                name, equals, text = word[:2], word[2:3], word[2:]
            option = self._options.get(name)
            if option is not None and not option.is_flag and not equals:
                self._pending = option
            else:
                self._keep(option, text)

    def _keep(self, parameter: Any, text: str) -> None:
        if parameter is not None:
            self._values.setdefault(parameter.name, []).append(text)

    @property
    def _argument(self) -> Any:
        """The argument that the next plain word is."""
        if self._place < len(self._arguments):
            return self._arguments[self._place]
        last = self._arguments[-1] if self._arguments else None
        return last if last is not None and last.nargs == -1 else None

    def answer(self, current: str) -> Answer:
        if self._pending is not None:
            return self._of(self._pending, current)
        if current.startswith("-") and not self._literal:
            name, equals, text = current.partition("=")
            option = self._options.get(name)
            if equals and option is not None and not option.is_flag:
                return self._of(option, text).behind(f"{name}=")
            return Answer(tuple(_starting(current, self._unused())))
        if self._argument is not None:
            return self._of(self._argument, current)
        return Answer() if current or self._literal else Answer(tuple(self._unused()))

    def _unused(self) -> "list[Proposal]":
        found = {}
        for option in dict.fromkeys(self._options.values()):
            if option.name not in self._values or option.multiple:
                found[max(option.opts, key=len)] = option.help or ""
        return [*found.items(), _HELP]

    def _of(self, parameter: Any, current: str) -> Answer:
        """The proposals for one parameter; its metavar says what it takes."""
        kind = (parameter.metavar or "").removesuffix("...").removeprefix("[-]")
        kind = kind.strip("[]") if kind.startswith("[") else kind
        words = _parts_of_diff() if kind == "PART" else [word for word in kind.split("|") if word.islower()]
        proposals: list[Proposal] = [(word, "") for word in words]
        source = _SOURCES.get(kind) or _SOURCES.get(kind.partition("|")[0])
        partial = False
        if source:
            found = self._asked(lambda: source(_Question(self, current)))
            partial = any(word[-1] in "@/." for word, _ in found)
            proposals += found
        chosen = tuple(_starting(current, proposals))
        files = kind in _FILES or (not chosen and "path" in (parameter.help or ""))
        return Answer(chosen, files=files, partial=partial)

    def _asked(self, ask: "Callable[[], list[Proposal]]") -> "list[Proposal]":
        """Ask the registry, but not for longer than somebody waits for a Tab."""
        if not self.suggestions.quick:
            return []
        if self.suggestions.remote:
            import mlx_platform.registry.rest  # noqa: F401 - loading it is not the server's fault
        found: list[Proposal] = []
        thread = threading.Thread(target=lambda: found.extend(_or_nothing(ask)), daemon=True)
        thread.start()
        thread.join(_REMOTE_SECONDS if self.suggestions.remote else _SECONDS)
        return [] if thread.is_alive() else found

    def value(self, name: str) -> str:
        """What was typed for a parameter, or nothing."""
        return next(iter(self._values.get(name, ())), "")

    @cached_property
    def suggestions(self) -> "Suggestions":
        from mlx_platform.workflows.suggestions import Suggestions

        config = self.value("config")
        overrides = {"registry.uri": self.value("registry") or None}
        return Suggestions(load_settings(Path(config) if config else None, overrides=overrides))

    @property
    def model(self) -> str:
        """The model that the command is about, as far as it was typed."""
        return _parts(self.value("ref") or self.value("name"))[0]

    @property
    def alias(self) -> str:
        """The alias that the command is about; production where none was typed."""
        return _parts(self.value("name"))[1] or "production"


def _parts(text: str) -> tuple[str, str]:
    """The name and the alias in a reference."""
    name, _, alias = text.removeprefix(_MODELS).partition("@")
    return re.split("[/:]", name)[0], alias.partition("~")[0]


def _or_nothing(ask: "Callable[[], list[Proposal]]") -> "list[Proposal]":
    try:
        return ask()
    except Exception:  # noqa: BLE001 - a registry that is missing, locked or broken has nothing to offer
        return []


@frozen
class _Question:
    line: _Line
    current: str

    @property
    def suggestions(self) -> "Suggestions":
        return self.line.suggestions


def _models(question: _Question) -> "list[Proposal]":
    if "@" in question.current:
        return _references(question)
    return question.suggestions.models(question.current)


def _references(question: _Question) -> "list[Proposal]":
    """`NAME@ALIAS`, `NAME/12` and labels; several models are offered by name first."""
    suggestions, current = question.suggestions, question.current
    if current.startswith(_MODELS):
        inner = _references(_Question(question.line, current.removeprefix(_MODELS)))
        return [(_MODELS + word, meaning) for word, meaning in inner]
    marks = (("@", suggestions.aliases), ("/", suggestions.numbers), (":", suggestions.numbers))
    for mark, ask in marks:
        name, found, _ = current.partition(mark)
        if found:
            return [(f"{name}{mark}{word}", meaning) for word, meaning in ask(name)]
    models = suggestions.models(current)
    names = [name for name, _ in models]
    if len(names) == 1 or current in names:
        name = current if current in names else names[0]
        return [
            *((f"{name}@{alias}", meaning) for alias, meaning in suggestions.aliases(name)),
            *((f"{name}/{number}", meaning) for number, meaning in suggestions.numbers(name)),
        ]
    if not names:
        # A label is NAME-DAY-NUMBER, and the name may have dashes of its own.
        name = next((name for name, _ in suggestions.models() if current.startswith(f"{name}-")), "")
        return suggestions.labels(name)
    return [(f"{name}{mark}", meaning) for name, meaning in models for mark in "@/"]


def _aliases_with_model(question: _Question) -> "list[Proposal]":
    return [proposal for proposal in _references(question) if "/" not in proposal[0]]


def _sources(question: _Question) -> "list[Proposal]":
    """What is registered already; everything else is a file."""
    return _references(question) if question.current.startswith(_MODELS) else []


def _fields(question: _Question) -> "list[Proposal]":
    head, comma, _ = question.current.rpartition(",")
    found = question.suggestions.fields(question.line.value("ref"))
    return [(head + comma + word, meaning) for word, meaning in found]


def _before(question: _Question) -> "list[Proposal]":
    return question.suggestions.targets_of_rollback(question.line.model, question.line.alias)


def _parts_of_diff() -> list[str]:
    from mlx_platform.workflows.diff import PACKAGED, REGISTERED

    return [*REGISTERED, *PACKAGED]


def _targets(question: _Question) -> "list[Proposal]":
    return question.suggestions.targets(question.line.model)


def _numbers(question: _Question) -> "list[Proposal]":
    return question.suggestions.numbers(question.line.model)


def _gates(question: _Question) -> "list[Proposal]":
    return question.suggestions.gates(question.line.value("to"))


def _sinks(question: _Question) -> "list[Proposal]":
    return question.suggestions.sinks()


_SOURCES: "dict[str, Callable[[_Question], list[Proposal]]]" = {
    "A": _targets,
    "A,B": _fields,
    "ALIAS": _targets,
    "GATE": _gates,
    "NAME": _models,
    "NAME@ALIAS": _aliases_with_model,
    "NAME[@ALIAS]": _models,
    "OTHER": _references,
    "REF": _references,
    "SINK": _sinks,
    "SOURCE": _sources,
    "V": _numbers,
    "V|-N": _before,
}
_FILES = {"DATA", "DIR", "FILE", "SOURCE"}
