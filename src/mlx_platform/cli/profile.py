"""Commands that make baselines and counts: profile build, count, merge."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command, command_group
from mlx_platform.cli.options import LogFormatOption, SinceOption, TrafficOption, UntilOption, ZoneOption

if TYPE_CHECKING:
    from mlx_platform.core.report import Result

OutOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")]
VersionArgument = Annotated[
    str | None, typer.Argument(metavar="[REF]", help="Version whose traffic and baseline are meant.")
]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""
    group = command_group(
        app,
        "profile",
        "Make baselines and counts for drift. Counts of hours, replicas and shards add up exactly.",
        examples=(
            "mlx profile build train.parquet -o baseline.json",
            "mlx profile count digits@production --traffic traffic/ --every 1h --add -o counts.json",
            "mlx profile merge monday.json tuesday.json -o week.json",
        ),
    )

    @command(
        group,
        "build",
        examples=(
            "mlx profile build train.parquet -o baseline.json",
            "mlx profile build traffic/ --ref digits@production --since 14d --until 7d -o baseline.json",
        ),
    )
    def build(
        run: Run,
        source: Annotated[
            Path, typer.Argument(metavar="SOURCE", help="Rows of any number (Parquet, CSV, JSONL), or a log.")
        ],
        output: OutOption,
        ref: Annotated[
            str | None,
            typer.Option("--ref", metavar="REF", help="Version that answers the rows, or whose log it is."),
        ] = None,
        since: SinceOption = None,
        until: UntilOption = None,
        assume_tz: ZoneOption = None,
    ) -> "Result":
        """Profile rows or a log: frozen bins, and what lies in them."""
        from mlx_platform.workflows import profile

        return profile.build(
            run.context, source, ref, out=output, since=since, until=until, assume_tz=assume_tz
        )

    @command(
        group,
        "count",
        examples=(
            "mlx profile count digits@production --traffic traffic/ --every 1h --add -o counts.json",
            "mlx profile count --baseline baseline.json --traffic part-7.parquet -o part-7.json",
        ),
    )
    def count(
        run: Run,
        traffic: TrafficOption,
        output: OutOption,
        ref: VersionArgument = None,
        baseline: Annotated[
            Path | None,
            typer.Option("--baseline", metavar="FILE", help="Count on the bins of this profile instead."),
        ] = None,
        since: SinceOption = None,
        until: UntilOption = None,
        every: Annotated[
            str | None, typer.Option("--every", metavar="LENGTH", help="Keep windows: 15m, 1h, 1d.")
        ] = None,
        zone: Annotated[
            str | None,
            typer.Option("--zone", metavar="ZONE", help="On whose calendar windows are cut; default: UTC."),
        ] = None,
        add: Annotated[
            bool,
            typer.Option("--add", help="Add to what the file holds; nothing is counted twice."),
        ] = False,
        log_format: LogFormatOption = None,
        assume_tz: ZoneOption = None,
    ) -> "Result":
        """Count traffic on the bins of a baseline, for mlx drift --traffic FILE."""
        from mlx_platform.workflows import profile

        return profile.count(
            run.context,
            ref,
            traffic=traffic,
            out=output,
            baseline=baseline,
            since=since,
            until=until,
            every=every,
            zone=zone,
            log_format=log_format,
            assume_tz=assume_tz,
            add=add,
        )

    @command(group, "merge", examples=("mlx profile merge monday.json tuesday.json -o week.json",))
    def merge(
        run: Run,
        files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Counts on the same baseline.")],
        output: OutOption,
    ) -> "Result":
        """Add up counts; what overlaps is passed over or refused."""
        from mlx_platform.workflows import profile

        return profile.merge_files(run.context, files, out=output)
