"""`mlx sample`: logged rows that are worth a label, drawn with known probabilities."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.report import Report, Result, Table
from mlx_platform.core.span import time_span
from mlx_platform.core.tensors import Columns
from mlx_platform.core.text import did_you_mean, plural, printable
from mlx_platform.drift.excess import Excess
from mlx_platform.drift.verdict import Level
from mlx_platform.drift.watched import Watched, watched
from mlx_platform.evaluation.sample_format import SampledRow
from mlx_platform.evaluation.sampling import Drawn, StratifiedSample
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.traffic.readers.opening import Reading, open_log
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.baseline import Sources, find_baseline
from mlx_platform.workflows.drifting.counting import count_window
from mlx_platform.workflows.drifting.judged import judge
from mlx_platform.workflows.drifting.window import Cut, make_cut
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.replay.requests import Account, Request, replayable
from mlx_platform.workflows.sampling.export import format_of, write_rows
from mlx_platform.workflows.sampling.known import known_hashes
from mlx_platform.workflows.sampling.strategies import (
    Disagreement,
    Drifted,
    Name,
    Random,
    Strategy,
    Uncertain,
    stratum_of,
    weights_of,
)
from mlx_platform.workflows.sampling.values import cell_of, masked
from mlx_platform.workflows.subject import Subject, open_subject

COPIES = "shadow"


@dataclass(slots=True)
class Seen:
    """What became of rows that could have been drawn."""

    rows: int = 0
    known: int = 0
    unscored: int = 0
    unreadable: int = 0
    copies: int = 0


def sample(
    context: Context,
    ref: str,
    *,
    traffic: Path,
    strategy: str,
    count: int,
    output: Path,
    by: str | None = None,
    seed: int = 0,
    since: str | None = None,
    until: str | None = None,
    exclude: Iterable[Path] = (),
    to: str | None = None,
    baseline: Path | None = None,
    show_values: bool = False,
    log_format: str | None = None,
    assume_tz: str | None = None,
) -> Result:
    """Draw rows that a version answered, and write them for those who label them.

    Args:
        context: the command's context.
        ref: the version whose answers are drawn.
        traffic: its traffic log, or another platform's.
        strategy: `uncertain`, `drifted`, `disagreement` or `random`.
        count: rows to draw.
        output: the file: JSON Lines, CSV, or tasks of Label Studio.
        by: draw equally from each `label`, `version`, or value of an input column.
        seed: of the draw; the same seed draws the same rows again.
        since: the first moment, RFC 3339 or an age such as `24h`.
        until: the moment after the last.
        exclude: earlier samples, whose rows are not drawn again.
        to: the file's format, where its name does not say it.
        baseline: for `drifted`, a profile or rows instead of the package's own.
        show_values: write what was asked as it is; personal data are masked otherwise.
        log_format: of the traffic log; None finds it out.
        assume_tz: the zone of times in the log that name none.

    Raises:
        UsageError: a flag that cannot be used, or answers that the strategy says nothing about.
        NotFoundError: no such version, log or file.
        UndecidedError: there is nothing to draw from, or nothing has drifted.
    """
    kind = format_of(output, to)
    name = _checked(strategy, count)
    known = known_hashes(exclude)
    cut = make_cut(
        time_span(since, until, now=context.clock()), every=None, zone=None, by=None, arm=None, entity=None
    )
    with open_subject(context, ref) as subject:
        reading = make_reading(subject, log_format=log_format, assume_tz=assume_tz)
        log = _Log(subject, traffic, cut, reading)
        chosen, look = _strategy(context, log, name, baseline)
        drawn, seen, account = _draw(context, log, chosen, look, by=by, most=count, seed=seed, known=known)
        rows = [_row(each, name, seed, show_values=show_values) for each in drawn.take(count)]
    rows.sort(key=lambda row: (-row.score, row.id))
    if not rows:
        raise UndecidedError(
            f"There is nothing to draw from: {plural(seen.rows, 'row')} of {subject.ref} in {traffic}.",
            hint="Look at a longer window, or at the counts with: mlx drift REF --traffic DIR --json",
        )
    write_rows(output, rows, kind)
    return _result(subject, name, rows, drawn, seen, account, output, kind)


def _checked(strategy: str, count: int) -> Name:
    if strategy not in get_args(Name):
        raise UsageError(
            f"--strategy takes uncertain, drifted, disagreement or random, not {printable(strategy, 40)!r}.",
            hint=did_you_mean(strategy, get_args(Name)),
        )
    if count < 1:
        raise UsageError(f"A sample has at least one row, not {count}.")
    return cast("Name", strategy)


@dataclass(frozen=True, slots=True)
class _Log:
    """A version's part of a log, which may be read several times."""

    subject: Subject
    folder: Path
    cut: Cut
    reading: Reading

    def records(self) -> tuple[Iterator[Record], Any]:
        span = self.cut.span
        return open_log(
            self.folder, self.reading, model=self.subject.name, since=span.since, until=span.until
        )


def _strategy(context: Context, log: _Log, name: Name, baseline: Path | None) -> tuple[Strategy, Watched]:
    """The strategy, and what answers and inputs are."""
    from mlx_platform.drift.profile import Profile

    plain = watched(log.subject.package, Profile(0, ()))
    if name == "random":
        return Random(), plain
    if name == "uncertain":
        return Uncertain(), plain
    if name == "disagreement":
        copies = (record for record in log.records()[0] if record.arm == COPIES and record.status == 200)
        return Disagreement.of(copies, plain.outputs), plain
    return _drifted(context, log, baseline)


def _drifted(context: Context, log: _Log, baseline: Path | None) -> tuple[Strategy, Watched]:
    subject = log.subject
    against = find_baseline(context, subject, Sources(baseline))
    look = watched(subject.package, against.profile)
    window = count_window(context, subject, against.profile, look, log.folder, log.cut, log.reading)
    (group,) = judge(window, context.settings.drift, "drift", now=context.clock())
    names = {(each.role, each.name) for each in group.whole.features if each.level is Level.DRIFT}
    tallies = zip(against.profile.features, window.counts.tallies, strict=True)
    found = {
        (feature.role, feature.column): Excess(feature, tally)
        for feature, tally in tallies
        if (feature.role, feature.name) in names
    }
    if not found:
        raise UndecidedError(
            "No feature has drifted in this window, so no row is any nearer to a drift.",
            hint="Draw by --strategy uncertain or random.",
        )
    inputs, outputs = (
        {column: excess for (of, column), excess in found.items() if of == role}
        for role in ("input", "output")
    )
    return Drifted(look, inputs, outputs), look


@dataclass(frozen=True, slots=True)
class _Row:
    request: Request
    answers: Columns
    row: int
    score: float
    content: str


def _draw(
    context: Context,
    log: _Log,
    strategy: Strategy,
    look: Watched,
    *,
    by: str | None,
    most: int,
    seed: int,
    known: frozenset[str],
) -> tuple[StratifiedSample[_Row], Seen, Account]:
    records, stats = log.records()
    seen, account = Seen(), Account(stats)
    found: StratifiedSample[_Row] = StratifiedSample(most, seed)
    served = _served(records, seen)
    with context.progress.stage("drawing") as advance:
        for request in replayable(served, account, digest=log.subject.package.digest):
            advance(1)
            answers = look.outputs(request.record.endpoint, request.outputs)
            rows = {len(column) for column in (*request.inputs.values(), *(answers or {}).values())}
            if not answers or len(rows) != 1:
                seen.unreadable += 1
                continue
            scores = strategy.scores(request, answers)
            if scores is None:
                seen.unscored += 1
                continue
            weights = weights_of(scores)
            for row in range(rows.pop()):
                seen.rows += 1
                content = stage_hash({name: column[row : row + 1] for name, column in request.inputs.items()})
                if content in known:
                    seen.known += 1
                    continue
                each = _Row(request, answers, row, float(scores[row]), content)
                stratum = stratum_of(by, request, answers, row)
                found.offer(stratum, content, float(weights[row]), lambda each=each: each)  # type: ignore[misc]
    return found, seen, account


def _served(records: Iterator[Record], seen: Seen) -> Iterator[Record]:
    for record in records:
        if record.arm == COPIES:
            seen.copies += 1
        else:
            yield record


def _row(drawn: Drawn[_Row], strategy: Name, seed: int, *, show_values: bool) -> SampledRow:
    each = drawn.item
    record, row = each.request.record, each.row
    inputs: dict[str, Any] = {name: cell_of(column, row) for name, column in each.request.inputs.items()}
    hidden: tuple[str, ...] = ()
    if not show_values:
        inputs, hidden = masked(inputs)
    share = record.sampling if 0 < record.sampling <= 1 else 1.0
    return SampledRow(
        request_id=record.request_id,
        row=row,
        input_hash=each.content,
        time=rfc3339(record.time),
        model=record.model,
        version=record.version,
        digest=record.digest,
        arm=record.arm,
        strategy=strategy,
        seed=seed,
        score=each.score,
        inclusion_probability=drawn.probability,
        weight=1 / (drawn.probability * share),
        inputs=inputs,
        prediction={name: cell_of(column, row) for name, column in each.answers.items()},
        masked=hidden,
    )


def _result(
    subject: Subject,
    name: Name,
    rows: list[SampledRow],
    drawn: StratifiedSample[_Row],
    seen: Seen,
    account: Account,
    output: Path,
    kind: str,
) -> Result:
    hidden = sum(bool(row.masked) for row in rows)
    counts = {
        "rows": seen.rows,
        "drawn": len(rows),
        "repeated": drawn.repeated,
        "known": seen.known,
        "masked": hidden,
        "unscored": seen.unscored,
        "copies": seen.copies,
        **{key: value for key, value in account.document().items() if key not in {"replayed", "sampled_out"}},
    }
    counts["unreadable"] += seen.unreadable
    left = {key: value for key, value in counts.items() if isinstance(value, int) and value}
    table = Table("Rows", ("what", "rows"), tuple((key, f"{value:,}") for key, value in left.items()), (1,))
    warnings = (
        f"Personal data are masked in {plural(hidden, 'row')}, which nobody can train on: --show-values.",
    )
    return Result(
        command="sample",
        data={
            "model": subject.document(),
            "strategy": name,
            "output": str(output),
            "format": kind,
            "counts": counts,
            "estimated_rows": sum(row.weight for row in rows),
        },
        report=Report(
            title=f"sample of {subject.ref}",
            summary=f"{plural(len(rows), 'row')} of {seen.rows:,} drawn by {name}, in {output}.",
            sections=(table,),
            next_steps=(f"mlx dataset import {subject.name}-labels {output}    (once they have labels)",),
        ),
        warnings=warnings if hidden else (),
    )
