"""Commands that judge and move aliases and tell how they moved: gate, promote, rollback, history."""

from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import (
    JunitOption,
    ModelArgument,
    ReasonOption,
    RegisteredArgument,
    ReportOption,
)

if TYPE_CHECKING:
    from mlx_platform.core.report import Result

ToOption = Annotated[str, typer.Option("--to", metavar="ALIAS", help="staging, production or another alias.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Judge and verify everything, and change nothing.")
]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""

    @command(
        app,
        "gate",
        examples=(
            "mlx gate digits/4 --to production",
            "mlx gate digits@staging --to production --json --junit gates.xml",
        ),
    )
    def gate(
        run: Run,
        ref: RegisteredArgument,
        to: ToOption,
        report: ReportOption = None,
        junit: JunitOption = None,
    ) -> "Result":
        """Tell which evidence an alias asks for is there, which is missing, and how to get it."""
        from mlx_platform.workflows.gate import gate as workflow

        return workflow(run.context, ref, to=to, report=report, junit=junit)

    @command(
        app,
        "promote",
        examples=(
            "mlx promote digits/4 --to staging",
            "mlx promote digits/4 --to production --expect 3 --reason 'better on the new writers'",
            "mlx promote digits/4 --to production --when-gates-pass",
            "mlx promote digits/4 --to production --override evaluation --reason 'incident 1234'",
        ),
    )
    def promote(
        run: Run,
        ref: RegisteredArgument,
        to: ToOption,
        expect: Annotated[
            str | None,
            typer.Option("--expect", metavar="V|none", help="Only if the alias is still at this version."),
        ] = None,
        reason: ReasonOption = "",
        override: Annotated[
            list[str] | None,
            typer.Option("--override", metavar="GATE", help="Let a gate pass by hand; needs --reason."),
        ] = None,
        when_gates_pass: Annotated[
            bool,
            typer.Option(
                "--when-gates-pass", help="For pipelines: move if all gates pass, else end with 5 or 7."
            ),
        ] = False,
        dry_run: DryRunOption = False,
    ) -> "Result":
        """Move an alias to a version once the evidence it needs is there."""
        from mlx_platform.workflows.promote import promote as workflow

        return workflow(
            run.context,
            ref,
            to=to,
            expect=expect,
            reason=reason,
            override=tuple(override or ()),
            dry_run=dry_run,
            when_gates_pass=when_gates_pass,
        )

    @command(
        app,
        "rollback",
        examples=(
            "mlx rollback digits --reason 'wrong answers'",
            "mlx rollback digits --expect 4",
            "mlx rollback digits --to 3",
            "mlx rollback digits@staging --to -2 --dry-run",
        ),
    )
    def rollback(
        run: Run,
        name: ModelArgument,
        to: Annotated[
            str | None,
            typer.Option(
                "--to",
                metavar="V|-N",
                help="Version, or -N for the N-th holder before; by default the one before.",
            ),
        ] = None,
        expect: Annotated[
            str | None,
            typer.Option("--expect", metavar="V", help="The version to roll back; safe to repeat."),
        ] = None,
        reason: ReasonOption = "",
        no_verify: Annotated[
            bool, typer.Option("--no-verify", help="Move at once, without looking at the target's bytes.")
        ] = False,
        dry_run: DryRunOption = False,
    ) -> "Result":
        """Put production back to the version before, at once and without gates."""
        from mlx_platform.workflows.rollback import rollback as workflow

        return workflow(
            run.context, name, to=to, expect=expect, reason=reason, verify=not no_verify, dry_run=dry_run
        )

    @command(
        app,
        "history",
        examples=("mlx history digits", "mlx history digits --alias production --at 2026-11-30T12:00:00Z"),
    )
    def history(
        run: Run,
        name: ModelArgument,
        alias: Annotated[str | None, typer.Option("--alias", metavar="A", help="Only this alias.")] = None,
        at: Annotated[
            str | None, typer.Option("--at", metavar="TIME", help="What was live at this time.")
        ] = None,
        verify: Annotated[
            bool, typer.Option("--verify", help="Give a verdict on the journal and its anchor.")
        ] = False,
    ) -> "Result":
        """Tell who moved what, when, from where, why, and on which evidence."""
        from mlx_platform.workflows.history import history as workflow

        return workflow(run.context, name, alias=alias, at=at, verify=verify)
