"""The command that measures and judges a version: eval."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import (
    DeviceOption,
    JunitOption,
    LabelOption,
    LogFormatOption,
    RefArgument,
    ReportOption,
    SinceOption,
    UntilOption,
    ZoneOption,
)
from mlx_platform.cli.output import print_line
from mlx_platform.core.errors import UsageError

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def _column(flag: str, about: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(flag, metavar="COLUMN", help=about)
    return found


_SAME = ("data", "against", "weight", "group", "query", "aa", "latency", "threads")
_OFFLINE = {
    **{name: f"--{name}" for name in _SAME},
    "row_id": "--id",
    "disjoint_from": "--disjoint-from",
    "batch_size": "--batch-size",
    "gitlab_metrics": "--gitlab-metrics",
}
_ONLINE = {
    **{name: f"--{name}" for name in ("labels", "since", "until", "every", "zone", "metric")},
    "max_difference": "--max-difference",
    "max_delay": "--max-delay",
    "log_format": "--format",
    "assume_tz": "--assume-tz",
}


def _check_form(values: Mapping[str, object]) -> None:
    """Refuse options of one form of the command beside the other's; they come by parameter."""
    live = values["traffic"] is not None
    given = [flag for name, flag in (_OFFLINE if live else _ONLINE).items() if values[name]]
    if given:
        why = "--traffic measures what was answered" if live else "There is no --traffic"
        raise UsageError(f"{why}, so {', '.join(given)} cannot be used.", hint="See: mlx eval --help")


def _print_schema(*, wanted: bool) -> None:
    if wanted:
        from mlx_platform.evaluation.gate_schema import shipped_schema

        print_line(shipped_schema().rstrip("\n"))
        raise typer.Exit


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to the application."""

    @command(
        app,
        "eval",
        examples=(
            'mlx eval digits/4 --data test.parquet --gate "accuracy>=0.9"',
            "mlx eval digits@staging --data test.parquet --against digits@production --gates gates.toml",
            "mlx eval digits/4 --data test.parquet --slice camera --slice camera,light",
            "mlx eval digits/4 --data test.parquet --gates gates.toml --aa",
            "mlx eval digits/4 --data test.parquet --latency --threads 1",
            "mlx eval digits@production --traffic traffic/ --labels labels.csv --since 7d --slice hour",
        ),
    )
    def evaluate(
        run: Run,
        ref: RefArgument,
        data: Annotated[Path | None, typer.Option("--data", metavar="FILE", help="Labelled rows.")] = None,
        against: Annotated[
            str | None,
            typer.Option("--against", metavar="REF", help="Baseline; by default NAME@production."),
        ] = None,
        gates: Annotated[
            Path | None, typer.Option("--gates", metavar="FILE", help="Gate file, TOML or YAML.")
        ] = None,
        gate: Annotated[
            list[str] | None,
            typer.Option(
                "--gate", metavar="EXPR", help='E.g. "accuracy>=0.9" or "accuracy:max_drop=1pp"; repeatable.'
            ),
        ] = None,
        slices: Annotated[
            list[str] | None,
            typer.Option(
                "--slice",
                metavar="COLUMN",
                help="Show the slices of a column, or of several as in lang,device; repeatable.",
            ),
        ] = None,
        label: LabelOption = None,
        row_id: Annotated[str, _column("--id", "Names of the rows; default: id or path.")] = "",
        weight: Annotated[str, _column("--weight", "What each row counts.")] = "",
        group: Annotated[str, _column("--group", "Rows with one value depend on each other.")] = "",
        query: Annotated[str, _column("--query", "Rows with one value are ranked together.")] = "",
        positive: Annotated[
            str,
            typer.Option("--positive", metavar="LABEL", help="Of two classes, what precision is about."),
        ] = "",
        disjoint_from: Annotated[
            list[str] | None,
            typer.Option("--disjoint-from", metavar="FILE", help="Data that must share no rows; repeatable."),
        ] = None,
        aa: Annotated[
            bool, typer.Option("--aa", help="Test the gates: how often do equally good copies fail?")
        ] = False,
        latency: Annotated[
            bool, typer.Option("--latency", help="Measure latency and throughput, beside the baseline.")
        ] = False,
        batch_size: Annotated[
            int | None,
            typer.Option(
                "--batch-size",
                metavar="N",
                min=1,
                max=65536,
                help="Rows of one call; default: 64, and 1 for latencies.",
            ),
        ] = None,
        threads: Annotated[
            int, typer.Option("--threads", metavar="N", min=0, max=1024, help="Of one call; 0 chooses.")
        ] = 0,
        device: DeviceOption = "auto",
        report: ReportOption = None,
        junit: JunitOption = None,
        gitlab_metrics: Annotated[
            Path | None,
            typer.Option(
                "--gitlab-metrics", metavar="FILE", help="File for the numbers as OpenMetrics text."
            ),
        ] = None,
        traffic: Annotated[
            Path | None,
            typer.Option(
                "--traffic", metavar="DIR", help="Instead of --data: measure what was answered, by this log."
            ),
        ] = None,
        labels: Annotated[
            Path | None,
            typer.Option(
                "--labels",
                metavar="FILE",
                help="With --traffic: labels by request id; default: the feedback beside the log.",
            ),
        ] = None,
        since: SinceOption = None,
        until: UntilOption = None,
        every: Annotated[
            str | None,
            typer.Option("--every", metavar="LENGTH", help="With --traffic: windows; default: 1d."),
        ] = None,
        zone: Annotated[
            str | None,
            typer.Option("--zone", metavar="ZONE", help="On whose calendar windows are cut; default: UTC."),
        ] = None,
        metric: Annotated[
            list[str] | None,
            typer.Option(
                "--metric",
                metavar="NAME",
                help="With --traffic: what must be as offline; repeatable.",
            ),
        ] = None,
        max_difference: Annotated[
            str, typer.Option("--max-difference", metavar="AMOUNT", help="By how much: 2pp, or 2%rel.")
        ] = "",
        max_delay: Annotated[
            str | None,
            typer.Option("--max-delay", metavar="SPAN", help="Leave out labels told later, such as 7d."),
        ] = None,
        log_format: LogFormatOption = None,
        assume_tz: ZoneOption = None,
        gates_schema: Annotated[
            bool,
            typer.Option(
                "--gates-schema",
                help="Print the JSON Schema of gate files.",
                is_eager=True,
                callback=lambda wanted: _print_schema(wanted=wanted),
            ),
        ] = False,
    ) -> "Result":
        """Measure a version on labelled rows, compare it with production, and judge its gates.

        With --traffic: measure what it answered, with labels that came later, and compare that with the
        offline evaluation.
        """
        _ = gates_schema  # printed before anything else was read
        _check_form(locals())
        if traffic is not None:
            from mlx_platform.workflows.evaluate_online import evaluate_online
            from mlx_platform.workflows.online.asked import Asked

            asked = Asked(
                ref=ref,
                traffic=traffic,
                labels=labels,
                label=label or "label",
                since=since,
                until=until,
                every=every or "1d",
                zone=zone or "UTC",
                margin=max_difference,
                metrics=tuple(metric or ()),
                slices=tuple(slices or ()),
                patience=max_delay,
                gates=gates,
                gate_expressions=tuple(gate or ()),
                positive=positive,
                log_format=log_format,
                assume_tz=assume_tz,
            )
            return evaluate_online(run.context, asked, report=report, junit=junit)
        if data is None:
            raise UsageError("There is nothing to measure.", hint="Name labelled rows with --data FILE.")
        from mlx_platform.evaluation.gates import DatasetRules
        from mlx_platform.workflows.evaluate import evaluate as workflow
        from mlx_platform.workflows.evaluation.answerer import Running

        columns = DatasetRules(
            id=row_id,
            weight=weight,
            group=group,
            query=query,
            positive=positive,
            disjoint_from=tuple(disjoint_from or ()),
        )
        return workflow(
            run.context,
            ref,
            data=data,
            against=against,
            gates=gates,
            gate_expressions=tuple(gate or ()),
            slices=tuple(slices or ()),
            label=label,
            columns=columns,
            aa=aa,
            running=Running(batch_size or 64, threads, device, latency, batch_size or 1),
            report=report,
            junit=junit,
            metrics=gitlab_metrics,
        )
