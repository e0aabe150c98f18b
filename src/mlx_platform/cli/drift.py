"""`mlx drift`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import (
    JunitOption,
    LogFormatOption,
    ReportOption,
    SinceOption,
    TrafficOption,
    UntilOption,
    ZoneOption,
)

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to the application."""

    @command(
        app,
        "drift",
        examples=(
            "mlx drift digits@production --traffic traffic/ --since 24h --report reports/drift",
            "mlx drift digits@production --traffic traffic/ --since 7d --every 1d --zone America/New_York",
            "mlx drift --baseline baseline.json --traffic today.parquet",
            "mlx drift digits@production --traffic traffic/ --explain p39",
            "mlx drift digits@production --traffic traffic/ --since 24h --notify --textfile drift.prom",
        ),
    )
    def drift(
        run: Run,
        traffic: TrafficOption,
        ref: Annotated[
            str | None, typer.Argument(metavar="[REF]", help="Version whose baseline and traffic to compare.")
        ] = None,
        baseline: Annotated[
            Path | None,
            typer.Option("--baseline", metavar="FILE", help="A profile (baseline.json), rows, or a log."),
        ] = None,
        reference: Annotated[
            Path | None,
            typer.Option(
                "--reference",
                metavar="FILE",
                help="Rows or a log to compare with on the same bins, such as features computed offline.",
            ),
        ] = None,
        baseline_since: Annotated[
            str | None,
            typer.Option("--baseline-since", metavar="TIME", help="Start of a baseline or reference log."),
        ] = None,
        baseline_until: Annotated[
            str | None, typer.Option("--baseline-until", metavar="TIME", help="Its end, exclusive.")
        ] = None,
        since: SinceOption = None,
        until: UntilOption = None,
        every: Annotated[
            str | None,
            typer.Option("--every", metavar="LENGTH", help="Judge windows as well: 15m, 1h, 1d."),
        ] = None,
        zone: Annotated[
            str | None,
            typer.Option("--zone", metavar="ZONE", help="On whose calendar windows are cut; default: UTC."),
        ] = None,
        by: Annotated[
            str | None, typer.Option("--by", metavar="arm|version", help="A result for each of them.")
        ] = None,
        arm: Annotated[
            str | None, typer.Option("--arm", metavar="ARM", help="Only production, canary or shadow.")
        ] = None,
        entity: Annotated[
            str | None,
            typer.Option("--entity", metavar="NAME", help="Only this server or model of a log of others."),
        ] = None,
        fail_on: Annotated[
            str, typer.Option("--fail-on", metavar="warn|drift", help="What exits with 5.")
        ] = "drift",
        explain: Annotated[
            str | None,
            typer.Option("--explain", metavar="FEATURE", help="Work the numbers of a feature out."),
        ] = None,
        notify: Annotated[
            bool,
            typer.Option("--notify", help="Tell the sinks of mlx.toml when drift begins, and when it ends."),
        ] = False,
        textfile: Annotated[
            Path | None,
            typer.Option("--textfile", metavar="FILE", help="Numbers for Prometheus' node exporter."),
        ] = None,
        pushgateway: Annotated[
            str | None,
            typer.Option("--pushgateway", metavar="URL", help="Numbers for a Prometheus Pushgateway."),
        ] = None,
        evidently: Annotated[
            bool,
            typer.Option("--evidently", help="Evidently's page in the report, and its scores beside ours."),
        ] = False,
        log_format: LogFormatOption = None,
        assume_tz: ZoneOption = None,
        report: ReportOption = None,
        junit: JunitOption = None,
    ) -> "Result":
        """Compare logged traffic with the baseline: PSI and KL per feature, with verdicts."""
        from mlx_platform.workflows.drift import measure_drift

        return measure_drift(
            run.context,
            ref,
            baseline=baseline,
            reference=reference,
            baseline_since=baseline_since,
            baseline_until=baseline_until,
            traffic=traffic,
            since=since,
            until=until,
            every=every,
            zone=zone,
            by=by,
            arm=arm,
            entity=entity,
            fail_on=fail_on,
            explain=explain,
            notify=notify,
            textfile=textfile,
            pushgateway=pushgateway,
            evidently=evidently,
            report=report,
            junit=junit,
            log_format=log_format,
            assume_tz=assume_tz,
        )
