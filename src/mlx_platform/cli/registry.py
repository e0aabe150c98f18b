"""Commands about versions: init, register, adopt, list, show, diff, archive, delete, resolve, pull."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, asker, command
from mlx_platform.cli.options import NameArgument, ReasonOption, RegisteredArgument, numbers, pairs

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
        app,
        "list",
        examples=(
            "mlx list",
            "mlx list digits --alias production",
            'mlx list digits --where "metrics.f1 >= 0.9 and params.lr < 0.1" --sort -metrics.f1',
            'mlx list --where "evidence.evaluation = pass and not alias" --since 7d --json',
        ),
    )
    def list_(
        run: Run,
        name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this model.")] = None,
        alias: Annotated[
            str | None, typer.Option("--alias", metavar="A", help="Only what holds this alias.")
        ] = None,
        where: Annotated[
            str | None,
            typer.Option("--where", metavar="EXPR", help="Only versions of which this is true."),
        ] = None,
        since: Annotated[
            str | None,
            typer.Option("--since", metavar="TIME", help="Only since: a time with zone, or an age as 7d."),
        ] = None,
        sort: Annotated[
            str | None,
            typer.Option("--sort", metavar="[-]FIELD", help="By this field; with - the highest first."),
        ] = None,
        everything: Annotated[
            bool, typer.Option("--all", help="Archived versions too, and no limit unless one is given.")
        ] = False,
        limit: Annotated[
            int | None, typer.Option("--limit", metavar="N", min=1, help="At most N; 20 without --all.")
        ] = None,
    ) -> "Result":
        """List models, or versions: of one model, or those that fit a condition."""
        from mlx_platform.workflows.listing import list_versions

        return list_versions(
            run.context,
            name,
            alias=alias,
            where=where,
            since=since,
            sort=sort,
            everything=everything,
            limit=limit,
        )

    @command(
        app,
        "show",
        examples=(
            "mlx show digits@production",
            "mlx show digits/3 --json",
            "mlx show digits/3 --fields digest,metrics.f1",
        ),
    )
    def show(
        run: Run,
        ref: RegisteredArgument,
        fields: Annotated[
            str | None,
            typer.Option("--fields", metavar="A,B", help="Only the values of these, one a line."),
        ] = None,
    ) -> "Result":
        """Show everything about a version: lineage, signature, evidence, history."""
        from mlx_platform.workflows.show import show as workflow

        return workflow(run.context, ref, fields=tuple(fields.split(",")) if fields is not None else ())

    @command(
        app,
        "diff",
        examples=(
            "mlx diff digits@production digits/4",
            "mlx diff digits@production~1 digits@production --only metrics --only params",
            "mlx diff digits@production model.onnx --only graph --exit-code",
        ),
    )
    def diff(
        run: Run,
        first: Annotated[str, typer.Argument(metavar="REF", help="What is compared from; also a path.")],
        second: Annotated[str, typer.Argument(metavar="OTHER", help="What is compared to; also a path.")],
        only: Annotated[
            list[str] | None,
            typer.Option(
                "--only",
                metavar="PART",
                help="metrics, params, lineage, io, graph, files or environment; repeatable.",
            ),
        ] = None,
        exit_code: Annotated[
            bool, typer.Option("--exit-code", help="Exit with 5 where there is a difference.")
        ] = False,
    ) -> "Result":
        """Tell the difference between two versions, or files."""
        from mlx_platform.workflows.diff import diff as workflow

        return workflow(run.context, first, second, only=tuple(only or ()), exit_code=exit_code)

    @command(
        app,
        "archive",
        examples=("mlx archive digits/2 --reason 'too slow'", "mlx archive digits/2 --undo"),
    )
    def archive(
        run: Run,
        ref: RegisteredArgument,
        undo: Annotated[bool, typer.Option("--undo", help="Take it out of the archive.")] = False,
        reason: ReasonOption = "",
    ) -> "Result":
        """Put a version out of sight and out of reach of promotions; its bytes stay."""
        from mlx_platform.workflows.archive import archive as workflow

        return workflow(run.context, ref, undo=undo, reason=reason)

    @command(
        app,
        "delete",
        examples=(
            "mlx delete digits/2",
            "mlx delete digits/2 --yes --reason 'leaked data'",
            "mlx delete digits/2 --yes --reason 'leaked data' --json",
        ),
    )
    def delete(run: Run, ref: RegisteredArgument, reason: ReasonOption = "") -> "Result":
        """Delete a version and its bytes, unless it is in use."""
        from mlx_platform.workflows.delete import delete as workflow

        return workflow(run.context, ref, reason=reason, confirm=asker(run))

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
