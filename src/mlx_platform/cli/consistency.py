"""`mlx consistency`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import (
    JunitOption,
    LogFormatOption,
    RefArgument,
    ReportOption,
    SinceOption,
    ZoneOption,
)

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to the application."""

    @command(
        app,
        "consistency",
        examples=(
            "mlx consistency digits@production --traffic traffic/ --since 24h --report reports/nightly",
        ),
    )
    def consistency(
        run: Run,
        ref: RefArgument,
        traffic: Annotated[
            Path,
            typer.Option(
                "--traffic", metavar="DIR", help="Traffic log of mlx serve, or of another platform."
            ),
        ],
        since: SinceOption = None,
        sample: Annotated[
            int | None, typer.Option("--sample", metavar="N", min=1, help="Replay N requests, drawn evenly.")
        ] = None,
        log_format: LogFormatOption = None,
        assume_tz: ZoneOption = None,
        report: ReportOption = None,
        junit: JunitOption = None,
    ) -> "Result":
        """Replay logged requests through the same version: do online and offline agree?"""
        from mlx_platform.workflows.consistency import check_consistency

        return check_consistency(
            run.context,
            ref,
            traffic=traffic,
            since=since,
            sample=sample,
            report=report,
            junit=junit,
            log_format=log_format,
            assume_tz=assume_tz,
        )
