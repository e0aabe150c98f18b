"""Evidence as the registry keeps it: the whole document beside its run, a summary in a tag of the version."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from mlx_platform.core.text import printable
from mlx_platform.registry.runs import MetricData

if TYPE_CHECKING:
    from mlx_platform.core.evidence import Evidence

_TAG_CAP = 5000  # characters; some databases take no longer tag
_GATES_CAP = 3000
_TEXT_CAP = 300
_METRICS_CAP = 200
_METRIC_FORBIDDEN = re.compile(r"[^A-Za-z0-9_. -]")  # nor a slash: MLflow takes names for paths
_METRIC_LENGTH = 200
_NAME_CAP = 500  # characters of a dataset's name
_DIGEST_CAP = 36  # characters of a dataset's digest
_JUDGED = (
    *("gate_file", "baseline", "against", "against_ref", "compared", "threshold", "data"),
    *("limit", "tolerated", "tolerated_amount", "tolerated_relative", "confidence", "rows"),
    "by_settings",
)
_GATE = ("name", "verdict", "shown", "measured", "threshold", "lower", "upper", "skipped")


def data_of(evidence: "Evidence") -> MetricData | None:
    """The rows of a finding: the file's name, and as much of the fingerprint as MLflow takes for a digest."""
    if not evidence.data_fingerprint:
        return None
    named = PurePath(str(evidence.parameters.get("data") or "")).name or evidence.kind
    return MetricData(printable(named, _NAME_CAP), evidence.data_fingerprint[:_DIGEST_CAP])


def summary_tag(evidence: "Evidence", run_id: str) -> str:
    """The summary that a promotion reads: compact JSON, with as many of the gates and numbers as fit.

    What the verdict was judged by is always there, then come the gates, those that did not pass first.
    """
    numbers = dict(evidence.numbers)
    head = {
        "id": evidence.id,
        "digest": evidence.digest,
        "verdict": str(evidence.verdict),
        "created": evidence.document()["created"],
        "data_fingerprint": evidence.data_fingerprint,
        "run_id": run_id,
        "judged": _judged(evidence.parameters),
        "gates": _gates(numbers.pop("gates", ())),
    }
    for kept in _ever_fewer(numbers):
        text = _compact(head | {"numbers": kept})
        if len(text) <= _TAG_CAP:
            break
    return text


def metrics_of(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a finding by dotted name, as MLflow takes metrics; a `value` needs no name.

    Names may hold classes of whoever labelled the rows. What MLflow does not take becomes an underscore, and
    names that become the same are numbered.
    """
    found: dict[str, float] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(prefix if prefix and key == "value" else f"{prefix}.{key}".lstrip("."), inner)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[_unique(_METRIC_FORBIDDEN.sub("_", prefix)[:_METRIC_LENGTH], found)] = float(value)

    walk("", numbers)
    return dict(list(found.items())[:_METRICS_CAP])


def _unique(name: str, taken: Mapping[str, float]) -> str:
    if not name.strip("._ "):
        name = "metric"
    return next(
        free
        for free in (name, *(f"{name}_{count}" for count in range(2, len(taken) + 3)))
        if free not in taken
    )


def _judged(parameters: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: parameters[key] for key in _JUDGED if key in parameters}
    return {
        key: value for key, value in found.items() if not (isinstance(value, str) and len(value) > _TEXT_CAP)
    }


def _gates(gates: Any) -> list[dict[str, Any]]:
    """The gates' answers, as many as fit; in their order, but those that passed give way first."""
    answers = [
        {key: _rounded(gate[key]) for key in _GATE if gate.get(key) not in (None, "")} for gate in gates
    ]
    ranked = sorted(enumerate(answers), key=lambda pair: pair[1].get("verdict") == "pass")
    kept, room = [], _GATES_CAP
    for place, answer in ranked:
        room -= len(_compact(answer)) + 1
        if room < 0:
            break
        kept.append(place)
    return [answers[place] for place in sorted(kept)]


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _ever_fewer(numbers: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield numbers
    alone = {key: value for key, value in numbers.items() if key != "differences"}
    yield alone
    yield metrics_of(alone)
    yield {}


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
