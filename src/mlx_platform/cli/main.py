"""The application and its one error funnel: an error of ours becomes a sentence and its exit code."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from mlx_platform.cli import (
    consistency,
    dataset,
    doctor,
    drift,
    evaluation,
    events,
    live,
    profile,
    quantization,
    registry,
    release,
    rollout,
    sampling,
    service,
)
from mlx_platform.cli.command import Application
from mlx_platform.cli.output import error_document, print_error, print_line, to_json
from mlx_platform.cli.parameters import QuickGroup
from mlx_platform.core.errors import INTERRUPTED, CancelledError, MlxError, UsageError
from mlx_platform.core.version import VERSION

_MODULES = (
    registry,
    release,
    evaluation,
    quantization,
    drift,
    profile,
    consistency,
    sampling,
    dataset,
    service,
    rollout,
    live,
    doctor,
    events,
)
"""The modules that bring commands, in the order of `mlx --help`."""
_BROKEN_PIPE = 141
_ABOUT_ALL = {"-h", "--help", "--version"}
_COMPLETION = ("--install-completion", "--show-completion")


def create_app(only: str | None = None, *, summaries: bool = False) -> Application:
    """Put the commands together; plain help keeps `mlx --help` fast and readable in a pipe.

    Args:
        only: build no other command than this one; all of them where there is none of the name.
        summaries: build commands without their options, to be listed.
    """
    app = Application(
        cls=QuickGroup,
        name="mlx",
        help="Takes a model from a training script to production traffic, and keeps it honest there.",
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.only = only
    app.summaries = summaries
    app.callback()(_global_options)
    for module in _MODULES:
        module.add_commands(app)
    return app if app.registered_commands or app.registered_groups else create_app(summaries=summaries)


def command_names(app: typer.Typer) -> list[str]:
    """Every command of the application, those of groups as `doctor registry`."""
    names = [str(command.name) for command in app.registered_commands]
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is not None:
            names += [f"{inner.info.name} {name}" for name in command_names(inner)]
    return names


def _print_version(*, wanted: bool) -> None:
    if wanted:
        print_line(f"mlx {VERSION}")
        raise typer.Exit


def _global_options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            is_eager=True,
            callback=lambda wanted: _print_version(wanted=wanted),
        ),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion", help="Let the Tab key complete mlx in this shell, or in the one named."
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option("--show-completion", help="Print the completion script of this or the named shell."),
    ] = False,
) -> None:
    """Options of `mlx` itself; the version is printed before any command is looked for."""


def main(argv: Sequence[str] | None = None, *, interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the words after `mlx`, by default those of the process.
        interrupted: whether Ctrl-C came. Whatever error a command ends with after that is its echo.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        if arguments[0] in _COMPLETION and len(arguments) < 3:
            return _completion(arguments[0], arguments[-1] if len(arguments) == 2 else "")
        app = create_app(only=arguments[0], summaries=arguments[0] in _ABOUT_ALL)
        if len(arguments) == 1 and app.only and app.registered_groups:
            arguments.append("--help")
        code = app(args=arguments, prog_name="mlx", standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader is gone; keep the interpreter from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the rim: nothing may reach a user as a traceback unasked
        if "--debug" in arguments:
            traceback.print_exc()
        if not interrupted():
            return _fail(_ours(error, arguments), arguments)
        code = INTERRUPTED
    if code == INTERRUPTED:
        return _fail(CancelledError("Interrupted."), arguments)
    return int(code or 0)


def _completion(wish: str, shell: str) -> int:
    from mlx_platform.cli.shells import current_shell, install, script

    shell = shell or current_shell(os.environ)
    if wish == "--show-completion":
        print_line(script(shell).rstrip("\n"))
        return 0
    written = install(shell, os.environ)
    for path in written:
        print_line(f"Wrote {path}.")
    print_line(
        f"Completion for {shell} works from the next shell on." if written else "It was there already."
    )
    return 0


def _ours(error: Exception, arguments: Sequence[str]) -> MlxError:
    if isinstance(error, MlxError):
        return error
    if isinstance(error, typer.TyperException):
        return UsageError(_sentence(error), hint=_help_hint(arguments))
    hint = "Run it again with --debug for the traceback."
    return MlxError(f"Something unexpected happened ({type(error).__name__}): {error}", hint=hint)


def _fail(error: MlxError, arguments: Sequence[str]) -> int:
    print_error(error)
    if "--json" in arguments:
        print_line(to_json(error_document(error, _command_of(arguments))))
    return error.exit_code


def _command_of(arguments: Sequence[str]) -> str:
    """The command as its result would name it; of a group with the word behind it, if that is one."""
    words = [word for word in arguments if not word.startswith("-")]
    first, inner = next(iter(words), ""), " ".join(words[:2])
    return inner if inner in command_names(create_app(only=first, summaries=True)) else first


def _sentence(error: typer.TyperException) -> str:
    message = getattr(error, "format_message", lambda: str(error))()
    return str(message).strip()


def _help_hint(arguments: Sequence[str]) -> str:
    words = [word for word in arguments if not word.startswith("-")]
    command = next(iter(words), "")
    known = command_names(create_app(only=command))
    if command not in {name.partition(" ")[0] for name in known}:
        return "See: mlx --help"
    early = arguments[: arguments.index(command)]
    if early:
        return f"Options follow the command: mlx {command} {' '.join(early)}"
    inner = " ".join(words[:2])
    return f"See: mlx {inner if inner in known else command} --help"
