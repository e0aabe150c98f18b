"""`mlx consistency`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command
from mlx_platform.cli.options import (
    JunitOption,
    LogFormatOption,
    RefArgument,
    ReportOption,
    SinceOption,
    UntilOption,
    ZoneOption,
)
from mlx_platform.core.errors import UsageError

if TYPE_CHECKING:
    from mlx_platform.core.report import Result


def _check_window(
    last: str | None, request_id: str | None, *, spans: bool, nightly: bool, shown: bool
) -> None:
    if last is not None and spans:
        raise UsageError("--last names the window already.", hint="Leave out --since and --until.")
    if request_id is not None and (last is not None or spans or nightly):
        raise UsageError("--request-id is about one request.", hint="Leave out windows and slices.")
    if last is None and nightly:
        raise UsageError("--catch-up and --slice need --last.", hint="Write --last 24h.")
    if last is None and request_id is None and shown:
        raise UsageError("--show-values needs --last or --request-id.")


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to the application."""

    @command(
        app,
        "consistency",
        examples=(
            "mlx consistency digits@production --traffic traffic/ --since 24h --report reports/nightly",
            "mlx consistency digits@production --traffic traffic/ --last 24h --catch-up 7 --report nightly/",
            "mlx consistency digits@production --traffic traffic/ --last 1d --zone Europe/Berlin",
            "mlx consistency digits/4 --traffic traffic/ --request-id 2d5ded0bc7cf-2",
            "mlx consistency digits/4 --data test.parquet --check batch --check repeat",
            "mlx consistency digits/4 --traffic traffic/ --against digits/5",
            "mlx consistency digits/4 --traffic traffic/ --environment lock",
            "mlx consistency digits/4 --offline features.parquet",
        ),
    )
    def consistency(
        run: Run,
        ref: RefArgument,
        traffic: Annotated[
            Path | None,
            typer.Option(
                "--traffic", metavar="DIR", help="Traffic log of mlx serve, or of another platform."
            ),
        ] = None,
        since: SinceOption = None,
        until: UntilOption = None,
        last: Annotated[
            str | None,
            typer.Option(
                "--last",
                metavar="SPAN",
                help="The newest whole window of this length, such as 24h or 1d; --report keeps the nights.",
            ),
        ] = None,
        zone: Annotated[
            str, typer.Option("--zone", metavar="ZONE", help="With --last: whose days are meant.")
        ] = "UTC",
        catch_up: Annotated[
            int,
            typer.Option(
                "--catch-up",
                metavar="N",
                min=0,
                max=366,
                help="With --last: make up for missed windows, N back at most.",
            ),
        ] = 0,
        slices: Annotated[
            list[str] | None,
            typer.Option(
                "--slice", metavar="COLUMN", help="With --last: agreement by an input's values; repeatable."
            ),
        ] = None,
        show_values: Annotated[
            bool,
            typer.Option("--show-values", help="With --last or --request-id: show what requests sent."),
        ] = False,
        request_id: Annotated[
            str | None,
            typer.Option(
                "--request-id",
                metavar="ID",
                help="Answer this request again and show its stages side by side.",
            ),
        ] = None,
        sample: Annotated[
            int | None, typer.Option("--sample", metavar="N", min=1, help="Replay N requests, drawn evenly.")
        ] = None,
        check: Annotated[
            list[str] | None,
            typer.Option(
                "--check",
                metavar="KIND",
                help="Answer in two ways instead: batch (one row at a time or many), repeat, "
                "device (CPU or GPU), int8 (its quantized form); repeatable.",
            ),
        ] = None,
        against: Annotated[
            str | None,
            typer.Option(
                "--against", metavar="REF", help="Compare with another version, such as its INT8 form."
            ),
        ] = None,
        environment: Annotated[
            Path | None,
            typer.Option(
                "--environment",
                metavar="PATH",
                help="Compare with another Python or venv, or install a lock file (lock: the package's own).",
            ),
        ] = None,
        offline: Annotated[
            Path | None,
            typer.Option(
                "--offline",
                metavar="FILE",
                help="Compare with the features or answers that a training script made of its rows.",
            ),
        ] = None,
        data: Annotated[
            Path | None,
            typer.Option(
                "--data", metavar="FILE", help="For a check: rows of this file instead of logged requests."
            ),
        ] = None,
        log_format: LogFormatOption = None,
        assume_tz: ZoneOption = None,
        report: ReportOption = None,
        junit: JunitOption = None,
    ) -> "Result":
        """Replay logged requests through the same version: do online and offline agree?"""
        if check or against or environment or offline:
            if last or request_id or catch_up or slices or show_values or zone != "UTC":
                raise UsageError(
                    "A check is not about nights.", hint="Choose requests with --since and --until."
                )
            from mlx_platform.workflows.crosscheck.check import Origin, cross_check
            from mlx_platform.workflows.crosscheck.pairs import Wanted

            return cross_check(
                run.context,
                ref,
                Wanted(tuple(check or ()), against, environment, offline),
                Origin(traffic, data, since, until, sample, log_format, assume_tz),
                report=report,
                junit=junit,
            )
        if data is not None:
            raise UsageError("--data is for a check.", hint="Name one, such as --check batch.")
        if traffic is None:
            raise UsageError("Which requests are to be replayed?", hint="Name their log with --traffic DIR.")
        _check_window(
            last,
            request_id,
            spans=bool(since or until or (request_id and sample)),
            nightly=bool(catch_up or slices),
            shown=show_values,
        )
        if request_id is not None:
            from mlx_platform.workflows.replay.one import reproduce

            return reproduce(
                run.context,
                ref,
                request_id,
                traffic=traffic,
                show_values=show_values,
                log_format=log_format,
                assume_tz=assume_tz,
                report=report,
                junit=junit,
            )
        if last is not None:
            from mlx_platform.workflows.nightly import check_nights
            from mlx_platform.workflows.nights.look import Request

            asked = Request(ref, traffic, tuple(slices or ()), sample, log_format, assume_tz, show_values)
            return check_nights(
                run.context, asked, last=last, zone=zone, catch_up=catch_up, report=report, junit=junit
            )
        from mlx_platform.workflows.consistency import check_consistency

        return check_consistency(
            run.context,
            ref,
            traffic=traffic,
            since=since,
            until=until,
            sample=sample,
            report=report,
            junit=junit,
            log_format=log_format,
            assume_tz=assume_tz,
        )
