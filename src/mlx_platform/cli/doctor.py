"""Commands that look for what is wrong: doctor registry, package."""

from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command, command_group
from mlx_platform.cli.options import ReasonOption, RefArgument

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""
    group = command_group(
        app,
        "doctor",
        "Find what is wrong, and put it right. It looks at the registry, or at one package.",
        examples=("mlx doctor registry --deep --json", "mlx doctor package digits@production"),
    )

    @command(
        group,
        "registry",
        examples=(
            "mlx doctor registry",
            "mlx doctor registry digits --deep",
            "mlx doctor registry digits --repair",
            "mlx doctor registry --adopt digits@production --reason 'hotfix from the MLflow UI'",
        ),
    )
    def registry(
        run: Run,
        name: Annotated[
            str | None, typer.Argument(metavar="[NAME]", help="Model name; by default every model.")
        ] = None,
        deep: Annotated[bool, typer.Option("--deep", help="Read every byte of every package.")] = False,
        repair: Annotated[
            bool,
            typer.Option(
                "--repair",
                help="Make MLflow's aliases follow the journals, write what lags, remove leftovers.",
            ),
        ] = False,
        adopt: Annotated[
            list[str] | None,
            typer.Option(
                "--adopt",
                metavar="NAME@ALIAS",
                help="Let the journal take over what MLflow says of this alias; repeatable.",
            ),
        ] = None,
        reason: ReasonOption = "",
    ) -> "Result":
        """Compare the registry with what must be true: journals, aliases, versions, bytes."""
        from mlx_platform.workflows.doctor import doctor_registry

        return doctor_registry(
            run.context, name, deep=deep, repair=repair, adopt=tuple(adopt or ()), reason=reason
        )

    @command(group, "package", examples=("mlx doctor package digits@production", "mlx doctor package ./pkg"))
    def package(run: Run, ref: RefArgument) -> "Result":
        """Verify every digest of a package, load it, and run its golden cases."""
        from mlx_platform.workflows.doctor import doctor_package

        return doctor_package(run.context, ref)
