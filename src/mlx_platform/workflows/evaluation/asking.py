"""Which gates an evaluation answers: the project's own, and on top of them those of the command line."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import Settings
from mlx_platform.evaluation.custom import declared_metrics
from mlx_platform.evaluation.gate_file import read_gates
from mlx_platform.evaluation.gate_lines import NO_LINES, Lines, toml_lines
from mlx_platform.evaluation.gate_parser import parse_expression, parse_gates
from mlx_platform.evaluation.gates import DatasetRules, GateFile, check_contradictions
from mlx_platform.evaluation.metric import Metric

_INLINE = ("gate", "defaults", "baseline", "guard")
DEFAULT_GATES: Mapping[str, str] = {
    "classification": "accuracy:max_drop=1pp",
    "multilabel": "f1_micro:max_drop=1pp",
    "regression": "rmse:max_rise=2%rel",
    "ranking": "ndcg@10:max_drop=1pp",
}
"""What is asked where nobody asks anything, and there is a baseline."""


def project_gates(settings: Settings, custom: Mapping[str, Metric] | None = None) -> GateFile:
    """The gates of the settings: in a file that they name, or in themselves; without a source when none.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a gate cannot be read, or they are in both places.
    """
    own = settings.evaluation
    custom = declared_metrics(own.metrics) if custom is None else custom
    inline = {key: getattr(own, key) for key in _INLINE if getattr(own, key)}
    if own.gates and inline:
        raise UsageError(
            f"{_name(settings)} names a gate file and has {', '.join(sorted(inline))} itself.",
            hint="Write the gates in one place, so that nobody overlooks the other.",
        )
    if own.gates:
        return read_gates(settings.path(own.gates), custom=custom)
    if not inline:
        return GateFile()
    document = {("gates" if key == "gate" else key): value for key, value in inline.items()}
    document["gates"] = [dict(gate) for gate in own.gate]
    return parse_gates(
        {"version": 1} | document, source=_name(settings), lines=_lines(settings.source), custom=custom
    )


def _name(settings: Settings) -> str:
    return str(settings.source) if settings.source else "The settings"


def _lines(path: Path | None) -> Lines:
    """Where the gates stand in the settings file, as if they were in a gate file."""
    if path is None:
        return NO_LINES
    try:
        text = path.read_text()
        tomllib.loads(text)
    except (OSError, ValueError):
        return NO_LINES  # it was read a moment ago; without lines the gates still have numbers
    found = {}
    for way, line in toml_lines(text).items():
        if way[:1] == ("evaluation",) and len(way) > 1:
            found["gates" if way[1] == "gate" else way[1], *way[2:]] = line
    return found


def asked_of(
    settings: Settings,
    gates: Path | None,
    expressions: tuple[str, ...],
    said: DatasetRules,
    custom: Mapping[str, Metric],
) -> GateFile:
    """All gates together.

    Args:
        settings: with the project's own gates.
        gates: a gate file besides.
        expressions: one-off gates.
        said: what the command line says about the data, before any file.
        custom: metrics of the project's own.

    Raises:
        NotFoundError: a gate file does not exist.
        UsageError: a gate cannot be read, or two contradict each other.
    """
    own = project_gates(settings, custom)
    asked = read_gates(gates, custom=custom) if gates else own
    # Flags come on top: a weaker file or expression must not take the project's own gates away, nor judge
    # them by easier rules, on easier data or against no baseline.
    rules = own if own.source else asked
    more = (parse_expression(text, custom=custom) for text in expressions)
    together = tuple(dict.fromkeys((*own.gates, *asked.gates, *more)))
    check_contradictions(together)
    dataset = _dataset(said, _dataset(rules.dataset, asked.dataset))
    return replace(rules, gates=together, dataset=dataset, source=asked.source)


def _dataset(first: DatasetRules, second: DatasetRules) -> DatasetRules:
    """The first one's word, and the second one's where it says nothing; the stricter of two numbers."""
    chosen = {
        entry.name: getattr(first, entry.name) or getattr(second, entry.name) for entry in fields(first)
    }
    limits = [rules.max_overlap for rules in (first, second) if rules.max_overlap is not None]
    return DatasetRules(
        **chosen
        | {
            "min_rows": max(first.min_rows, second.min_rows),
            "disjoint_from": tuple(dict.fromkeys((*first.disjoint_from, *second.disjoint_from))),
            "max_overlap": min(limits, default=None),
        }
    )


def with_defaults(asked: GateFile, task: str) -> GateFile:
    """The gates, or the usual one of the task where nobody asked for any."""
    return replace(asked, gates=(parse_expression(DEFAULT_GATES[task]),))


def evaluated_task(task: str, rules: DatasetRules) -> str:
    """What a model is measured as: a regression whose rows compete within queries is a ranking.

    Raises:
        UsageError: a query column for a model whose answers rank nothing.
    """
    if not rules.query:
        return task
    if task not in ("regression", "ranking"):
        raise UsageError(
            f"Rows are ranked by a number, and this is a model for {task}: it has no query column."
        )
    return "ranking"
