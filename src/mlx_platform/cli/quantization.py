"""`mlx quantize`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import (
    JunitOption,
    LabelOption,
    RefArgument,
    ReportOption,
)

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to the application."""

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
