"""The application and its one error funnel: an error of ours becomes a sentence and its exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from mlx_platform.cli import quality, registry, release, service
from mlx_platform.cli.output import error_document, print_error, print_line, to_json
from mlx_platform.core.errors import INTERRUPTED, MlxError, UsageError
from mlx_platform.core.version import VERSION

_BROKEN_PIPE = 141


def create_app() -> typer.Typer:
    """Put the commands together; plain help keeps `mlx --help` fast and readable in a pipe."""
    app = typer.Typer(
        name="mlx",
        help="Takes a model from a training script to production traffic, and keeps it honest there.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_global_options)
    for room in (registry, release, quality, service):
        room.add_commands(app)
    return app


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
) -> None:
    """Options of `mlx` itself; the version is printed before any command is looked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = create_app()(args=arguments, prog_name="mlx", standalone_mode=False)
    except MlxError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _fail(error, arguments)
    except typer.TyperException as error:
        return _fail(UsageError(_sentence(error), hint=_help_hint(arguments)), arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader is gone; keep the interpreter from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the rim: nothing may reach a user as a traceback unasked
        if "--debug" in arguments:
            traceback.print_exc()
        kind = type(error).__name__
        hint = "Run it again with --debug for the traceback."
        return _fail(MlxError(f"Something unexpected happened ({kind}): {error}", hint=hint), arguments)
    if code == INTERRUPTED:
        sys.stderr.write("Interrupted.\n")
    return int(code or 0)


def _fail(error: MlxError, arguments: Sequence[str]) -> int:
    print_error(error)
    if "--json" in arguments:
        command = next((word for word in arguments if not word.startswith("-")), "")
        print_line(to_json(error_document(error, command)))
    return error.exit_code


def _sentence(error: typer.TyperException) -> str:
    message = getattr(error, "format_message", lambda: str(error))()
    return str(message).strip()


def _help_hint(arguments: Sequence[str]) -> str:
    command = next((word for word in arguments if not word.startswith("-")), "")
    known = {registered.name for registered in create_app().registered_commands}
    return f"See: mlx {command} --help" if command in known else "See: mlx --help"
