"""The demo: every step is what a command does, so that a user can repeat it and go on from there."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mlx_platform.core.clock import Stopwatch, rfc3339
from mlx_platform.core.errors import GateFailedError, MlxError, UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.settings import load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.consistency import check_consistency
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.demo import digits, training
from mlx_platform.workflows.demo.client import running_server, send
from mlx_platform.workflows.drift import measure_drift
from mlx_platform.workflows.evaluate import evaluate
from mlx_platform.workflows.init import initialize
from mlx_platform.workflows.promote import promote
from mlx_platform.workflows.quantize import quantize
from mlx_platform.workflows.register import register
from mlx_platform.workflows.rollback import rollback

NAME = "digits"


_SETTINGS = """\
# Settings of this folder. Everything here can be overridden by MLX_<TABLE>_<KEY> or a flag.

[registry]
uri = "sqlite:///mlx.db"
artifacts = "mlx-artifacts"

[cache]
dir = "cache"

[evaluation]
gates = "gates.toml"

[promotion.production]
needs = ["evaluation"]
"""

_GATES = """\
version = 1

[defaults]
on_missing = "skip"        # the first version has no production to be compared with

[[gates]]
metric = "accuracy"
min = 0.8

[[gates]]
metric = "accuracy"
max_drop = "1pp"           # percentage points, tested on the same rows
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done: its outcome in words, and the command that does it again."""

    title: str
    outcome: str
    command: str
    seconds: float


Say = Callable[[str], None]


def demo(context: Context, output: Path, *, say: Say) -> Result:
    """Take the digits through the whole loop in `output`.

    Args:
        context: gives progress, clock and actor; registry and settings are the folder's own.
        output: the folder; an earlier one of that name is kept under another.
        say: tells people what is happening.

    Raises:
        UsageError: the folder cannot be made.
        MlxError: a step did not end as it should.
    """
    kept = _make_room(output)
    if kept:
        say(f"An earlier {output} is kept as {kept}.")
    write_atomic(output / "mlx.toml", _SETTINGS)
    write_atomic(output / "gates.toml", _GATES)
    own = make_context(
        load_settings(output / "mlx.toml", environment={}, overrides={"actor": context.actor}),
        progress=context.progress,
        clock=context.clock,
    )
    story = _Story(own, output, say)
    story.tell()
    return story.result()


def _make_room(output: Path) -> Path | None:
    """Move an earlier folder aside: whatever a user did in it stays theirs."""
    kept = None
    try:
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            kept = _free_name(output)
            output.rename(kept)
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot make the folder {output}: {error.strerror}.") from error
    return kept


def _free_name(output: Path) -> Path:
    names = (output.with_name(f"{output.name}.{number}") for number in count(1))
    return next(name for name in names if not name.exists())


class _Story:
    def __init__(self, context: Context, folder: Path, say: Say) -> None:
        self._context = context
        self._folder = folder
        self._say = say
        self._steps: list[Step] = []

    def tell(self) -> None:
        self._prepare()
        self._first_version()
        self._challenger()
        self._quantize()
        self._serve_and_watch()
        self._broken()

    # Each step below is one workflow call; the command beside it does the same from a terminal.

    def _prepare(self) -> None:
        watch = Stopwatch()
        initialize(self._context)
        self._done("Create the registry", "mlx.toml, mlx.db, mlx-artifacts/", "mlx init", watch)
        watch = Stopwatch()
        self._train, self._calibration, self._test = digits.load_splits()
        for split in (self._train, self._calibration, self._test):
            digits.write_split(split, self._data)
        rows = " + ".join(str(len(split.labels)) for split in (self._train, self._calibration, self._test))
        self._done(
            "Write the data",
            f"{rows} handwritten digits: train, calibration, test (other writers)",
            "ls data",
            watch,
        )

    def _first_version(self) -> None:
        self._train_and_register("Train and register a first model", training.train_first, "first")
        self._evaluate("Evaluate it", "digits/1")
        self._promote("Promote it", "digits/1", reason="first version")

    def _challenger(self) -> None:
        self._train_and_register("Train a challenger", training.train_challenger, "challenger")
        self._evaluate("Evaluate it against production", "digits/2")
        self._promote("Promote it through its gates", "digits/2", expect="1", reason="better on new writers")

    def _quantize(self) -> None:
        watch = Stopwatch()
        calibration, data = self._data / "calibration.parquet", self._data / "test.parquet"
        result = quantize(
            self._context,
            "digits/2",
            calibration=calibration,
            data=data,
            label=None,
            max_drop=None,
            min_speedup=None,
            output=None,
            report=self._reports / "quantization",
            junit=None,
        )
        self._done(
            "Quantize it to INT8",
            result.report.summary,
            "mlx quantize digits/2 --calibration data/calibration.parquet --data data/test.parquet",
            watch,
        )

    def _serve_and_watch(self) -> None:
        watch = Stopwatch()
        traffic = self._folder / "traffic"
        odd = digits.shifted(self._test.pixels, seed=1)
        with (
            running_server(self._folder, "digits@production", traffic) as server,
            self._context.progress.stage("sending requests", total=2 * len(odd)) as advance,
        ):
            served = send(server, self._test.pixels, advance)
            since = rfc3339(self._context.clock())
            served += send(server, odd, advance)
        self._done(
            "Serve production",
            f"{served:,} requests answered by digits/{server.version}, the second half rotated and noisy",
            "mlx serve digits@production --traffic traffic",
            watch,
        )
        self._drift(traffic, since)
        watch = Stopwatch()
        result = check_consistency(
            self._context,
            "digits@production",
            traffic=traffic,
            since=None,
            sample=None,
            report=self._reports / "consistency",
            junit=None,
        )
        command = "mlx consistency digits@production --traffic traffic"
        self._done("Replay the traffic offline", result.report.summary, command, watch)
        self._expect(result, Verdict.PASS)

    def _drift(self, traffic: Path, since: str) -> None:
        watch = Stopwatch()
        result = measure_drift(
            self._context,
            "digits@production",
            baseline=None,
            traffic=traffic,
            since=since,
            until=None,
            fail_on="drift",
            report=self._reports / "drift",
            junit=None,
        )
        command = f"mlx drift digits@production --traffic traffic --since {since}"
        self._done("Look for drift", result.report.summary, command, watch)
        self._expect(result, Verdict.FAIL)

    def _broken(self) -> None:
        self._train_and_register("Train a broken challenger", training.train_broken, "broken")
        version = self._latest()
        self._evaluate("Evaluate it", f"digits/{version}", verdict=Verdict.FAIL)
        watch = Stopwatch()
        command = f"mlx promote digits/{version} --to production"
        try:
            promote(self._context, f"digits/{version}", to="production", expect=None, reason="", override=())
        except GateFailedError as error:
            self._done("Try to promote it", f"refused: {error.message}", command, watch)
        else:
            raise MlxError("The gate let a broken model through.")
        self._promote(
            "Override the gate", f"digits/{version}", override=("evaluation",), reason="demo of an incident"
        )
        watch = Stopwatch()
        result = rollback(self._context, NAME, to=None, reason="wrong answers in production")
        self._done("Roll back", result.report.summary, "mlx rollback digits --reason 'wrong answers'", watch)

    def _train_and_register(self, title: str, train: Callable[..., training.Trained], kind: str) -> None:
        watch = Stopwatch()
        with self._context.progress.stage(f"training {kind}"):
            trained = train(self._train.pixels, self._train.labels, self._folder / "models" / kind)
        result = register(
            self._context,
            NAME,
            trained.folder,
            dataset_version="digits-train-1000",
            params=trained.params,
            metrics=trained.metrics,
            git_commit="",
            golden=None,
            baseline=self._data / "train.parquet",
            if_exists="reuse",
        )
        words = ["mlx", "register", NAME, f"models/{kind}", "--baseline", "data/train.parquet"]
        words += ["--dataset-version", "digits-train-1000"]
        words += [word for key, value in trained.params.items() for word in ("--param", f"{key}={value}")]
        self._done(title, result.report.summary, shlex.join(words), watch)

    def _evaluate(self, title: str, ref: str, *, verdict: Verdict = Verdict.PASS) -> None:
        watch = Stopwatch()
        result = evaluate(
            self._context,
            ref,
            data=self._data / "test.parquet",
            against=None,
            gates=None,
            gate_expressions=(),
            label=None,
            report=self._reports / f"evaluation-{ref.rpartition('/')[2]}",
            junit=None,
        )
        self._done(title, result.report.summary, f"mlx eval {ref} --data data/test.parquet", watch)
        self._expect(result, verdict)

    def _promote(
        self, title: str, ref: str, *, reason: str, expect: str | None = None, override: tuple[str, ...] = ()
    ) -> None:
        watch = Stopwatch()
        result = promote(self._context, ref, to="production", expect=expect, reason=reason, override=override)
        words = ["mlx", "promote", ref, "--to", "production"]
        words += ["--expect", expect] if expect else []
        words += [word for gate in override for word in ("--override", gate)]
        self._done(title, result.report.summary, shlex.join([*words, "--reason", reason]), watch)

    def _latest(self) -> int:
        return max(version.number for version in self._context.catalog.versions(NAME))

    def _expect(self, result: Result, verdict: Verdict) -> None:
        if result.verdict is not verdict:
            raise MlxError(f"mlx {result.command} said {result.verdict} where the demo expects {verdict}.")

    def _done(self, title: str, outcome: str, command: str, watch: Stopwatch) -> None:
        self._steps.append(Step(title, outcome, command, watch.seconds))
        self._say(f"{len(self._steps):>2}  {title}  ({watch.seconds:.1f} s)")
        self._say(f"    {outcome}")
        self._say(f"    $ {command}")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _reports(self) -> Path:
        return self._folder / "reports"

    def result(self) -> Result:
        production = self._context.catalog.resolve(f"{NAME}@production")
        seconds = sum(step.seconds for step in self._steps)
        data: dict[str, Any] = {
            "folder": str(self._folder),
            "production": production.document(),
            "seconds": round(seconds, 1),
            "steps": [
                {
                    "title": step.title,
                    "outcome": step.outcome,
                    "command": step.command,
                    "seconds": step.seconds,
                }
                for step in self._steps
            ],
        }
        pages = sorted(page.parent.name for page in self._reports.glob("*/report.html"))
        rows = tuple((step.title, f"{step.seconds:.1f} s", step.command) for step in self._steps)
        report = Report(
            title="The whole loop",
            summary=f"{len(rows)} steps in {seconds:.0f} s; {production.ref} is in production, as it served.",
            facts=(
                Fact("folder", f"{self._folder}/  (mlx.toml, mlx.db, data/, models/, traffic/, reports/)"),
                Fact("reports", ", ".join(pages)),
            ),
            details=(Table("What was done", ("step", "time", "command"), rows, numeric=(1,)),),
            next_steps=(
                f"cd {self._folder}",
                "mlx list digits",
                "mlx history digits",
                "mlx serve digits@production --traffic traffic",
                "open reports/drift/report.html",
            ),
        )
        return Result("demo", data, report)
