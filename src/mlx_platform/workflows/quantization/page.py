"""The report of a quantization."""

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from mlx_platform.core.report import Drawing, Fact, Report, Result, Section, Table, Text
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.describe import size_text
from mlx_platform.workflows.quantization.candidates import BATCH
from mlx_platform.workflows.quantization.outcome import Outcome
from mlx_platform.workflows.quantization.request import AUTO
from mlx_platform.workflows.quantization.tradeoffs import candidates_table, charts, layers_table
from mlx_platform.workflows.quantization.wishes import SIZE, SPEED

if TYPE_CHECKING:
    from mlx_platform.quantize.latency import Race

_LAYERS_SHOWN = 200
_METHODS = {
    "static": "static INT8, weights per output channel, activations per tensor",
    "dynamic": "dynamic INT8, weights per output channel, activations as they come",
    "fp16": "weights in float16, computed in float32",
    "int4": "weights in INT4, activations in INT8 as they come, both by blocks of 32",
}
_WAYS_OUT = {
    SPEED: "--min-speedup 0 takes any speed",
    SIZE: "a larger --max-size-ratio takes a larger file",
}


def result_of(outcome: Outcome) -> Result:
    """Data for machines and a page for people."""
    judgement = outcome.judgement
    report = Report(
        title=f"Quantization of {outcome.subject.ref}",
        summary=_summary(outcome),
        facts=_facts(outcome),
        sections=(_side_by_side(outcome), *candidates_table(outcome)),
        checks=judgement.checks,
        details=_details(outcome),
        next_steps=_next_steps(outcome),
    )
    return Result("quantize", data_of(outcome), report, judgement.verdict, outcome.warnings)


def data_of(outcome: Outcome) -> dict[str, Any]:
    """The `data` of the JSON document."""
    subject, judgement, version = outcome.subject, outcome.judgement, outcome.version
    return {
        "source": subject.document(),
        "version": version.document() if version else None,
        "created": outcome.created,
        "output": str(outcome.output) if outcome.output else None,
        "method": outcome.method,
        "candidates": outcome.candidates(),
        "dropped": dict(outcome.choosing.dropped),
        "search": outcome.search(),
        "looks": len(outcome.choosing.looks),
        "confidence": judgement.confidence,
        "command": outcome.request.command(),
        "target": outcome.made.target.name,
        "calibration": {
            "path": str(outcome.rows.calibration.path),
            "rows": outcome.rows.calibration.rows,
            "method": outcome.ranges_by,
            "fingerprint": outcome.rows.fingerprints["calibration"],
            "coverage": outcome.coverage.document(),
        },
        "size": outcome.size(),
        "latency_ms": outcome.latency(),
        judgement.metric: outcome.measured(),
        "metric": judgement.metric,
        "agreement": judgement.agreement,
        "kl": judgement.kl,
        "relative_error": judgement.relative_error,
        "flips": outcome.flips(),
        "rows": judgement.comparison.rows,
        "independent_rows": judgement.comparison.units,
        "nodes": outcome.nodes(),
        "left_out": dict(outcome.made.left_out),
        "gates": judgement.gates(),
    }


def _summary(outcome: Outcome) -> str:
    size, race = outcome.size(), outcome.candidate.race
    figures = f"{size['ratio']:.0%} of the size, {race.speedup:.2f} times as fast, {_change(outcome)}"
    match outcome.judgement.verdict:
        case Verdict.PASS:
            name = outcome.version.ref if outcome.version else str(outcome.output)
            known = "" if outcome.created or outcome.version is None else " (registered before)"
            return f"{name}{known} is {outcome.subject.ref} {_form(outcome)}: {figures}."
        case verdict:
            why = "" if verdict is Verdict.FAIL else ", as the rows do not decide"
            return f"{_nothing(outcome)}{why}. {_subject(outcome)} would have been {figures}."


def _form(outcome: Outcome) -> str:
    layers = len(outcome.candidate.reverted)
    left = f" with {plural(layers, 'layer')} in float32" if layers else ""
    return f"in {outcome.title.replace('static ', '')}{left}"


def _subject(outcome: Outcome) -> str:
    form = _form(outcome).removeprefix("in ")
    return form[:1].upper() + form[1:]


def _nothing(outcome: Outcome) -> str:
    if outcome.output is not None:
        return f"A gate did not pass; {outcome.output} was kept all the same"
    return "Nothing was registered" if outcome.subject.version else "Nothing was written"


def _change(outcome: Outcome) -> str:
    judgement, measured = outcome.judgement, outcome.measured()
    metric = judgement.metric.replace("_", " ")
    text = f"{metric} {measured['before']:.4g} → {measured['after']:.4g}"
    flips = judgement.comparison.flips
    return text if flips is None else f"{text} ({flips.lost} answers lost, {flips.won} won)"


def _facts(outcome: Outcome) -> tuple[Fact, ...]:
    from mlx_platform.quantize.methods import recipe_of

    calibration, made = outcome.rows.calibration, outcome.made
    rows = plural(calibration.rows, "row")
    if calibration.rows < calibration.rows_in_file:
        rows += f" of {calibration.rows_in_file:,}, taken evenly"
    layers = plural(made.verified.quantized_layers, "layer")
    if made.left_out:
        layers += f", {len(made.left_out)} left in float32"
    facts = [
        Fact("source", outcome.subject.ref),
        Fact("version", outcome.version.ref if outcome.version else "none"),
        Fact("method", _METHODS[made.method]),
        Fact("processor", str(made.target) if recipe_of(made.method).integer else "any"),
        Fact("quantized", layers),
        Fact("calibration", f"{calibration.path}, {rows}; ranges: {outcome.ranges_by}"),
        Fact(
            "coverage", f"{outcome.coverage.share:.1%} of the judged values are within what calibration saw"
        ),
        Fact("judged on", f"{outcome.rows.path}, {_judged(outcome)}"),
        Fact("looks", _looks(outcome)),
    ]
    if outcome.search() is not None:
        facts.append(Fact("search", _search(outcome)))
    if made.prepared.upgraded_from is not None:
        opsets = f"{made.prepared.upgraded_from}, brought to {made.prepared.inspection.opset}"
        facts.append(Fact("opset", opsets))
    if outcome.output:
        facts.append(Fact("file", str(outcome.output)))
    return tuple(facts)


def _judged(outcome: Outcome) -> str:
    comparison = outcome.judgement.comparison
    alike = f" with {comparison.units:,} different inputs" if comparison.units < comparison.rows else ""
    return f"{plural(comparison.rows, 'row')}{alike}"


def _looks(outcome: Outcome) -> str:
    looks = outcome.choosing.looks
    levels = ", ".join(f"{look.judgement.confidence:.0%}" for look in looks)
    shared = "; together they err as often as one at 95%" if outcome.choosing.several else ""
    return f"{plural(len(looks), 'candidate')} judged, one-sided at {levels}{shared}"


def _search(outcome: Outcome) -> str:
    found = outcome.search() or {}
    rows = outcome.rows.search
    return (
        f"{plural(found['measured'], 'candidate')} measured on {plural(rows.rows, 'row')} of {rows.path}"
        f" that judge nothing{'; ' if found['ended'] else ''}{found['ended'] or ''}"
    )


def _side_by_side(outcome: Outcome) -> Table:
    verified, judgement, candidate = outcome.made.verified, outcome.judgement, outcome.candidate
    rows = [
        (
            "size",
            size_text(verified.size_before),
            size_text(verified.size_after),
            f"{verified.size_after / verified.size_before:.2f} times",
        ),
        _race_row("latency, 1 row", candidate.race),
    ]
    if candidate.batch_race:
        rows.append(_race_row(f"latency, {BATCH} rows", candidate.batch_race))
    measured = outcome.measured()
    if "drop_pp" in measured:
        gain, lower, upper = (0.0 - measured[key] for key in ("drop_pp", "upper", "lower"))
        change = f"{gain:+.2f} pp [{lower:+.2f}, {upper:+.2f}]"
    else:
        change = f"{measured['rise']:+.4g} [{measured['lower']:+.4g}, {measured['upper']:+.4g}]"
    rows.append((judgement.metric, f"{measured['before']:.4f}", f"{measured['after']:.4f}", change))
    if judgement.comparison.flips:
        flips = judgement.comparison.flips
        rows.append(("same answer", "", f"{flips.agreement:.4f}", f"{flips.lost:,} lost, {flips.won:,} won"))
    if judgement.kl is not None:
        rows.append(("divergence", "", f"{judgement.kl:.2g}", "mean KL, nats"))
    if judgement.relative_error is not None:
        rows.append(("relative error", "", f"{judgement.relative_error:.2g}", "of the answers"))
    return Table("Side by side", ("", "float32", outcome.short, "change"), tuple(rows), numeric=(1, 2))


def _race_row(name: str, race: "Race") -> tuple[str, str, str, str]:
    change = f"{race.speedup:.2f} times as fast [{race.lower:.2f}, {race.upper:.2f}]"
    return (name, _ms(race.before_ms), _ms(race.after_ms), change)


def _ms(time: float) -> str:
    return f"{time:,.0f} ms" if time >= 100 else f"{time:.3g} ms"


def _details(outcome: Outcome) -> tuple[Section | Drawing, ...]:
    made, judgement = outcome.made, outcome.judgement
    ranges = tuple(
        (printable(name), f"{found.lowest:.5g}", f"{found.highest:.5g}")
        for name, found in list(made.ranges.items())[:_LAYERS_SHOWN]
    )
    metrics = tuple(
        (name, f"{before.value:.4f}", f"{judgement.after[name].value:.4f}")
        for name, before in judgement.before.items()
    )
    sections: list[Section | Drawing] = [
        *charts(outcome),
        Table("Metrics", ("metric", "float32", outcome.short), metrics, numeric=(1, 2)),
        *layers_table(outcome),
        *_found(outcome),
        _operators(outcome),
        outcome.coverage.table(),
    ]
    if ranges:
        head = ("tensor", "lowest", "highest")
        sections.append(Table("Ranges of activations", head, ranges, numeric=(1, 2)))
    if made.left_out:
        left = tuple((printable(node), reason) for node, reason in made.left_out.items())
        sections.append(Table("Left in float32", ("node", "why"), left))
    if outcome.choosing.dropped:
        dropped = tuple(
            (method, printable(reason, 400)) for method, reason in outcome.choosing.dropped.items()
        )
        sections.append(Table("Methods that do not apply", ("method", "why"), dropped))
    sections.append(Text("Repeat it", outcome.request.command()))
    return tuple(sections)


def _found(outcome: Outcome) -> tuple[Section, ...]:
    """The source as it was inspected, and what could be expected of each method on this processor."""
    from mlx_platform.quantize.prospects import describe, outlook

    source = outcome.made.prepared.source
    return (
        Table("The model as it came", ("what", "found"), describe(source)),
        Text("What to expect of each method", "\n".join(outlook(source))),
    )


def _operators(outcome: Outcome) -> Table:
    """The graphs as they are in their files, and as they run once operators are fused."""
    verified = outcome.made.verified
    columns = [
        [(printable(name), str(count)) for name, count in counts.items()]
        for counts in (
            verified.operators_before,
            verified.optimized_before,
            verified.operators_after,
            verified.optimized_after,
        )
    ]
    rows = tuple(
        tuple(cell for pair in row for cell in pair) for row in zip_longest(*columns, fillvalue=("", ""))
    )
    names = ("float32", "count", "as it runs", "count", outcome.short, "count", "as it runs", "count")
    return Table("Operators, and what fusing makes of them", names, rows, numeric=(1, 3, 5, 7))


def _next_steps(outcome: Outcome) -> tuple[str, ...]:
    judgement = outcome.judgement
    if outcome.version is not None:
        ref = outcome.version.ref
        return (f"mlx eval {ref} --data {outcome.rows.path}", f"mlx promote {ref} --to staging")
    if outcome.output is not None:
        return (f"mlx serve {outcome.output}",)
    if judgement.verdict is Verdict.UNDECIDED:
        needed = judgement.gate.numbers["rows_needed"]
        return (f"Judge it by more labelled rows{f', about {needed:,}' if needed else ''}.",)
    more = () if outcome.request.method == AUTO else ("Try every method: --method auto.",)
    if judgement.gate.check.verdict is Verdict.PASS:
        missed = [check.name for check in judgement.checks[1:] if check.verdict is Verdict.FAIL]
        ways = " and ".join(_WAYS_OUT[name] for name in missed)
        return (*more, f"Keep the float32 model on this machine; or else {ways}.")
    return (*more, "Calibrate on more rows like production's, or allow a larger loss with --max-drop.")
