"""Commands about the sinks of events: events deliver, status, test, retry."""

from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command, command_group

if TYPE_CHECKING:
    from mlx_platform.core.report import Result

_ModelArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Model name; by default every model.")
]
_SinkArgument = Annotated[str, typer.Argument(metavar="SINK", help="Name of the sink in mlx.toml.")]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""
    group = command_group(
        app,
        "events",
        "Tell webhooks and commands of every move. Sinks are configured in mlx.toml.",
        examples=("mlx events deliver --watch", "mlx events status --json", "mlx events test ops"),
    )

    @command(
        group,
        "deliver",
        examples=(
            "mlx events deliver",
            "mlx events deliver digits --sink ops --now",
            "mlx events deliver --watch",
        ),
    )
    def deliver(
        run: Run,
        name: _ModelArgument = None,
        sink: Annotated[str | None, typer.Option("--sink", metavar="SINK", help="Only this sink.")] = None,
        wait: Annotated[
            float,
            typer.Option("--wait", metavar="SECONDS", min=0, help="For another attempt at what fails."),
        ] = 30.0,
        now: Annotated[
            bool, typer.Option("--now", help="Try what failed before without waiting for its time.")
        ] = False,
        watch: Annotated[bool, typer.Option("--watch", help="Go on delivering until Ctrl-C.")] = False,
        every: Annotated[
            float, typer.Option("--every", metavar="SECONDS", min=0.1, help="Between looks with --watch.")
        ] = 5.0,
    ) -> "Result":
        """Tell the sinks of every move that they have not been told of yet."""
        from mlx_platform.workflows import delivery

        if watch:
            delivery.watch(run.context, name, sink=sink, every=every, say=run.output.notice)
        return delivery.deliver(run.context, name, sink=sink, wait=wait, now=now)

    @command(group, "status", examples=("mlx events status", "mlx events status digits --json"))
    def status(run: Run, name: _ModelArgument = None) -> "Result":
        """Say what each sink was told last, what waits, and what was given up."""
        from mlx_platform.workflows.sinks import status as workflow

        return workflow(run.context, name)

    @command(group, "test", examples=("mlx events test ops", "mlx events test ops --json"))
    def test(run: Run, sink: _SinkArgument) -> "Result":
        """Send a sink a signed event of the kind test, and show what it answers."""
        from mlx_platform.workflows.sinks import try_sink as workflow

        return workflow(run.context, sink)

    @command(group, "retry", examples=("mlx events retry ops", "mlx events retry ops 7 digits/9"))
    def retry(
        run: Run,
        sink: _SinkArgument,
        events: Annotated[
            list[str] | None,
            typer.Argument(metavar="EVENT", help="Number or NAME/NUMBER; by default all that is parked."),
        ] = None,
    ) -> "Result":
        """Send a sink again what was given up, or any other event."""
        from mlx_platform.workflows.sinks import retry as workflow

        return workflow(run.context, sink, tuple(events or ()))
