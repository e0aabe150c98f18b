"""Numbers as OpenMetrics text, which GitLab shows beside those of the target branch."""

import math
import re
from collections.abc import Sequence

from mlx_platform.core.report import Gauge
from mlx_platform.core.text import printable

_FOREIGN = re.compile(r"[^a-zA-Z0-9_]")


def metrics_text(gauges: Sequence[Gauge]) -> str:
    """One family per name with all of its samples, in fixed decimals: values are compared as text.

    Names keep letters, digits and underscores; everything else becomes an underscore. A sample that repeats
    the name and labels of another, or is no finite number, is left out.
    """
    families: dict[str, dict[str, str]] = {}
    for gauge in gauges:
        name = "mlx_" + _FOREIGN.sub("_", gauge.name)
        if not math.isfinite(gauge.value):
            continue
        labels = ",".join(f'{_label(key)}="{_escaped(text)}"' for key, text in gauge.labels)
        sample = f"{name}{{{labels}}}" if labels else name
        families.setdefault(name, {}).setdefault(sample, f"{gauge.value:.6f}")
    lines = []
    for name, samples in families.items():
        lines.append(f"# TYPE {name} gauge")
        lines += [f"{sample} {value}" for sample, value in samples.items()]
    return "\n".join((*lines, "# EOF")) + "\n"


def _label(name: str) -> str:
    plain = _FOREIGN.sub("_", name).strip("_")
    return f"_{plain}" if not plain or plain[0].isdigit() else plain


def _escaped(text: str) -> str:
    return printable(text, limit=200).replace("\\", "\\\\").replace('"', '\\"')
