"""An online evaluation as checks, as a document, and drawn."""

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from mlx_platform.core.clock import both_zones, span_text
from mlx_platform.core.report import Drawing, Fact, Plot, Points, Section, Table
from mlx_platform.core.text import listed, plural, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.evaluation.judge import number, shown
from mlx_platform.evaluation.online import Gap
from mlx_platform.workflows.online.days import Day
from mlx_platform.workflows.online.document import LEFT_OUT, coverage_of, delay_document
from mlx_platform.workflows.online.joined import Fates
from mlx_platform.workflows.online.labels import Labels
from mlx_platform.workflows.online.measured import Online
from mlx_platform.workflows.replay.page import MIN_USABLE

_SLICES = 20
_BRIEF = 7


def checks_of(online: Online) -> tuple[Check, ...]:
    """The difference from the offline evidence, windows that failed alone, gates, and the log."""
    found = [_gap_check(online, name, gap) for name, gap in online.gaps.items()]
    for day, metric, gap in online.failing_days:
        since = f"{day.since:%Y-%m-%dT%H:%MZ}"
        found.append(
            Check(metric, Verdict.FAIL, gap.shown, _within(gap), gap.message, "windows", part=f"from {since}")
        )
    found += [judged.check for judged in online.judged]
    usable = online.joined.log.share_usable
    if usable < MIN_USABLE:
        message = "too much of the log cannot be read"
        asked = f">= {MIN_USABLE:.0%}"
        found.append(Check("log", Verdict.UNDECIDED, f"{usable:.1%} readable", asked, message))
    return tuple(found)


def _gap_check(online: Online, metric: str, gap: Gap | None) -> Check:
    name = f"{metric} online"
    if not online.measurements:
        rows = f"0 of {plural(online.joined.fates.answered, 'row')}"
        return Check(name, Verdict.UNDECIDED, rows, ">= 1 label", "no answered request has a label")
    if gap is None:
        one = online.measurements[metric]
        measured = shown(one.value, one.lower, one.upper)
        if not online.subject.sealed:
            nothing = "no offline evaluation is kept of what is not registered and sealed"
            return Check(name, Verdict.UNDECIDED, measured, "as offline", "", "online", skipped=nothing)
        problem = "there is no offline evaluation of this version to compare with"
        if online.offline is not None:
            problem = "the offline evaluation did not measure it"
        return Check(name, Verdict.UNDECIDED, measured, "as offline", problem, "online")
    return Check(name, gap.verdict, gap.shown, _within(gap), gap.message, "online")


def _within(gap: Gap) -> str:
    return f"within {number(gap.margin)} of offline"


def warnings_of(online: Online, labels: Labels) -> tuple[str, ...]:
    """What somebody who reads the verdict must know about the labels."""
    fates, found = online.joined.fates, []
    if online.shift is not None and online.shift.matters:
        first, second = map(number, online.shift.medians)
        found.append(
            f"Labelled rows are another sample than the rest: the median score is {first} with a label and "
            f"{second} without (distance {online.shift.distance:.2f}). Metrics may be biased: "
            "give the labels weights, or label a random sample."
        )
    if online.unknown:
        names = listed(online.unknown, 5, width=40)
        found.append(f"The model does not know these labels, so its answers there count as wrong: {names}.")
    if online.unusable:
        found.append(f"{plural(online.unusable, 'label')} cannot be used: they are no numbers.")
    named = (("contradict each other and count for nothing", labels.contradicted), *_named(fates))
    for words, one in named:
        if one.count:
            count = plural(one.count, "label")
            found.append(f"{count} {words}, such as {listed(one.ids, 3, width=128)}.")
    if labels.damaged:
        found.append(f"{plural(labels.damaged, 'line')} of feedback cannot be read.")
    if fates.early:
        found.append(f"{plural(fates.early, 'label')} told before the answer was given: clocks disagree.")
    return tuple(found)


def _named(fates: Fates) -> Iterable[tuple[str, Any]]:
    for name in ("unclear", "late", "again", "no_answer"):
        yield f"left out ({LEFT_OUT[name]})", getattr(fates, name)


def facts_of(online: Online, labels: Labels, traffic: str) -> Iterable[Fact]:
    joined, fates = online.joined, online.joined.fates
    yield Fact("version", f"{online.subject.ref}, digest {online.subject.package.digest[:12]}")
    yield Fact("traffic", traffic)
    if joined.first and joined.last:
        yield Fact("window", f"{both_zones(joined.first)} to {both_zones(joined.last)}")
    coverage = coverage_of(fates)
    share = "" if coverage is None else f" ({coverage:.1%})"
    yield Fact(
        "labelled", f"{fates.joined:,} of {plural(fates.answered, 'answered row')}{share}, {labels.source}"
    )
    delay = delay_document(joined)
    if delay["known"]:
        median, late = (span_text(timedelta(seconds=delay[key])) for key in ("median", "p90"))
        yield Fact("delay", f"{median} at the median, nine of ten labels within {late}")
    if online.shift is not None:
        like = "unlike" if online.shift.matters else "like"
        yield Fact(
            "sample", f"scores {like} those of rows without a label (distance {online.shift.distance:.2f})"
        )
    if online.offline is not None:
        yield Fact("offline", f"evaluation {online.offline.id} of {online.offline.created}")


def sections_of(online: Online, title: str = "") -> Iterable[Section]:
    """The metrics beside the offline ones."""
    if online.measurements:
        yield _metrics(online, title)


def brief_of(online: Online, title: str = "") -> Iterable[Section]:
    """The newest windows, for a terminal."""
    if online.measurements and len(online.days) > 1:
        yield _windows(online, online.days[-_BRIEF:], title)


def details_of(online: Online, labels: Labels, title: str = "") -> Iterable[Section | Drawing]:
    """What the report shows in full."""
    for metric, gap in online.gaps.items():
        plot = _plot(online, metric, gap, title)
        if plot is not None:
            yield plot
    if online.measurements and len(online.days) > 1:
        yield _windows(online, online.days, title)
    if online.slices:
        yield _slices(online, title)
    left = [(words, getattr(online.joined.fates, name)) for name, words in LEFT_OUT.items()]
    left.insert(0, ("contradict each other", labels.contradicted))
    rows = [(words, f"{one.count:,}", listed(one.ids, 5, width=128)) for words, one in left if one.count]
    rows += [
        (words, f"{count:,}", "")
        for words, count in (("told again", labels.repeated), ("empty", labels.empty))
        if count
    ]
    if rows:
        yield Table(
            f"Labels that do not count{title}", ("why", "labels", "such as"), tuple(rows), numeric=(1,)
        )


def _metrics(online: Online, title: str) -> Table:
    rows = []
    for name, one in online.measurements.items():
        gap = online.gaps.get(name) or online.others.get(name)
        interval = "" if math.isnan(one.lower) else f"{number(one.lower)} to {number(one.upper)}"
        cells = [name, number(one.value), interval or one.reason]
        cells += [number(gap.offline.value), gap.shown] if gap else ["", ""]
        rows.append(tuple(cells))
    columns = ("metric", "online", "interval", "offline", "difference")
    return Table(f"Metrics{title}", columns, tuple(rows), numeric=(1, 3, 4))


def _windows(online: Online, days: Sequence[Day], title: str) -> Table:
    metric = next(iter(online.gaps))
    rows = []
    for day in days:
        one, gap = day.metrics.get(metric), day.gaps.get(metric)
        rows.append(
            (
                f"{day.since:%Y-%m-%d %H:%M}Z",
                f"{day.answered:,}",
                f"{day.labelled:,}",
                number(one.value) if one else "",
                "" if one is None or math.isnan(one.lower) else f"{number(one.lower)} to {number(one.upper)}",
                gap.verdict if gap and gap.verdict is Verdict.FAIL else "",
            )
        )
    of = f", the last {len(days)} of {len(online.days)}" if len(days) < len(online.days) else ""
    columns = ("window from", "answered", "labelled", metric, "interval", "")
    return Table(f"Windows{of}{title}", columns, tuple(rows), numeric=(1, 2, 3))


def _plot(online: Online, metric: str, gap: Gap | None, title: str) -> Plot | None:
    days = [day for day in online.days if day.labelled and not math.isnan(day.metrics[metric].lower)]
    if len(days) < 2:
        return None
    first = days[0].since
    x = tuple((day.since - first).total_seconds() / 86_400 for day in days)
    found = [day.metrics[metric] for day in days]
    series = Points(
        metric,
        x,
        tuple(one.value for one in found),
        tuple(one.lower for one in found),
        tuple(one.upper for one in found),
    )
    guide = ((x[0], gap.offline.value), (x[-1], gap.offline.value)) if gap else None
    note = "The dashed line is the offline value." if gap else ""
    name = f"{metric} by window{title}"
    return Plot(
        name, f"days since {first:%Y-%m-%d %H:%M}Z", metric, (series,), "dots", guide=guide, note=note
    )


def _slices(online: Online, title: str) -> Table:
    metric = next(iter(online.measurements))
    falls = online.measurements[metric].higher_is_better is False
    measured = [one for one in online.slices if metric in one.measurements]
    measured.sort(key=lambda one: one.measurements[metric].value * (-1 if falls else 1))
    rows = []
    for one in measured[:_SLICES]:
        found = one.measurements[metric]
        interval = "" if math.isnan(found.lower) else f"{number(found.lower)} to {number(found.upper)}"
        rows.append(
            (printable(one.name, 120), f"{one.rows:,}", number(found.value), interval or found.reason)
        )
    small = sum(one.too_small for one in online.slices)
    more = f"; {plural(small, 'slice')} with too few rows" if small else ""
    columns = ("slice", "rows", metric, "interval")
    return Table(f"Slices, worst first{more}{title}", columns, tuple(rows), numeric=(1, 2))
