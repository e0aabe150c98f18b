"""Commands that give a verdict besides eval: quantize, drift, consistency."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import (
    JunitOption,
    LabelOption,
    LogFormatOption,
    RefArgument,
    ReportOption,
    SinceOption,
    TrafficOption,
    UntilOption,
    ZoneOption,
)

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""

    @command(
        app,
        "quantize",
        examples=(
            "mlx quantize digits@production --calibration calibration.parquet --data test.parquet",
            "mlx quantize model.onnx --calibration calib.parquet --data test.parquet -o model.int8.onnx",
            "mlx quantize digits/2 --calibration calib.parquet --data test.parquet --method auto",
        ),
    )
    def quantize(
        run: Run,
        ref: RefArgument,
        calibration: Annotated[
            Path,
            typer.Option("--calibration", metavar="FILE", help="A few hundred rows like production's."),
        ],
        data: Annotated[
            Path, typer.Option("--data", metavar="FILE", help="Other labelled rows, for the gate.")
        ],
        label: LabelOption = None,
        method: Annotated[
            str,
            typer.Option(
                "--method",
                metavar="METHOD",
                help="static (INT8), dynamic (INT8), fp16, int4, or auto: measure all of them.",
            ),
        ] = "static",
        target: Annotated[
            str,
            typer.Option(
                "--target",
                metavar="CPU",
                help="Processors that it is for: auto, x86-avx2, x86-vnni or arm.",
            ),
        ] = "auto",
        calibration_method: Annotated[
            str,
            typer.Option(
                "--calibration-method",
                metavar="METHOD",
                help="How ranges are chosen: minmax, percentile, percentile:99.9 or entropy.",
            ),
        ] = "minmax",
        max_drop: Annotated[
            str | None,
            typer.Option(
                "--max-drop",
                metavar="DROP",
                help="Tolerated loss with its unit: 1pp (the default), 0.01abs or 1%rel.",
            ),
        ] = None,
        min_speedup: Annotated[
            float | None,
            typer.Option(
                "--min-speedup",
                metavar="X",
                help="Fail when it is not X times as fast; 0 takes any speed. Unset: when it is slower, "
                "unless a row takes less than a millisecond.",
            ),
        ] = None,
        max_size_ratio: Annotated[
            float,
            typer.Option(
                "--max-size-ratio", metavar="X", help="Fail when it is larger than X times the size."
            ),
        ] = 1.0,
        max_evals: Annotated[
            int,
            typer.Option(
                "--max-evals",
                metavar="N",
                help="Candidates that the search for layers to leave in float32 may measure; 0: no search.",
            ),
        ] = 200,
        max_minutes: Annotated[
            float, typer.Option("--max-minutes", metavar="N", help="How long that search may take.")
        ] = 60.0,
        resume: Annotated[
            Path | None,
            typer.Option(
                "--resume", metavar="DIR", help="Keep the search's state here, and go on with what is here."
            ),
        ] = None,
        keep_failed: Annotated[
            bool,
            typer.Option("--keep-failed", help="Write the file of -o although a gate did not pass."),
        ] = False,
        output: Annotated[
            Path | None,
            typer.Option("--output", "-o", metavar="FILE", help="Write the ONNX file here as well."),
        ] = None,
        report: ReportOption = None,
        junit: JunitOption = None,
    ) -> "Result":
        """Make a model smaller, and register the result only if its accuracy holds."""
        from mlx_platform.workflows.quantize import quantize as workflow

        return workflow(
            run.context,
            ref,
            calibration=calibration,
            data=data,
            label=label,
            method=method,
            target=target,
            max_drop=max_drop,
            min_speedup=min_speedup,
            max_size_ratio=max_size_ratio,
            max_evals=max_evals,
            max_minutes=max_minutes,
            resume=resume,
            keep_failed=keep_failed,
            output=output,
            report=report,
            junit=junit,
            calibration_method=calibration_method,
        )

    @command(
        app,
        "drift",
        examples=(
            "mlx drift digits@production --traffic traffic/ --since 24h --report reports/drift",
            "mlx drift --baseline baseline.json --traffic today.parquet",
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
            typer.Option("--baseline", metavar="FILE", help="A profile (baseline.json) or reference rows."),
        ] = None,
        since: SinceOption = None,
        until: UntilOption = None,
        fail_on: Annotated[
            str, typer.Option("--fail-on", metavar="warn|drift", help="What exits with 5.")
        ] = "drift",
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
            traffic=traffic,
            since=since,
            until=until,
            fail_on=fail_on,
            report=report,
            junit=junit,
            log_format=log_format,
            assume_tz=assume_tz,
        )

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
