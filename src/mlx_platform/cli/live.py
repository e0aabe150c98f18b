"""Commands that look at what is running: top."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""

    @command(
        app,
        "top",
        examples=("mlx top http://127.0.0.1:9090", "mlx top http://127.0.0.1:9090 --once --json"),
    )
    def top(
        run: Run,
        url: Annotated[
            str, typer.Argument(metavar="URL", help="Address that mlx serve prints for metrics and health.")
        ],
        every: Annotated[
            float,
            typer.Option(
                "--every", metavar="SECONDS", min=0.1, max=3600, help="Between looks at the server."
            ),
        ] = 2.0,
        once: Annotated[bool, typer.Option("--once", help="Look for that long, print, and end.")] = False,
    ) -> "Result":
        """Watch a running server: requests, percentiles, stages, batches, cache, GPUs."""
        from mlx_platform.workflows import top as workflow

        output = run.output
        if once or output.wants_json or run.shared.quiet or not sys.stdout.isatty():
            return workflow.top(run.context, url, every=every)
        return show(run, workflow.watch(run.context, url, every=every), endless=True)


def show(run: Run, results: Iterator["Result"], *, endless: bool = False) -> "Result":
    """Draw one result over the other on a screen of their own; the last one stays.

    Args:
        run: where to draw.
        results: at least one.
        endless: they only end with Ctrl-C, which is then how one leaves.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    last = next(results)
    console = Console()

    def drawn(result: "Result") -> Text:
        return Text.from_ansi(fitted(result, console.height, run.output.drawn))

    try:
        with Live(console=console, screen=True, auto_refresh=False) as screen:
            screen.update(drawn(last), refresh=True)
            for last in results:
                screen.update(drawn(last), refresh=True)
    except KeyboardInterrupt:
        if not endless:
            raise
    return last


def fitted(result: "Result", height: int, draw: Callable[["Result"], str]) -> str:
    """A result drawn for a screen of so many lines: the verdicts stay, what is known before goes first."""
    report = result.report
    smaller = (
        report,
        replace(report, next_steps=()),
        replace(report, next_steps=(), facts=()),
        replace(report, next_steps=(), facts=(), sections=report.sections[:1]),
    )
    drawn = (draw(replace(result, report=each)) for each in smaller)
    text = ""
    for text in drawn:
        if len(text.splitlines()) <= height:
            break
    return text
