"""Commands that run things: serve, demo."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import DeviceOption, RefArgument

if TYPE_CHECKING:
    from mlx_platform.core.report import Result
    from mlx_platform.serving.server import Addresses


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""

    @command(
        app,
        "serve",
        examples=(
            "mlx serve digits@production",
            "mlx serve digits@production --follow",
            "mlx serve digits@production --devices cuda:0,cuda:1",
            "mlx serve digits/3 --port 8080 --grpc-port 8081 --admin-port 9090 --traffic traffic/",
            "mlx serve digits/3 --cache memory",
            "mlx serve digits/3 --max-batch-size auto",
            "mlx serve digits/3 --log-format json",
        ),
    )
    def serve(
        run: Run,
        ref: RefArgument,
        device: DeviceOption = "auto",
        host: Annotated[
            str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
        ] = None,
        port: Annotated[
            int | None, typer.Option("--port", metavar="N", min=0, max=65535, help="By default a free one.")
        ] = None,
        admin_port: Annotated[
            int | None,
            typer.Option(
                "--admin-port", metavar="N", min=0, max=65535, help="Metrics and health; a free one."
            ),
        ] = None,
        grpc_port: Annotated[
            int | None,
            typer.Option(
                "--grpc-port", metavar="N", min=-1, max=65535, help="By default a free one; -1 for no gRPC."
            ),
        ] = None,
        devices: Annotated[
            str | None,
            typer.Option(
                "--devices",
                metavar="D,D",
                help="A process on each, such as cuda:0,cuda:1, and one to supervise.",
            ),
        ] = None,
        processes: Annotated[
            int | None,
            typer.Option("--processes", metavar="N", min=0, max=256, help="As many processes on one device."),
        ] = None,
        warmup: Annotated[
            Path | None,
            typer.Option("--warmup", metavar="FILE", help="JSONL of rows to answer before it is ready."),
        ] = None,
        max_batch_size: Annotated[
            str | None,
            typer.Option(
                "--max-batch-size", metavar="N|auto", help="Rows of a run; auto measures at the start."
            ),
        ] = None,
        traffic: Annotated[
            Path | None, typer.Option("--traffic", metavar="DIR", help="Log requests and answers here.")
        ] = None,
        cache: Annotated[
            str | None,
            typer.Option("--cache", metavar="off|memory|redis", help="Where answers are remembered."),
        ] = None,
        follow: Annotated[
            bool, typer.Option("--follow", help="Switch versions, without a pause, whenever the alias moves.")
        ] = False,
        log_format: Annotated[
            str | None,
            typer.Option("--log-format", metavar="text|json", help="Of the log on stderr; default: text."),
        ] = None,
    ) -> "Result":
        """Serve exactly this version, or what an alias means, over HTTP until SIGTERM or Ctrl-C."""
        from mlx_platform.core.tables import changed
        from mlx_platform.workflows.serve import serve as workflow

        context, serving = run.context, run.context.settings.serving
        if log_format is not None:
            serving = changed(serving, {"log_format": log_format}, source="--log-format")
            # Processes of its own that a server starts write lines of the same form.
            context = replace(context, settings=replace(context.settings, serving=serving))
        run.output.log(serving.log_format)
        return workflow(
            context,
            ref,
            device=device,
            host=host,
            port=port,
            admin_port=admin_port,
            grpc_port=grpc_port,
            devices=devices,
            processes=processes,
            warmup=warmup,
            max_batch_size=max_batch_size,
            traffic=traffic,
            cache=cache,
            follow=follow,
            on_ready=lambda addresses: _announce(run, addresses),
        )

    @command(app, "demo", examples=("mlx demo", "mlx demo --output /tmp/mlx-demo"))
    def demo(
        run: Run,
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for everything it makes.")
        ] = Path("mlx-demo"),
    ) -> "Result":
        """Take real data through the whole loop: train, register, gate, quantize, serve, watch, roll back."""
        from mlx_platform.workflows.demo.run import demo as workflow

        return workflow(run.context, output, say=run.output.notice)


def _announce(run: Run, addresses: "Addresses") -> None:
    from mlx_platform.core.report import Report, Result

    facts = {
        "url": addresses.url,
        "admin_url": addresses.admin_url,
        "grpc_url": addresses.grpc_url,
        "model": addresses.model,
        "version": addresses.version,
        "digest": addresses.digest,
        "pid": os.getpid(),
    }
    if run.output.wants_json:
        run.output.document(Result("serve", facts, Report("serve", addresses.url)).document())
    if run.output.logs_json:
        run.output.notice(f"Ready on {addresses.url}.", facts)
    if run.output.wants_json or run.output.logs_json:
        return
    run.output.notice(f"Serving {addresses.model}/{addresses.version} on {addresses.url}")
    if addresses.grpc_url:
        run.output.notice(f"gRPC on {addresses.grpc_url}.")
    run.output.notice(f"Metrics and health on {addresses.admin_url}. Stop with Ctrl-C.")
