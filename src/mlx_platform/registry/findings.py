"""Evidence as the registry keeps it: the whole document beside its run, a summary in a tag of the version."""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_platform.core.evidence import Evidence

_TAG_CAP = 5000  # characters; some databases take no longer tag
_METRICS_CAP = 200


def summary_tag(evidence: "Evidence", run_id: str) -> str:
    """The summary that a promotion reads: compact JSON, with as many of the numbers as fit."""
    head = {
        "id": evidence.id,
        "digest": evidence.digest,
        "verdict": str(evidence.verdict),
        "created": evidence.document()["created"],
        "data_fingerprint": evidence.data_fingerprint,
        "run_id": run_id,
    }
    for numbers in (dict(evidence.numbers), dict(metrics_of(evidence.numbers)), {}):
        text = json.dumps(head | {"numbers": numbers}, sort_keys=True, separators=(",", ":"), default=str)
        if len(text) <= _TAG_CAP:
            return text
    return json.dumps(head, sort_keys=True)


def metrics_of(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a finding by dotted name, as MLflow shows metrics; a `value` needs no name."""
    found: dict[str, float] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(prefix if prefix and key == "value" else f"{prefix}.{key}".lstrip("."), inner)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[prefix] = float(value)

    walk("", numbers)
    return dict(list(found.items())[:_METRICS_CAP])
