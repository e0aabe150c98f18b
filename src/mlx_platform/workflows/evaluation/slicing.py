"""The slices of an evaluation: which there are, and what is found out about each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.evaluation.compare import Comparison, compare
from mlx_platform.evaluation.gates import GateFile, Key
from mlx_platform.evaluation.judge import Judged, Known, judge_one
from mlx_platform.evaluation.measure import measure_scored
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.resample import Codes
from mlx_platform.evaluation.scored import Scored
from mlx_platform.evaluation.slice_gates import Family, judge_slices
from mlx_platform.evaluation.slices import Slice, SliceResult, requested, split
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.comparing import Compared


def asked_slices(texts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Columns, and combinations of them that are written with commas, as the command line names them.

    Raises:
        UsageError: a text names no column, or one twice.
    """
    found = tuple(tuple(part.strip() for part in text.split(",")) for text in texts)
    for by in found:
        if not all(by) or len(set(by)) < len(by):
            raise UsageError(
                f"--slice {','.join(by)!r} names no column, or one twice.", hint="Write lang or lang,device."
            )
    return tuple(dict.fromkeys(found))


def judge_all(
    context: Context,
    compared: Compared,
    columns: Mapping[str, Array],
    asked: GateFile,
    shown: Sequence[tuple[str, ...]] = (),
) -> tuple[tuple[Judged, ...], tuple[SliceResult, ...]]:
    """Answer all gates, about all rows or about slices.

    Args:
        context: the command's context.
        compared: what they are answered by.
        columns: those that make slices [rows], by name.
        asked: the gates.
        shown: columns whose slices are measured for the report, whether a gate asks about them or not.

    Returns:
        The gates' answers in their order, and the slices.

    Raises:
        UsageError: a column that cannot make slices.
    """
    known = compared.known
    if not asked.slice_columns and not shown:
        return tuple(judge_one(gate, known, asked.defaults) for gate in asked.gates), ()
    slices = _slices(context, compared, columns, asked, shown)
    families: dict[int, Family] = {}
    answers = []
    for place, gate in enumerate(asked.gates):
        if gate.slices is None:
            answers.append(judge_one(gate, known, asked.defaults))
            continue
        families[place] = judge_slices(gate, slices, asked.defaults, metrics=compared.metrics)
        answers.append(families[place].judged)
    return tuple(answers), tuple(_result(one, tuple(families.values())) for one in slices)


def _result(one: Slice, families: Sequence[Family]) -> SliceResult:
    judged = tuple(family.each[one.key] for family in families if one.key in family.each)
    return SliceResult(
        by=one.by,
        key=one.key,
        rows=one.rows,
        measurements=one.known.measurements if one.known else {},
        judged=judged,
        too_small=one.known is None,
        comparison=one.known.comparison if one.known else None,
    )


def _slices(
    context: Context,
    compared: Compared,
    columns: Mapping[str, Array],
    asked: GateFile,
    shown: Sequence[tuple[str, ...]],
) -> list[Slice]:
    meter = _SliceMeter(compared, asked)
    found = []
    for by, least in requested(asked.gates, shown).items():
        groups = split(columns, by)
        total = sum(len(rows) >= least for rows in groups.values())
        with context.progress.stage(f"measuring slices by {'+'.join(by)}", total) as advance:
            for key, rows in groups.items():
                found.append(meter.slice(key, rows) if len(rows) >= least else Slice(key, len(rows)))
                advance(int(len(rows) >= least))
        found += [Slice(key, 0) for key in _required(asked, by) if key not in groups]
    return found


def _required(asked: GateFile, by: tuple[str, ...]) -> tuple[Key, ...]:
    rules = (gate.slices for gate in asked.gates if gate.slices)
    keys = (key for rule in rules for key in rule.require if tuple(column for column, _value in key) == by)
    return tuple(dict.fromkeys(keys))


@dataclass(frozen=True, slots=True)
class _SliceMeter:
    """Measures slices by the rules of the whole."""

    compared: Compared
    asked: GateFile

    def slice(self, key: Key, rows: Codes) -> Slice:
        compared, defaults = self.compared, self.asked.defaults
        scored = compared.scored.take(rows)
        measured = measure_scored(
            scored,
            metrics=list(self._metrics(paired=False).values()),
            confidence=defaults.confidence,
            seed=defaults.seed,
        )
        baseline, whole = compared.baseline, compared.comparison
        comparison = None
        if baseline is not None and whole is not None:
            comparison = self._compare(scored, baseline.scored.take(rows), whole)
        guards = {
            guard.name: self._compare(scored, guard.scored.take(rows), guard.comparison)
            for guard in compared.guards
        }
        return Slice(key, len(rows), scored, Known(measured, comparison, guards))

    def _compare(self, scored: Scored, other: Scored, whole: Comparison) -> Comparison:
        metrics = {name: one for name, one in self._metrics(paired=True).items() if name in whole.differences}
        return compare(
            scored,
            other,
            metrics=list(metrics.values()),
            confidence=self.asked.defaults.confidence,
            seed=self.asked.defaults.seed,
            identical=whole.identical,
        )

    def _metrics(self, *, paired: bool) -> dict[str, Metric]:
        """The primary metric, and those that gates about slices ask for."""
        metrics = self.compared.metrics
        sliced = [gate for gate in self.asked.gates if gate.slices]
        names = [gate.metric for gate in sliced if (gate.limit not in ("min", "max")) is paired]
        return {name: metrics[name] for name in (next(iter(metrics)), *names) if name in metrics}
