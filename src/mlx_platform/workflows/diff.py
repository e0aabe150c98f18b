"""`mlx diff`: what two versions, or files, have and have not in common."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import did_you_mean, listed, printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.damage import told_damage
from mlx_platform.registry.ref import PathRef, parse_ref
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.differences import tables
from mlx_platform.workflows.differences.part import Part, Value, compare
from mlx_platform.workflows.subject import not_sealed, open_subject, resolved

if TYPE_CHECKING:
    from mlx_platform.inference.package import Package

REGISTERED = ("metrics", "params", "lineage")
"""What only a registered version has."""
PACKAGED = ("io", "graph", "files", "environment")
"""What is in the package; the registry alone knows the inputs and outputs."""
_SHORT = 16  # digits of a digest on a page
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_ROWS = 30  # of one part on a page; `--json` has all


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two: a registered version, a package, or both; `problem` says why there is no package."""

    ref: str
    version: Version | None
    package: "Package | None"
    problem: str = ""

    @property
    def digest(self) -> str:
        if self.version and self.version.digest:
            return self.version.digest
        return self.package.digest if self.package else ""

    def document(self) -> dict[str, Any]:
        version = self.version
        return {
            "ref": self.ref,
            "label": version.label if version else None,
            "digest": self.digest,
            "size": version.size if version else self.package.size if self.package else None,
        }


def diff(
    context: Context, first: str, second: str, *, only: Sequence[str] = (), exit_code: bool = False
) -> Result:
    """Compare two versions part by part.

    What cannot be compared is said and the rest is shown: metrics of a file that nobody registered, or
    packages whose bytes are missing.

    Args:
        context: the command's context.
        first: what is compared from: a reference, or a path.
        second: what is compared to.
        only: parts; all of them otherwise.
        exit_code: give a verdict: a difference fails, and what could not be compared is undecided.

    Raises:
        NotFoundError: no such version or file.
        UsageError: no such part.
    """
    for name in only:
        if name not in (*REGISTERED, *PACKAGED):
            raise UsageError(
                f"There is no part {printable(name, 80)!r} to compare.",
                hint=did_you_mean(name, (*REGISTERED, *PACKAGED)),
            )
    wanted = [name for name in (*REGISTERED, *PACKAGED) if not only or name in only]
    with ExitStack() as stack:
        before, after = (_open(context, stack, text) for text in (first, second))
        if set(wanted) & set(PACKAGED) and not (before.digest and before.digest == after.digest):
            before, after = _fetch(context, before), _fetch(context, after)
        parts = tuple(_part(name, before, after) for name in wanted)
    return _result(before, after, parts, _verdict(parts, asked=bool(only)) if exit_code else None)


def _open(context: Context, stack: ExitStack, text: str) -> _Side:
    ref = parse_ref(text)
    if isinstance(ref, PathRef):
        subject = stack.enter_context(open_subject(context, text))
        return _Side(printable(text, 200), None, subject.package)
    version = resolved(context, ref, text)
    return _Side(version.ref, version, None)


def _fetch(context: Context, side: _Side) -> _Side:
    if side.package or side.version is None:
        return side
    try:
        with context.progress.stage(f"fetching {side.ref}"):
            return _Side(side.ref, side.version, context.catalog.fetch(side.version))
    except MlxError as error:
        return _Side(side.ref, side.version, None, error.message)


def _part(name: str, before: _Side, after: _Side) -> Part:
    if name in REGISTERED:
        return _registered(name, before, after)
    if before.digest and before.digest == after.digest:
        return Part(name)
    if before.package and after.package:
        return _packaged(name, before, after, (before.package, after.package))
    if name == "io" and before.version and after.version:
        return compare(name, tables.io_of_tags(before.version), tables.io_of_tags(after.version))
    problem = next(side.problem for side in (before, after) if side.package is None)
    return Part(name, problem=problem)


def _registered(name: str, before: _Side, after: _Side) -> Part:
    read: Mapping[str, Callable[[Version], dict[str, Value]]] = {
        "metrics": tables.metrics,
        "params": tables.params,
        "lineage": tables.lineage,
    }
    if before.version and after.version:
        problems = tables.gaps(name, before.version, after.version)
        if problems and name != "lineage":
            return Part(name, problem=problems)
        part = compare(name, read[name](before.version), read[name](after.version))
        return replace(part, problem=problems)
    other = before if before.version is None else after
    return Part(name, problem=f"{other.ref} is not registered.", applies=False)


def _packaged(name: str, before: _Side, after: _Side, packages: tuple["Package", "Package"]) -> Part:
    if name == "graph":
        from mlx_platform.inference.outline import read_outline

        old, new = (read_outline(package.model_path) for package in packages)
        return tables.graph(old, new)
    if name == "environment":
        locks = [tables.environment(package) for package in packages]
        unread = [side.ref for side, lock in zip((before, after), locks, strict=True) if lock is None]
        if unread:
            return Part(name, problem=f"The environment.lock of {listed(unread)} cannot be read.")
        return compare(name, locks[0] or {}, locks[1] or {})
    read = {"io": tables.io_of_package, "files": tables.files}[name]
    first, second = (read(package) for package in packages)
    return compare(name, first, second)


def _verdict(parts: Sequence[Part], *, asked: bool) -> Verdict:
    if any(part.changes for part in parts):
        return Verdict.FAIL
    open_questions = [part for part in parts if part.problem and (part.applies or asked)]
    return Verdict.UNDECIDED if open_questions else Verdict.PASS


def _result(before: _Side, after: _Side, parts: Sequence[Part], verdict: Verdict | None) -> Result:
    different = any(part.changes for part in parts)
    same_bytes = bool(before.digest) and before.digest == after.digest
    unchanged = ", ".join(
        f"{part.name} ({part.same})" if part.same else part.name
        for part in parts
        if not part.changes and not part.problem
    )
    facts = {
        "before": _head(before),
        "after": _head(after),
        "bytes": "the same" if same_bytes else "",
        "unchanged": unchanged,
    }
    return Result(
        command="diff",
        data={
            "before": before.document(),
            "after": after.document(),
            "different": different,
            "same_bytes": same_bytes,
            "parts": {part.name: part.document() for part in parts},
        },
        report=Report(
            title=f"diff {before.ref} {after.ref}",
            summary=_summary(before, after, parts),
            facts=tuple(Fact(label, value) for label, value in facts.items() if value),
            sections=tuple(_table(part, before, after) for part in parts if part.changes),
            next_steps=tuple(f"mlx show {side.ref}" for side in (before, after) if side.version)[:1],
        ),
        verdict=verdict,
        warnings=(
            *_warnings(parts),
            *(
                text
                for side in (before, after)
                if side.version
                for text in (*not_sealed(side.version), *told_damage(side.version))
            ),
        ),
    )


def _head(side: _Side) -> str:
    return f"{side.ref} ({side.version.label})" if side.version else f"{side.ref} (not registered)"


def _summary(before: _Side, after: _Side, parts: Sequence[Part]) -> str:
    changed = [f"{part.name} ({len(part.changes)})" for part in parts if part.changes]
    if changed:
        return f"{before.ref} and {after.ref} differ in {listed(changed)}."
    left = " in what could be compared" if any(part.problem and part.applies for part in parts) else ""
    return f"No difference between {before.ref} and {after.ref}{left}."


def _table(part: Part, before: _Side, after: _Side) -> Table:
    # The ends of intervals are for machines: beside the values they would double every table.
    shown = [change for change in part.changes if not change.name.endswith((".lower", ".upper"))]
    rows = tuple(
        (change.name, _cell(change.before), _cell(change.after), change.text) for change in shown[:_MOST_ROWS]
    )
    more = len(part.changes) - len(rows)
    title = f"{part.name}: {part.same} unchanged" + (f", {more} more with --json" if more else "")
    return Table(title, ("name", before.ref, after.ref, "difference"), rows, numeric=(1, 2, 3))


def _cell(value: Value) -> str:
    match value:
        case None | "":
            return "-"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
    # Two digests side by side fill a page; `--json` has all of their digits.
    return f"{value[:_SHORT]}…" if _DIGEST.fullmatch(value) else value


def _warnings(parts: Sequence[Part]) -> Iterator[str]:
    problems: dict[str, list[str]] = {}
    for part in parts:
        if part.problem:
            problems.setdefault(part.problem, []).append(part.name)
    for problem, names in problems.items():
        yield f"Not compared{' in full' if names == ['lineage'] else ''}: {', '.join(names)}. {problem}"
