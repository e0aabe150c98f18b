"""How a function becomes a command: shared options, settings, one workflow, one rendering."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_platform.cli.output import Output
from mlx_platform.cli.parameters import QuickCommand, QuickGroup
from mlx_platform.core.errors import UsageError
from mlx_platform.core.values import frozen

if TYPE_CHECKING:
    from mlx_platform.core.report import Result
    from mlx_platform.workflows.context import Context

_PANEL = "Options of every command"


@frozen
class Shared:
    """The options that every command has."""

    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=_PANEL)
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the result line only.", rich_help_panel=_PANEL)
    ] = False
    no_color: Annotated[
        bool,
        typer.Option("--no-color", help="Print without colour; so does NO_COLOR.", rich_help_panel=_PANEL),
    ] = False
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URI",
            help="Registry, e.g. sqlite:///mlx.db or an MLflow server.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings file; by default the nearest mlx.toml.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    actor: Annotated[
        str | None,
        typer.Option("--actor", metavar="NAME", help="Who acts, for the history.", rich_help_panel=_PANEL),
    ] = None
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Answer every question with yes.", rich_help_panel=_PANEL)
    ] = False
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_PANEL)
    ] = False


@frozen
class Run:
    """One invocation: the context for workflows, and where to print."""

    context: "Context"
    output: Output
    shared: Shared


def asker(run: Run) -> Callable[[str], bool]:
    """How a question is answered: by --yes, by whoever sits at the terminal, or not at all."""

    def ask(question: str) -> bool:
        if run.shared.yes:
            return True
        if sys.stdin.isatty() and sys.stderr.isatty():
            return typer.confirm(question, err=True)
        raise UsageError(f"{question} Nobody can be asked here.", hint="Say it with --yes.")

    return ask


class Application(typer.Typer):
    """Holds all commands, or just the one that was called: the others' options cost time to build."""

    only: str | None = None
    summaries: bool = False
    """Whether commands are there to be listed only, without their options."""


def command_group(app: typer.Typer, name: str, summary: str, *, examples: tuple[str, ...]) -> Application:
    """Add a command that has commands of its own, such as `mlx doctor registry`.

    The first sentence of the summary stands in the list of commands, which has room for about 40 characters.
    """
    group = Application(
        cls=QuickGroup,
        name=name,
        help=summary,
        epilog=_epilog(examples),
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    if isinstance(app, Application):
        group.summaries = app.summaries
    if not isinstance(app, Application) or app.only in {None, name}:
        app.add_typer(group)
    else:
        group.only = ""  # nobody will call any of them
    return group


def command(
    app: typer.Typer, name: str, *, examples: tuple[str, ...]
) -> Callable[[Callable[..., "Result"]], Callable[..., int]]:
    """Register a function of `(run: Run, ...)` as the command `name`.

    The function's docstring becomes the help, its result is rendered, and the result's exit code returned.
    """

    def register(function: Callable[..., "Result"]) -> Callable[..., int]:
        if isinstance(app, Application) and app.only not in {None, name}:
            return function  # type: ignore[return-value]  # nobody will call it
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        if isinstance(app, Application) and app.summaries:
            app.command(name, short_help=summary)(_listed)
            return function  # type: ignore[return-value]
        own = list(inspect.signature(function).parameters.values())[1:]
        shared = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(Shared).parameters.values()
        ]
        names = {parameter.name for parameter in shared}

        @functools.wraps(function)
        def invoke(**values: Any) -> int:
            options = Shared(**{key: values.pop(key) for key in names})
            output = Output(json=options.json, quiet=options.quiet, no_color=options.no_color)
            run = Run(_context(options, output), output, options)
            try:
                result = function(run, **values)
                output.render(result)
            finally:
                output.close()
            return result.exit_code

        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + shared
        invoke.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        invoke.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, cls=QuickCommand, epilog=_epilog(examples), short_help=summary)(invoke)
        return invoke

    return register


def _epilog(examples: tuple[str, ...]) -> str:
    # \b keeps the lines as they are.
    return "\b\n" + "\n".join(("Examples:", *(f"  {example}" for example in examples)))


def _listed() -> None:
    """Stands for a command in a list of commands."""


def _context(options: Shared, output: Output) -> "Context":
    from mlx_platform.core.settings import load_settings
    from mlx_platform.workflows.context import make_context

    overrides = {"registry.uri": options.registry, "actor": options.actor}
    return make_context(load_settings(options.config, overrides=overrides), progress=output.progress())
