"""Commands that bring a version to traffic step by step, or take it away again."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, asker, command, command_group
from mlx_platform.cli.live import show
from mlx_platform.cli.options import (
    JunitOption,
    NameArgument,
    ReasonOption,
    RegisteredArgument,
    ReportOption,
)

if TYPE_CHECKING:
    from mlx_platform.core.report import Result

PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Plan as TOML or YAML; by default [rollout] of mlx.toml."),
]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="SPAN", help="Stop waiting after 90s, 30m or 1h30m.")
]
OkOnOption = Annotated[
    str | None, typer.Option("--ok-on", metavar="paused", help="End with 0 where it waits for somebody.")
]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0.1, max=3600, help="Between looks.")
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Let what speaks against it pass by hand; needs --reason."),
]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to the application."""
    group = command_group(
        app,
        "rollout",
        "Bring a version to traffic step by step. Servers that follow the model judge it and take it back.",
        examples=(
            "mlx rollout start digits/4 --wait",
            "mlx rollout status digits --watch",
            "mlx rollout abort digits --reason 'wrong answers'",
        ),
    )
    _add_feedback(app)
    _add_start(group)
    _add_watching(group)
    _add_decisions(group)
    _add_checks(group)


def _add_start(group: typer.Typer) -> None:
    @command(
        group,
        "start",
        examples=(
            "mlx rollout start digits/4",
            "mlx rollout start digits/4 --plan careful.toml --wait --timeout 2h",
            "mlx rollout start digits/5 --replace --reason 'has the fix'",
            "mlx rollout start digits/4 --ab 50",
        ),
    )
    def start(
        run: Run,
        ref: RegisteredArgument,
        plan: PlanOption = None,
        ab: Annotated[
            float | None,
            typer.Option(
                "--ab",
                metavar="PERCENT",
                min=0.01,
                max=99.99,
                help="Compare on this share of the traffic instead, by the business metric of the plan.",
            ),
        ] = None,
        replace: Annotated[
            bool, typer.Option("--replace", help="Abort the rollout that goes on, and start this one.")
        ] = False,
        force: ForceOption = False,
        skip_baseline: Annotated[
            bool,
            typer.Option(
                "--skip-baseline", help="Judge by absolute limits only: what is in production is broken."
            ),
        ] = False,
        reason: ReasonOption = "",
        wait: Annotated[bool, typer.Option("--wait", help="Watch it until it has ended.")] = False,
        timeout: TimeoutOption = None,
        ok_on: OkOnOption = None,
        every: EveryOption = 1.0,
    ) -> "Result":
        """Start to bring a version to production step by step."""
        from mlx_platform.workflows.rollouts.start import start as workflow
        from mlx_platform.workflows.rollouts.waiting import Waiting, watch

        waiting = Waiting.of(timeout=timeout, ok_on=ok_on, every=every) if wait or timeout else None
        started = workflow(
            run.context,
            ref,
            plan=plan,
            ab=ab,
            replace_active=replace,
            force=force,
            skip_baseline=skip_baseline,
            reason=reason,
            say=run.output.notice,
        )
        if waiting is None or started.data["id"] is None:
            return started
        name, rollout = str(started.data["name"]), str(started.data["id"])
        if not run.shared.quiet:
            run.output.notice(started.report.summary)
        results = watch(run.context, name, waiting, rollout=rollout, command="rollout start")
        return _followed(run, name, results)


def _add_watching(group: typer.Typer) -> None:
    @command(
        group,
        "status",
        examples=(
            "mlx rollout status digits",
            "mlx rollout status digits --watch",
            "mlx rollout status digits --timeout 30m --ok-on paused --json",
        ),
    )
    def status(
        run: Run,
        name: NameArgument,
        watch: Annotated[
            bool, typer.Option("--watch", help="Go on until it has ended, or waits for somebody.")
        ] = False,
        timeout: TimeoutOption = None,
        ok_on: OkOnOption = None,
        every: EveryOption = 1.0,
        report: ReportOption = None,
        junit: JunitOption = None,
    ) -> "Result":
        """Say how far a rollout is: arms, verdicts, what comes next, who takes part."""
        from mlx_platform.workflows.rollouts.status import status as workflow
        from mlx_platform.workflows.rollouts.waiting import Waiting
        from mlx_platform.workflows.rollouts.waiting import watch as watching

        if watch or timeout is not None:
            waiting = Waiting.of(timeout=timeout, ok_on=ok_on, every=every)
            results = watching(run.context, name, waiting, report=report, junit=junit)
            return _followed(run, name, results)
        return workflow(run.context, name, ok_on=ok_on, report=report, junit=junit)

    @command(
        group,
        "history",
        examples=(
            "mlx rollout history digits",
            "mlx rollout history digits --id 3f9c2d71 --json",
        ),
    )
    def history(
        run: Run,
        name: NameArgument,
        rollout: Annotated[
            str | None, typer.Option("--id", metavar="ID", help="Every transition of this rollout.")
        ] = None,
        report: ReportOption = None,
    ) -> "Result":
        """Tell the rollouts of a model and how each ended, or one of them from start to end."""
        from mlx_platform.workflows.rollouts.story import history as workflow

        return workflow(run.context, name, rollout=rollout, report=report)


def _add_decisions(group: typer.Typer) -> None:
    @command(group, "pause", examples=("mlx rollout pause digits --reason 'deploy of the gateway'",))
    def pause(run: Run, name: NameArgument, reason: ReasonOption = "") -> "Result":
        """Hold a rollout at its share of the traffic; it can still fail and be taken back."""
        from mlx_platform.workflows.rollouts import decisions

        return decisions.pause(run.context, name, reason=reason)

    @command(group, "resume", examples=("mlx rollout resume digits --reason 'looked at the answers'",))
    def resume(run: Run, name: NameArgument, reason: ReasonOption = "") -> "Result":
        """Let a rollout that is paused go on with its step, whose counts begin anew."""
        from mlx_platform.workflows.rollouts import decisions

        return decisions.resume(run.context, name, reason=reason)

    @command(group, "advance", examples=("mlx rollout advance digits --reason 'seen enough'",))
    def advance(run: Run, name: NameArgument, reason: ReasonOption = "") -> "Result":
        """Go on to the next step now, by hand."""
        from mlx_platform.workflows.rollouts import decisions

        return decisions.advance(run.context, name, reason=reason)

    @command(group, "abort", examples=("mlx rollout abort digits --reason 'wrong answers'",))
    def abort(run: Run, name: NameArgument, reason: ReasonOption = "") -> "Result":
        """Take the candidate off all traffic at once; production stays as it is."""
        from mlx_platform.workflows.rollouts import decisions

        return decisions.abort(run.context, name, reason=reason)

    @command(
        group,
        "retry",
        examples=("mlx rollout retry digits", "mlx rollout retry digits --force --reason 'was the proxy'"),
    )
    def retry(
        run: Run, name: NameArgument, force: ForceOption = False, reason: ReasonOption = ""
    ) -> "Result":
        """Start the last rollout again, from its first step, with the same version and plan."""
        from mlx_platform.workflows.rollouts.start import retry as workflow

        return workflow(run.context, name, force=force, reason=reason)


def _add_checks(group: typer.Typer) -> None:
    @command(group, "lint", examples=("mlx rollout lint", "mlx rollout lint careful.toml --json"))
    def lint(
        run: Run,
        file: Annotated[
            Path | None,
            typer.Argument(metavar="[FILE]", help="Plan as TOML or YAML; by default [rollout] of mlx.toml."),
        ] = None,
    ) -> "Result":
        """Read a plan, say what is wrong with it, and how long it takes at best and at most."""
        from mlx_platform.workflows.rollouts.lint import lint as workflow

        return workflow(run.context, file)

    @command(
        group,
        "rehearse",
        examples=(
            "mlx rollout rehearse digits --server http://127.0.0.1:8080",
            "mlx rollout rehearse digits --server http://127.0.0.1:8080 --yes --report reports/rehearsal",
        ),
    )
    def rehearse(
        run: Run,
        name: NameArgument,
        server: Annotated[
            str, typer.Option("--server", metavar="URL", help="Address of a server that follows production.")
        ],
        callers: Annotated[
            int, typer.Option("--callers", metavar="N", min=1, max=64, help="That ask without a break.")
        ] = 4,
        within: Annotated[
            str,
            typer.Option("--within", metavar="SPAN", help="What a flip may take to reach traffic."),
        ] = "5s",
        report: ReportOption = None,
        junit: JunitOption = None,
    ) -> "Result":
        """Perform both rollbacks under test load, and measure seconds and failed requests of each."""
        from mlx_platform.workflows.rollouts.rehearsal.rehearse import rehearse as workflow

        return workflow(
            run.context,
            name,
            server=server,
            callers=callers,
            within=within,
            confirm=asker(run),
            report=report,
            junit=junit,
        )


def _add_feedback(app: typer.Typer) -> None:
    @command(
        app,
        "feedback",
        examples=(
            "mlx feedback clicks.jsonl --server http://127.0.0.1:8080",
            "mlx feedback orders.csv --server http://10.0.0.1:8080 --server http://10.0.0.2:8080",
            "mlx feedback labels.parquet --traffic traffic/ --source reviewers",
        ),
    )
    def feedback(
        run: Run,
        file: Annotated[
            Path,
            typer.Argument(metavar="FILE", help="JSONL entries, or a table with id and outcome columns."),
        ],
        server: Annotated[
            list[str] | None,
            typer.Option("--server", metavar="URL", help="Address of a server to tell; repeatable."),
        ] = None,
        traffic: Annotated[
            Path | None,
            typer.Option("--traffic", metavar="DIR", help="Traffic log to keep the entries beside, instead."),
        ] = None,
        source: Annotated[str, typer.Option("--source", metavar="TEXT", help="Who says so.")] = "",
    ) -> "Result":
        """Tell what became of requests: outcomes by request id, for a rollout's business metrics."""
        from mlx_platform.workflows.feedback import feedback as workflow

        return workflow(run.context, file, servers=tuple(server or ()), traffic=traffic, source=source)


def _followed(run: Run, name: str, results: Iterator["Result"]) -> "Result":
    """Show a rollout until there is nothing left to wait for; Ctrl-C ends the watching, not the rollout."""
    try:
        if run.output.wants_json or run.shared.quiet or not sys.stdout.isatty():
            return _told(run, results)
        return show(run, results)
    except KeyboardInterrupt:
        run.output.notice(f"The rollout of {name} goes on. Look again: mlx rollout status {name} --watch")
        raise


def _told(run: Run, results: Iterator["Result"]) -> "Result":
    """A line for each change, unless nobody wants to hear it; the last result is the command's."""
    said = ""
    for last in results:
        if last.report.summary != said and not run.shared.quiet:
            run.output.notice(last.report.summary)
        said = last.report.summary
    return last
