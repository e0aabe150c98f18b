"""The numbers of a window for tools that follow them over time."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from mlx_platform.core.report import Gauge
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.drifting.judged import Group
from mlx_platform.workflows.subject import Subject

_MOST_FEATURES = 1000  # whose numbers are told, those with the highest PSI


def gauges_of(
    subject: Subject | None, groups: Sequence[Group], by: str | None, now: datetime
) -> tuple[Gauge, ...]:
    """Rows, verdict and time of each group, and of its features PSI as it is and beyond chance."""
    model = (("model", subject.name), ("version", subject.number)) if subject else ()
    return tuple(
        gauge
        for group in groups
        for gauge in _of_group(group, (*model, *(((by, group.name),) if by else ())), now)
    )


def _of_group(group: Group, labels: tuple[tuple[str, str], ...], now: datetime) -> Iterator[Gauge]:
    yield Gauge("drift_last_run_timestamp_seconds", now.timestamp(), labels)
    yield Gauge("drift_rows", group.whole.rows, labels)
    for verdict in Verdict:
        state = (*labels, ("verdict", str(verdict)))
        yield Gauge("drift_verdict", float(group.verdict is verdict), state)
    scored = sorted(
        (feature for feature in group.whole.features if feature.scores), key=lambda each: -each.psi
    )
    for feature in scored[:_MOST_FEATURES]:
        of = (*labels, ("feature", feature.name), ("role", feature.role))
        yield Gauge("drift_psi", feature.psi, of)
        if feature.decision is not None:
            yield Gauge("drift_psi_adjusted", feature.decision.adjusted, of)
