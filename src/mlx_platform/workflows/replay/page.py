"""The page and the document of a consistency check."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlx_platform.core.clock import both_zones
from mlx_platform.core.report import Fact, Report, Result, Section, Table
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.agreement import OTHER_BATCH, ArrayAgreement
from mlx_platform.evaluation.consistency import CAUSES, Tally, judge_agreement
from mlx_platform.workflows.replay.requests import Account
from mlx_platform.workflows.subject import Subject

_SHOWN = 20  # outputs
_RUNTIMES = 3
_FAR = ("output", "median", "99 %", "largest", "bias", "smape", "absolute", "relative")
MIN_USABLE = 0.95  # of the log's records; below it the readable rest may be no fair sample


def checks_of(tally: Tally, account: Account, threshold: float) -> tuple[Check, ...]:
    """The agreement, and the log where too much of it cannot be read."""
    agreement = judge_agreement(tally, threshold)
    usable = account.log.share_usable
    if usable >= MIN_USABLE:
        return (agreement,)
    message = "too much of the log cannot be read"
    return agreement, Check(
        "log", Verdict.UNDECIDED, f"{usable:.1%} readable", f">= {MIN_USABLE:.0%}", message
    )


def result_of(
    subject: Subject, traffic: Path, tally: Tally, account: Account, threshold: float, evidence: str | None
) -> Result:
    """What the command returns; `evidence` is the id under which it was kept."""
    checks = checks_of(tally, account, threshold)
    verdict = verdict_of(checks)
    data: dict[str, Any] = {
        "model": subject.document(),
        "traffic": str(traffic),
        "window": account.window(),
        "requests": account.document() | {"compared": tally.requests, "agreeing": tally.agreeing},
        "threshold": threshold,
        **tally.document(),
        "evidence": evidence,
    }
    report = Report(
        title=f"Consistency of {subject.ref}",
        summary=_summary(subject, tally, verdict),
        facts=tuple(_facts(subject, traffic, account)),
        sections=tuple(_sections(tally)),
        checks=checks,
        details=tuple(_details(tally)),
        next_steps=tuple(_next_steps(subject, traffic, account, tally)),
    )
    return Result("consistency", data, report, verdict, tuple(_warnings(account)))


def _summary(subject: Subject, tally: Tally, verdict: Verdict) -> str:
    if tally.agreement is None:
        return f"{subject.ref}: no logged request could be replayed."
    start = f"{subject.ref}: {tally.agreement:.2%} of {plural(tally.requests, 'request')} agree"
    if verdict is Verdict.FAIL and tally.diverging_stage:
        return f"{start}; {CAUSES[tally.diverging_stage]}."
    if verdict is Verdict.UNDECIDED:
        return f"{start}; that is too little to tell."
    return f"{start}."


def _facts(subject: Subject, traffic: Path, account: Account) -> Iterable[Fact]:
    yield Fact("version", f"{subject.ref}, digest {subject.package.digest[:12]}")
    yield Fact("traffic", str(traffic))
    if account.first and account.last:
        yield Fact("window", f"{both_zones(account.first)} to {both_zones(account.last)}")
    for runtime, count in account.runtimes.most_common(_RUNTIMES):
        yield Fact("served by", f"{printable(runtime, 200)} ({plural(count, 'request')})")
    left_out = {
        "lost": account.lost,
        "not comparable": account.not_comparable.total(),
        "failed": account.failed,
        "truncated": account.truncated,
        "unpaired": account.unpaired,
        "answered by meaning": account.semantic,
        "unreadable": account.log.unreadable + account.undecodable + account.log.torn,
        "duplicates": account.log.duplicates,
        "not drawn": account.sampled_out,
    }
    rest = ", ".join(f"{count:,} {name}" for name, count in left_out.items() if count)
    yield Fact("requests", f"{account.replayed:,} replayed" + (f"; left out: {rest}" if rest else ""))
    tolerance = OTHER_BATCH["FP32"]
    yield Fact("tolerance", f"float32 {tolerance.relative:g} relative + {tolerance.absolute:g}; labels exact")


def _sections(tally: Tally) -> Iterable[Section]:
    if not tally.requests:
        return
    elements = sum(output.elements for output in tally.outputs.values())
    rows = [("requests", f"{tally.requests:,}", _share(tally.agreement))]
    rows.append(("elements", f"{elements:,}", _share(tally.element_agreement)))
    if tally.labels:
        rows.append(("labels", f"{tally.labels:,}", _share(tally.label_agreement)))
    yield Table("Agreement", ("of", "compared", "agree"), tuple(rows), numeric=(1, 2))
    if tally.mismatches and tally.stages:
        stages = tuple(
            (stage, f"{count.compared:,}", f"{count.equal:,}", f"{count.first:,}", _alone(tally, stage))
            for stage, count in tally.stages.items()
        )
        columns = ("stage", "compared", "equal bit by bit", "first to differ", "the same, given the same")
        yield Table("Where mismatches begin", columns, stages, numeric=(1, 2, 3, 4))


def _alone(tally: Tally, stage: str) -> str:
    count = tally.alone.get(stage)
    return f"{count.agreeing:,} of {count.compared:,}" if count else ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4%}"


def _details(tally: Tally) -> Iterable[Section]:
    yield from output_tables(tally.outputs)
    if tally.examples:
        yield Table("Requests that disagree", ("request", "first stage", "reasons"), tuple(tally.examples))


def output_tables(outputs: Mapping[str, ArrayAgreement], prefix: str = "") -> Iterable[Section]:
    """How each output compares, those that disagree most first; `prefix` begins the titles."""
    worst = sorted(outputs.items(), key=lambda item: -item[1].disagreeing)[:_SHOWN]
    rows = tuple(
        (
            printable(name, 60),
            f"{output.elements:,}",
            f"{output.disagreeing:,}",
            ", ".join(f"{reason} {count:,}" for reason, count in Counter(output.reasons).most_common()),
        )
        for name, output in worst
    )
    yield Table(f"{prefix}Outputs", ("output", "elements", "disagree", "reasons"), rows, numeric=(1, 2))
    numbers = tuple(
        (
            printable(name, 60),
            *(f"{value:.3g}" for value in (far.quantile(0.5), far.quantile(0.99), far.largest)),
            f"{far.bias / far.pairs:+.2g}",
            f"{far.smape / far.pairs:.2g}",
            f"{far.required_absolute:.3g}",
            f"{far.required_relative:.3g}",
        )
        for name, far in ((name, output.differences) for name, output in worst)
        if far.largest
    )
    if numbers:
        title = f"{prefix}How far numbers are apart, and the tolerance that all would agree with"
        yield Table(title, _FAR, numbers, numeric=tuple(range(1, len(_FAR))))
    measures = tuple(
        (
            printable(name, 60),
            measure.replace("_", " "),
            f"{of.rows:,}",
            f"{of.total / of.rows:.6g}",
            f"{of.worst:.6g}",
        )
        for name, output in worst
        for measure, of in output.measures.items()
    )
    if measures:
        columns = ("output", "measure", "rows", "mean", "worst")
        yield Table(f"{prefix}Rows that are not the same bit by bit", columns, measures, numeric=(2, 3, 4))


def _warnings(account: Account) -> Iterable[str]:
    if account.lost:
        requests = plural(account.lost, "request")
        yield f"{requests} of the same servers and hours are not in the log: dropped, or their file is gone."
    for version, count in account.not_comparable.most_common(3):
        yield f"{plural(count, 'request')} answered by {version} cannot be compared: another package."
    if account.truncated:
        yield f"{plural(account.truncated, 'request')} too large for the log cannot be replayed."


def _next_steps(subject: Subject, traffic: Path, account: Account, tally: Tally) -> Iterable[str]:
    if not tally.requests:
        others = [version for version, _count in account.not_comparable.most_common(1)]
        yield (
            f"mlx consistency {others[0]} --traffic {traffic}"
            if others
            else f"mlx serve {subject.ref} --traffic {traffic}"
        )
