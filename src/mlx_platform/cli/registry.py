"""Commands about versions: init, register, list, show, resolve, pull."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import NameArgument, RegisteredArgument, numbers, pairs

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""

    @command(app, "init", examples=("mlx init", "mlx init --registry sqlite:////srv/models/mlx.db"))
    def init(run: Run) -> "Result":
        """Write mlx.toml and create the registry."""
        from mlx_platform.workflows.init import initialize

        return initialize(run.context)

    @command(
        app,
        "register",
        examples=(
            "mlx register digits model.onnx --dataset-version 2026-11 --param lr=0.01 --metric f1=0.93",
            "mlx register digits ./package --baseline train.parquet --git-commit auto",
            "mlx register digits runs:/0a1b2c3d4e5f60718293a4b5c6d7e8f9/model",
            "mlx register digits models:/sandbox/3 --parent digits/2",
        ),
    )
    def register(
        run: Run,
        name: NameArgument,
        source: Annotated[
            str,
            typer.Argument(
                metavar="SOURCE",
                help="An .onnx file, a folder with model.onnx and model.toml, a .skops estimator, "
                "models:/NAME/3, models:/NAME@ALIAS or runs:/RUN_ID/PATH.",
            ),
        ],
        dataset_version: Annotated[
            str, typer.Option("--dataset-version", metavar="V", help="Version of the training data.")
        ] = "",
        param: Annotated[
            list[str] | None, typer.Option("--param", metavar="K=V", help="Hyper-parameter; repeatable.")
        ] = None,
        metric: Annotated[
            list[str] | None, typer.Option("--metric", metavar="K=V", help="Training metric; repeatable.")
        ] = None,
        git_commit: Annotated[
            str, typer.Option("--git-commit", metavar="auto|SHA", help="Commit of the training code.")
        ] = "",
        golden: Annotated[
            Path | None,
            typer.Option("--golden", metavar="FILE", help="golden.jsonl: inputs with the answers expected."),
        ] = None,
        baseline: Annotated[
            Path | None,
            typer.Option(
                "--baseline", metavar="DATA", help="Training rows; their profile is kept for drift."
            ),
        ] = None,
        if_exists: Annotated[
            str, typer.Option("--if-exists", metavar="reuse|fail", help="When the same content is there.")
        ] = "reuse",
        parent: Annotated[
            str, typer.Option("--parent", metavar="REF", help="The version that this one was made from.")
        ] = "",
        description: Annotated[
            str, typer.Option("--description", metavar="TEXT", help="A sentence for people.")
        ] = "",
    ) -> "Result":
        """Seal a model into a package and register it as a new version."""
        from mlx_platform.workflows.register import register as workflow

        return workflow(
            run.context,
            name,
            source,
            dataset_version=dataset_version,
            params=pairs(param, "--param"),
            metrics=numbers(metric, "--metric"),
            git_commit=git_commit,
            golden=golden,
            baseline=baseline,
            if_exists=if_exists,
            parent=parent,
            description=description,
        )

    @command(
        app,
        "adopt",
        examples=("mlx adopt digits/3 --dry-run", "mlx adopt digits/3", "mlx adopt digits --json"),
    )
    def adopt(
        run: Run,
        ref: Annotated[
            str,
            typer.Argument(
                metavar="REF",
                help="A version that plain MLflow registered, or a model for every such version that holds "
                "an alias or a stage.",
            ),
        ],
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Build and check the package, and register nothing.")
        ] = False,
    ) -> "Result":
        """Seal a version that plain MLflow registered, as the next version of the same model."""
        from mlx_platform.workflows.adopt import adopt as workflow

        return workflow(run.context, ref, dry_run=dry_run)

    @command(
        app, "list", examples=("mlx list", "mlx list digits --alias production", "mlx list digits --json")
    )
    def list_(
        run: Run,
        name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this model.")] = None,
        alias: Annotated[
            str | None, typer.Option("--alias", metavar="A", help="Only what holds this alias.")
        ] = None,
        limit: Annotated[
            int, typer.Option("--limit", metavar="N", min=1, help="Newest first, at most N.")
        ] = 20,
    ) -> "Result":
        """List models, or a model's versions."""
        from mlx_platform.workflows.listing import list_versions

        return list_versions(run.context, name, alias=alias, limit=limit)

    @command(app, "show", examples=("mlx show digits@production", "mlx show digits/3 --json"))
    def show(run: Run, ref: RegisteredArgument) -> "Result":
        """Show everything about a version: lineage, signature, evidence, history."""
        from mlx_platform.workflows.show import show as workflow

        return workflow(run.context, ref)

    @command(app, "resolve", examples=("mlx resolve digits@production", "mlx resolve digits@production~1 -q"))
    def resolve(run: Run, ref: RegisteredArgument) -> "Result":
        """Say which version a reference means."""
        from mlx_platform.workflows.resolve import resolve as workflow

        return workflow(run.context, ref)

    @command(app, "pull", examples=("mlx pull digits@production", "mlx pull digits/3 -o ./digits-3"))
    def pull(
        run: Run,
        ref: RegisteredArgument,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", metavar="DIR", help="Copy the package here.")
        ] = None,
    ) -> "Result":
        """Fetch a version's package into the local cache and verify every digest."""
        from mlx_platform.workflows.pull import pull as workflow

        return workflow(run.context, ref, output=output)
