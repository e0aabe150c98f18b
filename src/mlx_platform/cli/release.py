"""Commands that move aliases and tell how they moved: promote, rollback, history."""

from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import NameArgument, ReasonOption, RegisteredArgument

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""

    @command(
        app,
        "promote",
        examples=(
            "mlx promote digits/4 --to staging",
            "mlx promote digits/4 --to production --expect 3 --reason 'better on the new writers'",
            "mlx promote digits/4 --to production --override evaluation --reason 'incident 1234'",
        ),
    )
    def promote(
        run: Run,
        ref: RegisteredArgument,
        to: Annotated[
            str, typer.Option("--to", metavar="ALIAS", help="staging, production or another alias.")
        ],
        expect: Annotated[
            str | None,
            typer.Option("--expect", metavar="V|none", help="Only if the alias is still at this version."),
        ] = None,
        reason: ReasonOption = "",
        override: Annotated[
            list[str] | None,
            typer.Option("--override", metavar="GATE", help="Let a gate pass by hand; needs --reason."),
        ] = None,
    ) -> "Result":
        """Move an alias to a version once the evidence it needs is there."""
        from mlx_platform.workflows.promote import promote as workflow

        return workflow(run.context, ref, to=to, expect=expect, reason=reason, override=tuple(override or ()))

    @command(
        app,
        "rollback",
        examples=("mlx rollback digits --reason 'wrong answers'", "mlx rollback digits --to 3"),
    )
    def rollback(
        run: Run,
        name: NameArgument,
        to: Annotated[
            str | None, typer.Option("--to", metavar="V", help="Version; by default the holder before.")
        ] = None,
        reason: ReasonOption = "",
    ) -> "Result":
        """Put production back to the version before, at once and without gates."""
        from mlx_platform.workflows.rollback import rollback as workflow

        return workflow(run.context, name, to=to, reason=reason)

    @command(
        app,
        "history",
        examples=("mlx history digits", "mlx history digits --alias production --at 2026-11-30T12:00:00Z"),
    )
    def history(
        run: Run,
        name: NameArgument,
        alias: Annotated[str | None, typer.Option("--alias", metavar="A", help="Only this alias.")] = None,
        at: Annotated[
            str | None, typer.Option("--at", metavar="TIME", help="What was live at this time.")
        ] = None,
    ) -> "Result":
        """Tell who moved what, when, from where, why, and on which evidence."""
        from mlx_platform.workflows.history import history as workflow

        return workflow(run.context, name, alias=alias, at=at)
