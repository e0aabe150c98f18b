"""`mlx consistency --request-id`: one request once more, with its stages side by side."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.errors import NotFoundError
from mlx_platform.core.report import Fact, Report, Result, Section, Table
from mlx_platform.core.text import listed, plural, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.evaluation.consistency import CAUSES, Tally, first_difference
from mlx_platform.traffic.readers.opening import open_log
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.replay.replayer import Replayed, Replayer, stages_alone
from mlx_platform.workflows.replay.requests import Account, Request, replayable
from mlx_platform.workflows.replay.values import described, shown
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_model, open_subject

_NAMED = 5
_NO_HASH = "not logged"


def reproduce(
    context: Context,
    ref: str,
    request_id: str,
    *,
    traffic: Path,
    show_values: bool = False,
    log_format: str | None = None,
    assume_tz: str | None = None,
    report: Path | None = None,
    junit: Path | None = None,
) -> Result:
    """Answer a logged request again, alone, and show where the two answers part.

    Args:
        context: the command's context.
        ref: the version that answered it.
        request_id: of the request; where several have it, the first one that this version answered.
        traffic: the log.
        show_values: show what was sent and answered.
        log_format: of the traffic log; None finds it out.
        assume_tz: the zone of times in the log that name none.
        report: a folder for the report.
        junit: a file for the JUnit XML.

    Returns:
        PASS when the answers agree, FAIL when they do not, UNDECIDED when the log does not hold enough to
        tell. Nothing is kept.

    Raises:
        NotFoundError: no such version or log, or no request of this id that the version answered.
    """
    check_targets(report=report, junit=junit)
    with open_subject(context, ref) as subject:
        reading = make_reading(subject, log_format=log_format, assume_tz=assume_tz)
        records, stats = open_log(traffic, reading, model=subject.name)
        record = _found(records, request_id, subject, traffic)
        account = Account(stats)
        request = next(replayable(iter((record,)), account, digest=subject.package.digest), None)
        found = None
        alone: dict[str, bool] = {}
        if request is not None:
            model = open_model(context, subject)
            found = Replayer(model, Tally()).replay(request)
            if record.stages and model.spec.fixed_rows is None:
                alone = stages_alone(model, request)
        result = _result(subject, record, request, found, alone, account, traffic, show_values=show_values)
    return write_reports(result, report=report, junit=junit)


def _found(records: Iterator[Record], request_id: str, subject: Subject, traffic: Path) -> Record:
    others: dict[str, None] = {}
    for record in records:
        if record.request_id == request_id:
            if record.digest == subject.package.digest:
                return record
            others.setdefault(f"{record.model}/{record.version}")
    shown_id = printable(request_id, 128)
    if others:
        other = printable(next(iter(others)), 140)
        raise NotFoundError(
            f"{subject.ref} did not answer the request {shown_id!r}: {listed(list(others), _NAMED)} did.",
            hint=f"mlx consistency {other} --traffic {traffic} --request-id {shown_id}",
        )
    raise NotFoundError(
        f"There is no request {shown_id!r} to {subject.name} in {traffic}.",
        hint="Its id is what the answer had as x-request-id.",
    )


def _result(
    subject: Subject,
    record: Record,
    request: Request | None,
    found: Replayed | None,
    alone: Mapping[str, bool],
    account: Account,
    traffic: Path,
    *,
    show_values: bool,
) -> Result:
    hashes = found.hashes if found else {}
    stage = first_difference(record.hashes, hashes)
    check = _check(record, request, found, account, stage)
    return Result(
        command="consistency",
        data={
            "model": subject.document(),
            "traffic": str(traffic),
            "request": _request_document(record),
            "stages": [
                {"stage": name, "logged": record.hashes.get(name), "anew": hashes.get(name)}
                for name in CAUSES
                if name in record.hashes or name in hashes
            ],
            "first_difference": stage or None,
            "alone": dict(alone),
            "outputs": _outputs_document(found),
            "values": _values(request, found) if show_values and request else None,
        },
        report=Report(
            title=f"Request {printable(record.request_id, 128)} to {subject.ref}",
            summary=_summary(record, check, stage),
            facts=tuple(_facts(subject, record)),
            sections=tuple(_sections(record, request, found, alone, show_values=show_values)),
            checks=(check,),
        ),
        verdict=check.verdict,
        warnings=subject.warnings,
    )


def _check(
    record: Record, request: Request | None, found: Replayed | None, account: Account, stage: str
) -> Check:
    if request is None:
        reasons = {
            f"it was answered with {record.status}": account.failed,
            "it was too large for the log": account.truncated,
            "it got the answer to another text that means the same": account.semantic,
            "the log holds only its one half": account.unpaired,
            "its inputs or outputs cannot be read": account.undecodable,
        }
        why = next((reason for reason, count in reasons.items() if count), "it cannot be replayed")
        return Check("request", Verdict.UNDECIDED, "", "the same answer", why)
    if found is None:
        return Check(
            "request", Verdict.FAIL, "no answer", "the same answer", "it cannot be answered any more"
        )
    elements = sum(one.elements for one in found.answer.outputs.values())
    wrong = sum(one.disagreeing for one in found.answer.outputs.values())
    measured = f"{wrong:,} of {plural(elements, 'element')} differ"
    cause = CAUSES[stage] if stage and wrong else ""
    return Check("request", Verdict.FAIL if wrong else Verdict.PASS, measured, "the same answer", cause)


def _summary(record: Record, check: Check, stage: str) -> str:
    start = f"Request {printable(record.request_id, 128)}"
    match check.verdict:
        case Verdict.PASS:
            return f"{start} gets the same answer."
        case Verdict.FAIL:
            where = f"; the first stage that differs is {stage!r}" if stage else ""
            return f"{start} gets another answer{where}."
        case _:
            return f"{start} cannot be compared: {check.message}."


def _facts(subject: Subject, record: Record) -> Iterable[Fact]:
    yield Fact("version", f"{subject.ref}, digest {subject.package.digest[:12]}")
    yield Fact("answered", f"{both_zones(record.time)} by {printable(record.server_id, 64)}")
    batch = f", in a batch of {record.batch_rows:,}" if record.batch_rows else ""
    yield Fact("request", f"{record.endpoint}, {plural(record.rows, 'row')}{batch}")


def _request_document(record: Record) -> dict[str, Any]:
    return {
        "id": record.request_id,
        "time": rfc3339(record.time),
        "server": record.server_id,
        "arm": record.arm,
        "endpoint": record.endpoint,
        "status": record.status,
        "rows": record.rows,
        "batch_rows": record.batch_rows,
        "cache": record.cache,
    }


def _outputs_document(found: Replayed | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {name: one.document() for name, one in found.answer.outputs.items()}


def _values(request: Request, found: Replayed | None) -> dict[str, Any]:
    return {
        "inputs": shown(request.inputs),
        "logged": shown(request.outputs),
        "anew": shown(found.answers) if found else None,
    }


def _sections(
    record: Record,
    request: Request | None,
    found: Replayed | None,
    alone: Mapping[str, bool],
    *,
    show_values: bool,
) -> Iterable[Section]:
    hashes = found.hashes if found else {}
    stages = [name for name in CAUSES if name in record.hashes or name in hashes]
    rows = tuple(_stage_row(name, record.hashes.get(name), hashes.get(name)) for name in stages)
    if rows:
        yield Table("Stages", ("stage", "logged", "anew", ""), rows)
    if alone:
        tried = tuple(
            (stage, "the same" if same else f"differs: {CAUSES[stage]}") for stage, same in alone.items()
        )
        yield Table("Each stage given what the server had there", ("stage", ""), tried)
    if request is None:
        return
    inputs = shown(request.inputs) if show_values else described(request.inputs)
    cells = tuple((printable(name, 60), value) for name, value in inputs.items())
    yield Table(
        "Inputs" if show_values else "Inputs; --show-values tells what was sent", ("input", ""), cells
    )
    if found is None:
        return
    outputs = tuple(
        (
            printable(name, 60),
            f"{one.elements:,}",
            f"{one.disagreeing:,}",
            f"{one.largest:.3g}",
            ", ".join(one.reasons),
        )
        for name, one in found.answer.outputs.items()
    )
    columns = ("output", "elements", "differ", "by at most", "reasons")
    yield Table("Outputs", columns, outputs, numeric=(1, 2, 3))
    if show_values:
        logged, anew = shown(request.outputs), shown(found.answers)
        names = dict.fromkeys((*logged, *anew))
        answers = tuple((printable(name, 60), logged.get(name, ""), anew.get(name, "")) for name in names)
        yield Table("Answers", ("output", "logged", "anew"), answers)


def _stage_row(name: str, logged: str | None, anew: str | None) -> tuple[str, ...]:
    told = "" if logged is None or anew is None else "same" if logged == anew else f"differs: {CAUSES[name]}"
    return name, printable(logged or _NO_HASH, 40), anew or "not computed", told
