"""`mlx sample`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import LogFormatOption, RefArgument, SinceOption, UntilOption, ZoneOption

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to the application."""

    @command(
        app,
        "sample",
        examples=(
            "mlx sample digits@production --traffic traffic/ --strategy uncertain -n 200 -o review.jsonl",
            "mlx sample digits/2 --traffic traffic/ --strategy random --by label -n 500 -o tasks.json",
        ),
    )
    def sample(
        run: Run,
        ref: RefArgument,
        traffic: Annotated[
            Path,
            typer.Option(
                "--traffic", metavar="DIR", help="Traffic log of mlx serve, or of another platform."
            ),
        ],
        strategy: Annotated[
            str,
            typer.Option("--strategy", metavar="NAME", help="uncertain, drifted, disagreement or random."),
        ],
        count: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Rows to draw.")],
        output: Annotated[
            Path, typer.Option("-o", metavar="FILE", help="JSONL, CSV, or JSON tasks of Label Studio.")
        ],
        by: Annotated[
            str | None,
            typer.Option("--by", metavar="COLUMN", help="Equally from each label, version or input value."),
        ] = None,
        seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed, the same rows.")] = 0,
        since: SinceOption = None,
        until: UntilOption = None,
        exclude: Annotated[
            list[Path] | None,
            typer.Option("--exclude", metavar="FILE", help="An earlier sample; may be repeated."),
        ] = None,
        to: Annotated[
            str | None,
            typer.Option("--to", metavar="FORMAT", help="jsonl, csv or label-studio; default: by name."),
        ] = None,
        baseline: Annotated[
            Path | None,
            typer.Option("--baseline", metavar="FILE", help="For drifted: a profile or reference rows."),
        ] = None,
        show_values: Annotated[
            bool, typer.Option("--show-values", help="As they are, without masking personal data.")
        ] = False,
        log_format: LogFormatOption = None,
        assume_tz: ZoneOption = None,
    ) -> "Result":
        """Draw logged rows that are worth a label, with the probability of each."""
        from mlx_platform.workflows.sample import sample as draw

        return draw(
            run.context,
            ref,
            traffic=traffic,
            strategy=strategy,
            count=count,
            output=output,
            by=by,
            seed=seed,
            since=since,
            until=until,
            exclude=exclude or (),
            to=to,
            baseline=baseline,
            show_values=show_values,
            log_format=log_format,
            assume_tz=assume_tz,
        )
