"""A night drawn: the consistency page of its last version, with clusters, slices, examples and the trend."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.report import Drawing, Fact, Plot, Points, Result, Section, Table
from mlx_platform.core.statistics import clopper_pearson_lower
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.consistency import CONFIDENCE
from mlx_platform.workflows.nights.examples import example_document, example_table
from mlx_platform.workflows.nights.kept import KeptNight
from mlx_platform.workflows.nights.kinds import Kind, kinds_of
from mlx_platform.workflows.nights.look import Look, Request, Seen
from mlx_platform.workflows.nights.window import Night

TREND = 14
_CLUSTERS_SHOWN = 20
_SLICES_SHOWN = 20


def night_result(seen: Seen, before: Sequence[KeptNight], asked: Request, *, threshold: float) -> Result:
    """The result of a window.

    Args:
        seen: what was found out.
        before: earlier nights of the same model, oldest first.
        asked: what the run was asked for.
        threshold: of the agreement.
    """
    base, kinds = seen.main.result, kinds_of(seen, before)
    checks = _checks(seen, threshold)
    verdict = verdict_of(checks)
    result = replace(base, verdict=verdict, code=None)
    trend = [*before, account_of(seen, result, before)][-TREND:]
    report = replace(
        base.report,
        summary=_summary(seen, kinds),
        facts=(*_facts(seen), *base.report.facts),
        sections=(*base.report.sections, *_clusters(kinds)),
        checks=checks,
        brief=(*base.report.brief, *_trend_table(trend, threshold)),
        details=(
            *_trend(trend, threshold),
            *_slices(seen),
            *_worst(seen, asked),
            *_deploys(seen),
            *base.report.details,
        ),
        next_steps=(*base.report.next_steps, *_reproduce(seen, asked)),
    )
    return replace(result, data=_data(seen, kinds, trend, asked), report=report, warnings=_warnings(seen))


def _warnings(seen: Seen) -> tuple[str, ...]:
    """Those of all versions; that one cannot answer for another says nothing where both were asked."""
    asked = [f"answered by {look.ref} cannot be compared" for look in seen.looks]
    every = dict.fromkeys(warning for look in seen.looks for warning in look.result.warnings)
    return tuple(warning for warning in every if not any(text in warning for text in asked))


def account_of(seen: Seen, result: Result, before: Sequence[KeptNight]) -> KeptNight:
    """What later nights want to know of this one."""
    compared, agreeing = _counts(seen.looks)
    last = seen.main
    return KeptNight(
        key=seen.night.key,
        model=str(last.result.data["model"]["name"]),
        ref=last.ref,
        since=seen.night.since,
        until=seen.night.until,
        verdict=result.verdict or Verdict.UNDECIDED,
        compared=compared,
        agreeing=agreeing,
        agreement=agreeing / compared if compared else None,
        lower=clopper_pearson_lower(agreeing, compared, CONFIDENCE) if compared else None,
        clusters={f"{kind.ref}|{kind.cluster.key}": kind.first for kind in kinds_of(seen, before)},
    )


def with_missed(results: Sequence[tuple[KeptNight, Result]], broken: Iterable[Check] = ()) -> Result:
    """The newest night's result, with a check for each night before it that was made up for.

    Args:
        results: of all nights, the newest last.
        broken: nights that could not be looked at.
    """
    _account, newest = results[-1]
    missed = [*broken, *(_night_check(account, result) for account, result in results[:-1])]
    if not missed:
        return newest
    checks = (*newest.report.checks, *sorted(missed, key=lambda check: check.part))
    data = {**newest.data, "caught_up": [account.document() for account, _result in results[:-1]]}
    report = replace(newest.report, checks=checks)
    return replace(newest, data=data, report=report, verdict=verdict_of(checks))


def _night_check(account: KeptNight, result: Result) -> Check:
    measured = (
        ""
        if account.agreement is None
        else f"{account.agreement:.4%} of {plural(account.compared, 'request')}"
    )
    asked = next((check.threshold for check in result.report.checks), "")
    return Check(
        "agreement", account.verdict, measured, asked, "", "missed nights", part=f"night {account.key}"
    )


def broken_night(night: Night, why: str) -> Check:
    """A missed night that cannot be looked at."""
    return Check("agreement", Verdict.ERROR, "", "", why, "missed nights", part=f"night {night.key}")


# The verdict


def _checks(seen: Seen, threshold: float) -> tuple[Check, ...]:
    """Of one version its own checks; of several theirs, and the agreement of all requests together."""
    if len(seen.looks) == 1 and not seen.failed:
        return seen.looks[0].result.report.checks
    pooled = _pooled(seen.looks, threshold)
    together = pooled.verdict is Verdict.PASS
    found = [pooled]
    for look in seen.looks:
        for check in look.result.report.checks:
            few = together and check.name == "agreement" and check.verdict is Verdict.UNDECIDED
            skipped = "too few alone; judged together" if few else check.skipped
            found.append(replace(check, part=look.ref, skipped=skipped))
    return (*found, *seen.failed)


def _pooled(looks: Sequence[Look], threshold: float) -> Check:
    compared, agreeing = _counts(looks)
    if not compared:
        return Check(
            "agreement", Verdict.UNDECIDED, "", f">= {threshold:.4g}", "no request could be compared"
        )
    lower = clopper_pearson_lower(agreeing, compared, CONFIDENCE)
    share = agreeing / compared
    verdict = Verdict.PASS if lower >= threshold else Verdict.UNDECIDED
    if share < threshold:
        verdict = Verdict.FAIL
    measured = f"{share:.4%} of {compared:,} requests (at least {lower:.4%})"
    message = f"of {plural(len(looks), 'version')} that held the alias"
    return Check("agreement", verdict, measured, f">= {threshold:.4g}", message)


def _counts(looks: Sequence[Look]) -> tuple[int, int]:
    requests = [look.result.data["requests"] for look in looks]
    return sum(one["compared"] for one in requests), sum(one["agreeing"] for one in requests)


# Clusters


def _clusters(kinds: Sequence[Kind]) -> Iterable[Section]:
    if not kinds:
        return
    rows = tuple(
        (
            kind.cluster.stage or "unknown",
            printable(", ".join(kind.cluster.outputs) or "all", 120),
            ", ".join(kind.cluster.reasons),
            f"{kind.cluster.requests:,}",
            both_zones(kind.cluster.first) if kind.cluster.first else "",
            kind.since,
        )
        for kind in kinds[:_CLUSTERS_SHOWN]
    )
    columns = ("first stage", "outputs", "reasons", "requests", "first in the window", "began")
    yield Table("Kinds of mismatches", columns, rows, numeric=(3,))


def _summary(seen: Seen, kinds: Sequence[Kind]) -> str:
    parts = [seen.main.result.report.summary]
    compared, agreeing = _counts(seen.looks)
    if len(seen.looks) > 1 and compared:
        refs = " and ".join(look.ref for look in seen.looks)
        parts.insert(0, f"{agreeing / compared:.2%} of {plural(compared, 'request')} to {refs} agree.")
    new = next((kind for kind in kinds if kind.deploy), None)
    if new is not None:
        count = new.cluster.requests
        parts.append(f"{f'{count:,} mismatches' if count > 1 else '1 mismatch'} began {new.deploy}.")
    return " ".join(parts)


# Facts, trend, slices, deploys


def _facts(seen: Seen) -> Iterable[Fact]:
    night = seen.night
    since, until = (moment.astimezone(night.zone) for moment in (night.since, night.until))
    local = f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M %Z}"
    yield Fact("night", f"{rfc3339(night.since)} to {rfc3339(night.until)} ({local})")
    if len(seen.looks) > 1:
        yield Fact("versions", ", ".join(look.ref for look in seen.looks))
    megabytes = seen.figures["peak_rss_bytes"] / 1e6
    yield Fact("run", f"{seen.figures['seconds']:.1f} s, at most {megabytes:,.0f} MB")


def _trend(trend: Sequence[KeptNight], threshold: float) -> Iterable[Section | Drawing]:
    points = [(place - len(trend) + 1, one) for place, one in enumerate(trend) if one.agreement is not None]
    if len(points) > 1:
        x = tuple(float(place) for place, _one in points)
        y = tuple(one.agreement or 0.0 for _place, one in points)
        lower = tuple(one.lower or 0.0 for _place, one in points)
        series = (Points("requests that agree", x, y), Points("the least that is shown", x, lower))
        guide = ((min(x), threshold), (max(x), threshold))
        note = f"The dashed line is what must be shown: {threshold:.2%}."
        yield Plot(f"The last {len(trend)} nights", "nights ago", "agreement", series, guide=guide, note=note)
    yield from _trend_table(trend, threshold)


def _trend_table(trend: Sequence[KeptNight], threshold: float) -> Iterable[Table]:
    if len(trend) < 2:
        return
    rows = tuple(
        (
            one.key,
            one.ref,
            one.verdict,
            f"{one.compared:,}",
            "" if one.agreement is None else f"{one.agreement:.4%}",
            "" if one.lower is None else f"{one.lower:.4%}",
        )
        for one in reversed(trend)
    )
    columns = ("night", "version", "verdict", "compared", "agree", "at least")
    yield Table(f"Nights, {threshold:.2%} is asked", columns, rows, numeric=(3, 4, 5))


def _slices(seen: Seen) -> Iterable[Table]:
    for look in seen.looks:
        for by, rows in look.watch.slice_documents().items():
            cells = tuple(
                (
                    printable(row["value"], 120),
                    f"{row['compared']:,}",
                    f"{row['agreement']:.3%}",
                    f"{row['lower']:.3%} to {row['upper']:.3%}",
                )
                for row in rows[:_SLICES_SHOWN]
            )
            of = f", {_SLICES_SHOWN} of {len(rows):,}" if len(rows) > _SLICES_SHOWN else ""
            whose = f" of {look.ref}" if len(seen.looks) > 1 else ""
            title = f"By {printable(by, 60)}{whose}, lowest agreement first{of}"
            yield Table(title, (by, "compared", "agree", "95 % interval"), cells, numeric=(1, 2))


def _worst(seen: Seen, asked: Request) -> Iterable[Table]:
    worst = [mismatch for look in seen.looks for mismatch in look.watch.worst]
    if worst:
        yield example_table(worst, show_values=asked.show_values)


def _deploys(seen: Seen) -> Iterable[Table]:
    if seen.deploys:
        rows = tuple((both_zones(one.time), one.text) for one in seen.deploys)
        yield Table("Deployed in the window", ("time", "what"), rows)


def _reproduce(seen: Seen, asked: Request) -> Iterable[str]:
    for look in reversed(seen.looks):
        if worst := look.watch.worst:
            record = worst[0].request.record
            yield (
                f"mlx consistency {look.ref} --traffic {asked.traffic} "
                f"--request-id {printable(record.request_id, 128)}    (one request, stage by stage)"
            )
            return


def _data(seen: Seen, kinds: Sequence[Kind], trend: Sequence[KeptNight], asked: Request) -> dict[str, Any]:
    night = seen.night
    return {
        **seen.main.result.data,
        "night": {
            "key": night.key,
            "since": rfc3339(night.since),
            "until": rfc3339(night.until),
            "zone": str(night.zone),
        },
        "versions": [{"ref": look.ref, **look.result.data} for look in seen.others],
        "clusters": [kind.document() for kind in kinds],
        "slices": {look.ref: look.watch.slice_documents() for look in seen.looks},
        "worst": [
            example_document(mismatch, look.ref, show_values=asked.show_values)
            for look in seen.looks
            for mismatch in look.watch.worst
        ],
        "deploys": [one.document() for one in seen.deploys],
        "trend": [one.document() for one in trend],
        "run": dict(seen.figures),
    }
